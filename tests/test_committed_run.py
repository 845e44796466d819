"""The committed metrics of the default run: the baseline of every clone."""

import json
import subprocess

import pytest
from ruamel.yaml import YAML  # reads 5e-05 as DVC does

MINIMUM = {"sst": ("accuracy", 0.60), "qqp": ("accuracy", 0.85), "sts": ("pearson", 0.80)}


@pytest.fixture
def committed(root):
    """Read a file of the last commit; the working tree may hold another run."""

    def read(name):
        result = subprocess.run(["git", "show", f"HEAD:{name}"], cwd=root, capture_output=True, text=True)
        if result.returncode:
            pytest.skip(f"git has no {name} at HEAD: {result.stderr.strip()}")
        return result.stdout

    return read


@pytest.mark.parametrize("task", MINIMUM)
def test_default_beats_the_simple_baselines(committed, task):
    metric, minimum = MINIMUM[task]
    score = json.loads(committed("metrics/evaluation.json"))["dev"][task][metric]
    (baseline,) = json.loads(committed("metrics/data.json"))["simple_baselines"][task].values()
    assert score >= max(minimum, baseline[metric] + 0.05)
    assert score < 0.98, "the sample is too easy to tell techniques apart"


def test_committed_metrics_are_of_the_committed_params(committed):
    params, lock = (YAML(typ="safe").load(committed(name)) for name in ("params.yaml", "dvc.lock"))
    for stage, record in lock["stages"].items():
        for name, value in record.get("params", {}).get("params.yaml", {}).items():
            current = params
            for key in name.split("."):
                current = current[key]
            assert current == value, f"{stage}: {name}: run dvc repro and commit dvc.lock and metrics/"
