"""Compute metrics and plots of the ensemble's predictions, and write the course's submission files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import build_tasks, load_params
from bertrio.core.stage import run_stage
from bertrio.evaluation.evaluate import evaluate


def main(root: str = "") -> None:
    params = load_params(f"{root}params.yaml")
    evaluate(
        list(params.ensemble.members),
        build_tasks(params),
        predictions=f"{root}predictions",
        metrics=f"{root}metrics",
        plots=f"{root}plots",
        submission=params.evaluate.submission,
    )


if __name__ == "__main__":
    run_stage("evaluate", main)
