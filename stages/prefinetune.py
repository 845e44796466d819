"""Train one task alone before fine-tuning on all, if prefinetune.epochs is above 0."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params
from bertrio.core.files import write_json
from bertrio.core.stage import run_stage
from bertrio.training.prefinetune import prefinetune


def main(root: str = "") -> dict:
    params, models = load_params(f"{root}params.yaml"), f"{root}models"
    metrics, timing = prefinetune(
        params, f"{models}/encoder", f"{root}data/splits", f"{models}/tokenizer", f"{models}/prefinetuned"
    )
    write_json(f"{root}metrics/prefinetune.json", metrics)
    return timing


if __name__ == "__main__":
    run_stage("prefinetune", main)
