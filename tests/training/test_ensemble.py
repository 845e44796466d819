from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.config import build_tasks, merged
from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.core.tasks import indicators
from bertrio.evaluation.ensembling import combine, mark_selection
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import best_thresholds, read_predictions
from bertrio.model.config import ModelConfig, read_model_config
from bertrio.training.ensemble import greedy_soup
from bertrio.training.finetune import predict
from tests.reading import Reads
from tests.small_run import SMALL
from tests.training.conftest import saved_model, split_of


def build(run, combine, names, **overrides):
    """Train members, whose weights depend on the length of their names, and combine them; return the params.

    `overrides` of members by name.
    """
    run.params(ensemble={"members": {name: overrides.get(name, {}) for name in names}})
    for name in names:
        run.train(name)
    return run.combine(combine)


def test_greedy_starts_with_the_best_and_keeps_what_does_not_hurt():
    scores = {"a": 0.5, "b": 0.7, "c": 0.6, "d": 0.7, "bd": 0.6, "bc": 0.7, "bca": 0.8}
    score = Mock(side_effect=lambda names: scores["".join(names)])
    assert greedy_soup(["a", "b", "c", "d"], score) == ["b", "c", "a"]
    assert ["".join(*call.args) for call in score.call_args_list[4:]] == ["bd", "bc", "bca"]  # ties go to the first


def test_uniform_soup_averages_weights_and_predicts_anew(run):
    params = build(run, "uniform_soup", ["base", "second"])
    models = [saved_model(params, f"models/{name}") for name in ("members/base", "members/second", "ensemble")]
    base, second, soup = (model.state_dict() for model in models)
    for name, value in soup.items():
        torch.testing.assert_close(value, (base[name].double() + second[name].double()).div(2).float(), rtol=0, atol=0)
    predicted = [predict(models[2], split_of(params, split), split, 64) for split in ("dev", "test")]
    expected = pd.concat(predicted, ignore_index=True)
    pd.testing.assert_frame_equal(read_predictions("predictions/ensemble.parquet"), expected)
    weights = {task: {"base": 0.5, "second": 0.5} for task in params.tasks}
    expected = {"combine": "uniform_soup", "members": ["base", "second"], "weights": weights}
    assert read_json("models/ensemble/ensemble.json") == expected
    for folder in ("ensemble", "members/base"):
        assert read_model_config(f"models/{folder}").as_json() == ModelConfig.from_params(params).as_json()


def test_vote_combines_the_tables_of_all_members(run):
    (run.root / "models/ensemble/encoder").mkdir(parents=True)  # left over from a soup
    params = build(run, "vote", ["base", "second"], base={"answers": ["sst", "qqp"]})
    members = {name: read_predictions(f"predictions/members/{name}/predictions.parquet") for name in ("base", "second")}
    table, weights = combine(members, "vote", build_tasks(params), {"base": ["sst", "qqp"]})
    pd.testing.assert_frame_equal(read_predictions("predictions/ensemble.parquet"), table)
    assert [path.name for path in (run.root / "models/ensemble").iterdir()] == ["ensemble.json"]
    expected = {"combine": "vote", "members": ["base", "second"], "weights": weights}
    assert read_json("models/ensemble/ensemble.json") == expected


@pytest.mark.parametrize("combine", ["vote", "greedy", "greedy_soup"])
def test_every_param_read_is_tracked_by_dvc(run, monkeypatch, combine):
    build(run, combine, ["base", "second"])
    reads = Reads(monkeypatch)
    run.combine(combine)
    assert set(reads.untracked("ensemble")) <= {"runtime.processes"}  # read by fine-tuning only
    assert {"ensemble.combine", "tasks"} <= reads.names


@pytest.mark.parametrize("names", [["base", "twin"], ["base"]])
def test_soup_of_equal_members_is_that_member_byte_for_byte(run, names):
    build(run, "greedy_soup", names)
    for file in ("encoder/model.safetensors", "heads.safetensors"):
        paths = [run.root / "models" / folder / file for folder in ("ensemble", "members/base")]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    base, soup = (read_predictions(f"predictions/{name}.parquet") for name in ("members/base/predictions", "ensemble"))
    pd.testing.assert_frame_equal(soup, mark_selection(base) if len(names) > 1 else base)


def test_greedy_soup_is_no_worse_than_any_member_on_selection_rows(run):
    tasks = build_tasks(build(run, "greedy_soup", ["base", "second", "third"]))

    def score(table):
        return evaluate_predictions(table, tasks)["selection"]["overall_normalized"]

    members = [f"predictions/members/{name}/predictions.parquet" for name in ("base", "second", "third")]
    scores = {path.split("/")[2]: score(mark_selection(read_predictions(path))) for path in members}
    assert score(read_predictions("predictions/ensemble.parquet")) >= max(scores.values()) - 1e-9
    shares = read_json("models/ensemble/ensemble.json")["weights"]["sst"]
    assert shares[max(scores, key=scores.get)] > 0 and sum(shares.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("select_on", ["holdout", "dev"])
def test_soup_thresholds_are_averaged_or_chosen_on_dev(run, select_on):
    sets = {"target": "multilabel", "classes": 5, "loss": "bce"}
    run.small = merged(SMALL, {"tasks": {"sst": sets}, "finetune": {"select_on": select_on}})
    by_member = {"base": [0.5, 0.2, 0.4, 0.4, 0.5], "second": [0.4, 0.5, 0.4, 0.6, 0.4]}
    overrides = {name: {"tasks": {"sst": {"thresholds": values}}} for name, values in by_member.items()}
    build(run, "uniform_soup", ["base", "second"], **overrides)
    table = read_predictions("predictions/ensemble.parquet").query("task == 'sst'")
    dev = table[table["split"] == "dev"]
    probabilities, labels = np.stack(dev["probabilities"]), indicators(dev["label"].to_numpy(), 5)
    mean = np.mean(list(by_member.values()), axis=0)
    expected = best_thresholds(labels, probabilities) if select_on == "dev" else mean
    thresholds = read_model_config("models/ensemble").tasks["sst"].thresholds
    assert thresholds == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(indicators(dev["prediction"].to_numpy(), 5), probabilities > thresholds)


def test_soup_of_different_architectures_is_an_error(run):
    with pytest.raises(UserError, match=r"heads\.task_qqp\S* is .1, 16. in member base and .2, 16. in member second"):
        build(run, "uniform_soup", ["base", "second"], second={"tasks": {"qqp": {"loss": "siamese_softmax"}}})
