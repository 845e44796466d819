"""Analyze errors of the ensemble (worst rows, suspect labels, slices, changed texts, challenges); write the card."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.analysis.analyze import analyze
from bertrio.config import load_params
from bertrio.core.stage import run_stage


def main() -> None:
    analyze(
        load_params(),
        splits="data/splits",
        models="models",
        predictions="predictions",
        metrics="metrics",
        plots="plots",
        card="models/README.md",
    )


if __name__ == "__main__":
    run_stage("analyze", main, timing=False)
