"""Split the rows into train, dev and test, prepare the tokenizer, and describe the data in metrics/data.json."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params
from bertrio.core.stage import run_stage
from bertrio.data.prepare import split_data


def main(root: str = "") -> None:
    data, params = f"{root}data", load_params(f"{root}params.yaml")
    split_data(params, f"{data}/raw", f"{data}/splits", f"{root}models/tokenizer", f"{root}metrics/data.json")


if __name__ == "__main__":
    run_stage("split", main)
