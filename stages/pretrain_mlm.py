"""Prepare the encoder, and pretrain it on unlabelled text if mlm.enabled."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params
from bertrio.core.files import write_json
from bertrio.core.runtime import set_up
from bertrio.core.stage import run_stage
from bertrio.training.mlm import pretrain_mlm


def main(root: str = "") -> dict:
    params, models = load_params(f"{root}params.yaml"), f"{root}models"
    runtime = set_up(**params.runtime.model_dump())
    metrics, timing = pretrain_mlm(params, runtime, f"{root}data/corpora", f"{models}/tokenizer", f"{models}/encoder")
    write_json(f"{root}metrics/mlm.json", metrics)
    return timing


if __name__ == "__main__":
    run_stage("pretrain_mlm", main)
