"""Combines the members' predictions into one table."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # the code beside this script, installed or not

from bertrio.ensembling import combine_members
from bertrio.params import build_tasks, load_params
from bertrio.stage import run_stage


def main() -> None:
    params = load_params()
    combine_members(
        list(params.ensemble.members),
        params.ensemble.combine,
        build_tasks(params),
        folder="predictions/members",
        path="predictions/ensemble.parquet",
    )


if __name__ == "__main__":
    run_stage("ensemble", main)
