"""Combine the predictions or the weights of the members, and write the predictions of the ensemble."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params, member_params
from bertrio.core.stage import run_stage
from bertrio.training.ensemble import build_ensemble


def main(root: str = "") -> None:
    params = load_params(f"{root}params.yaml")
    build_ensemble(
        params,
        {name: member_params(params, name) for name in params.ensemble.members},
        splits=f"{root}data/splits",
        tokenizer=f"{root}models/tokenizer",
        models=f"{root}models/members",
        predictions=f"{root}predictions/members",
        path=f"{root}predictions/ensemble.parquet",
        folder=f"{root}models/ensemble",
    )


if __name__ == "__main__":
    run_stage("ensemble", main)
