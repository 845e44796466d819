"""Load the rows of all tasks, and the corpora if mlm is on, into one layout; unusable rows go to data/rejects/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params
from bertrio.core.stage import run_stage
from bertrio.data.download import download


def main(root: str = "") -> None:
    data = f"{root}data"
    download(load_params(f"{root}params.yaml"), f"{data}/raw", f"{data}/rejects", f"{data}/corpora")


if __name__ == "__main__":
    run_stage("download", main)
