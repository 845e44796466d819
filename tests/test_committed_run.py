"""The default run whose metrics are committed: the baseline that every clone compares with."""

import json
import subprocess

import pytest
from ruamel.yaml import YAML  # reads 5e-05 as DVC, which wrote it, does

FLOORS = {"sst": ("accuracy", 0.60), "qqp": ("accuracy", 0.85), "sts": ("pearson", 0.80)}


@pytest.fixture
def committed(root):
    """Reads a file as the last commit has it; the working tree may hold another run."""

    def read(name):
        done = subprocess.run(["git", "show", f"HEAD:{name}"], cwd=root, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"git has no {name} at HEAD: {done.stderr.strip()}")
        return done.stdout

    return read


@pytest.fixture
def metrics(committed):
    return {name: json.loads(committed(f"metrics/{name}.json")) for name in ("evaluation", "data")}


@pytest.mark.parametrize("task", FLOORS)
def test_the_default_learns_what_counting_words_can_not(metrics, task):
    metric, floor = FLOORS[task]
    score = metrics["evaluation"]["dev"][task][metric]
    (baseline,) = metrics["data"]["simple_baselines"][task].values()
    assert score >= floor
    assert score >= baseline[metric] + 0.05
    assert score < 0.98, "the sample is too easy to tell techniques apart"


def test_it_was_made_with_the_params_that_are_committed(committed):
    params, lock = (YAML(typ="safe").load(committed(name)) for name in ("params.yaml", "dvc.lock"))
    for stage, record in lock["stages"].items():
        for name, value in record.get("params", {}).get("params.yaml", {}).items():
            current = params
            for key in name.split("."):
                current = current[key]
            assert current == value, f"{stage}: {name}: run dvc repro and commit dvc.lock and metrics/"
