"""Write the outputs of distill.teacher for the rows that students train on, if distill.weight is above 0."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params
from bertrio.core.stage import run_stage
from bertrio.inference.teach import teach


def main(root: str = "") -> None:
    teach(load_params(f"{root}params.yaml"), splits=f"{root}data/splits", folder=f"{root}data/teacher")


if __name__ == "__main__":
    run_stage("teach", main)
