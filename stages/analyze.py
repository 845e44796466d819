"""Analyze errors of the ensemble (worst rows, suspect labels, slices, changed texts, challenges); write the card."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.analysis.analyze import analyze
from bertrio.config import load_params
from bertrio.core.console import say
from bertrio.core.files import write_json
from bertrio.core.stage import cost_since, run_stage
from bertrio.evaluation.evaluate import timings


def main(root: str = "") -> None:
    params = load_params(f"{root}params.yaml")
    analyze(
        params,
        splits=f"{root}data/splits",
        models=f"{root}models",
        predictions=f"{root}predictions",
        metrics=f"{root}metrics",
        plots=f"{root}plots",
        card=f"{root}models/README.md",
    )


def main_timed() -> None:
    began = time.perf_counter()
    main()
    earlier = timings("metrics/timing", list(load_params().ensemble.members))
    write_json("metrics/timing.json", {**earlier, "analyze": cost_since(began)}, digits=1)  # the last stage writes it
    say("done; next: bertrio report (a page on this run), bertrio serve (try the model), dvc exp run -S PARAM=VALUE")


if __name__ == "__main__":
    run_stage("analyze", main_timed, timing=False)
