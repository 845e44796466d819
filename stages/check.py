"""Check params.yaml and write digests of all inputs outside of the repository. Runs every time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config.loading import listing_uncommitted
from bertrio.core.stage import run_stage
from bertrio.data.inputs import check_inputs
from bertrio.training.monitoring import need_all_trackers


def main(root: str = "") -> None:
    params = f"{root}params.yaml"
    with listing_uncommitted(params):
        need_all_trackers(check_inputs(params, f"{root}data/inputs"))


if __name__ == "__main__":
    run_stage("check", main, timing=False)
