from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.config import build_tasks, member_params, merged
from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.core.tasks import indicators
from bertrio.evaluation.ensembling import combine, mark_selection
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import best_thresholds, read_predictions, write_predictions
from bertrio.model.config import ModelConfig, read_model_config
from bertrio.model.multitask import save_model
from bertrio.training.ensemble import build_ensemble, greedy_soup
from bertrio.training.finetune import predict
from tests.reading import Reads
from tests.training.conftest import SMALL, saved_model, split_of

TWO_OUTPUTS = {"loss": "siamese_softmax"}


def build(workspace, combine, seeds, **overrides):
    """Train members and combine them; `overrides` of members by name. Return the params."""
    members = {name: overrides.get(name, {}) for name in seeds}
    params = workspace.params(ensemble={"combine": combine, "members": members})
    loaded = {name: member_params(params, name) for name in members}
    for (name, member), seed in zip(loaded.items(), seeds.values()):
        train(member, name, seed)
    combine_members(params, loaded)
    return params


def combine_members(params, loaded):
    build_ensemble(
        params, loaded, "data/splits", "models/tokenizer", "models/members", "predictions/members",
        "predictions/ensemble.parquet", "models/ensemble",
    )  # fmt: skip


def train(params, name, seed):
    """Write a member as fine-tuning does, with randomly perturbed initial weights."""
    model = saved_model(params, "models", "models/encoder")
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draws)
    save_model(model, f"models/members/{name}", ModelConfig.from_params(params), "models/tokenizer")
    write_predictions(predicted(params, model), f"predictions/members/{name}/predictions.parquet")


def predicted(params, model):
    tables = [predict(model, split_of(params, split), split, 64) for split in ("dev", "test")]
    return pd.concat(tables, ignore_index=True)


def test_greedy_starts_with_the_best_and_keeps_what_does_not_hurt():
    scores = {"a": 0.5, "b": 0.7, "c": 0.6, "d": 0.7, "bd": 0.6, "bc": 0.7, "bca": 0.8}
    score = Mock(side_effect=lambda names: scores["".join(names)])
    assert greedy_soup(["a", "b", "c", "d"], score) == ["b", "c", "a"]
    assert ["".join(*call.args) for call in score.call_args_list[4:]] == ["bd", "bc", "bca"]  # ties go to the first


def test_uniform_soup_averages_weights_and_predicts_anew(workspace):
    params = build(workspace, "uniform_soup", {"base": 1, "second": 2})
    models = [saved_model(params, f"models/{name}") for name in ("members/base", "members/second", "ensemble")]
    base, second, soup = (model.state_dict() for model in models)
    for name, value in soup.items():
        torch.testing.assert_close(value, (base[name].double() + second[name].double()).div(2).float(), rtol=0, atol=0)
    pd.testing.assert_frame_equal(read_predictions("predictions/ensemble.parquet"), predicted(params, models[2]))
    weights = {task: {"base": 0.5, "second": 0.5} for task in params.tasks}
    expected = {"combine": "uniform_soup", "members": ["base", "second"], "weights": weights}
    assert read_json("models/ensemble/ensemble.json") == expected
    for folder in ("ensemble", "members/base"):
        assert read_model_config(f"models/{folder}").as_json() == ModelConfig.from_params(params).as_json()


def test_vote_combines_the_tables_of_all_members(workspace):
    (workspace.root / "models/ensemble/encoder").mkdir(parents=True)  # left over from a soup
    params = build(workspace, "vote", {"base": 1, "second": 2}, base={"answers": ["sst", "qqp"]})
    members = {name: read_predictions(f"predictions/members/{name}/predictions.parquet") for name in ("base", "second")}
    table, weights = combine(members, "vote", build_tasks(params), {"base": ["sst", "qqp"]})
    pd.testing.assert_frame_equal(read_predictions("predictions/ensemble.parquet"), table)
    assert [path.name for path in (workspace.root / "models/ensemble").iterdir()] == ["ensemble.json"]
    expected = {"combine": "vote", "members": ["base", "second"], "weights": weights}
    assert read_json("models/ensemble/ensemble.json") == expected


@pytest.mark.parametrize("combine", ["vote", "greedy", "greedy_soup"])
def test_every_param_read_is_tracked_by_dvc(workspace, monkeypatch, combine):
    params = build(workspace, combine, {"base": 1, "second": 2})
    reads = Reads(monkeypatch)
    combine_members(params, {name: member_params(params, name) for name in ("base", "second")})
    assert set(reads.untracked("ensemble")) <= {"runtime.processes"}  # read by fine-tuning only
    assert {"ensemble.combine", "tasks"} <= reads.names


@pytest.mark.parametrize("seeds", [{"base": 5, "twin": 5}, {"base": 5}])
def test_soup_of_equal_members_is_that_member_byte_for_byte(workspace, seeds):
    build(workspace, "greedy_soup", seeds)
    for file in ("encoder/model.safetensors", "heads.safetensors"):
        paths = [workspace.root / "models" / folder / file for folder in ("ensemble", "members/base")]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    base, soup = (read_predictions(f"predictions/{name}.parquet") for name in ("members/base/predictions", "ensemble"))
    pd.testing.assert_frame_equal(soup, mark_selection(base) if len(seeds) > 1 else base)


def test_greedy_soup_is_no_worse_than_any_member_on_selection_rows(workspace):
    tasks = build_tasks(build(workspace, "greedy_soup", {"base": 1, "second": 2, "third": 3}))

    def score(table):
        return evaluate_predictions(table, tasks)["selection"]["overall_normalized"]

    members = [f"predictions/members/{name}/predictions.parquet" for name in ("base", "second", "third")]
    scores = {path.split("/")[2]: score(mark_selection(read_predictions(path))) for path in members}
    assert score(read_predictions("predictions/ensemble.parquet")) >= max(scores.values()) - 1e-9
    shares = read_json("models/ensemble/ensemble.json")["weights"]["sst"]
    assert shares[max(scores, key=scores.get)] > 0 and sum(shares.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("select_on", ["holdout", "dev"])
def test_soup_thresholds_are_averaged_or_chosen_on_dev(workspace, select_on):
    sets = {"target": "multilabel", "classes": 5, "loss": "bce"}
    workspace.small = merged(SMALL, {"tasks": {"sst": sets}, "finetune": {"select_on": select_on}})
    by_member = {"base": [0.5, 0.2, 0.4, 0.4, 0.5], "second": [0.4, 0.5, 0.4, 0.6, 0.4]}
    overrides = {name: {"tasks": {"sst": {"thresholds": values}}} for name, values in by_member.items()}
    build(workspace, "uniform_soup", {"base": 1, "second": 2}, **overrides)
    table = read_predictions("predictions/ensemble.parquet").query("task == 'sst'")
    dev = table[table["split"] == "dev"]
    probabilities, labels = np.stack(dev["probabilities"]), indicators(dev["label"].to_numpy(), 5)
    mean = np.mean(list(by_member.values()), axis=0)
    expected = best_thresholds(labels, probabilities) if select_on == "dev" else mean
    thresholds = read_model_config("models/ensemble").tasks["sst"].thresholds
    assert thresholds == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(indicators(dev["prediction"].to_numpy(), 5), probabilities > thresholds)


def test_soup_of_different_architectures_is_an_error(workspace):
    with pytest.raises(UserError, match=r"heads\.task_qqp\S* is .1, 16. in member base and .2, 16. in member second"):
        build(workspace, "uniform_soup", {"base": 1, "second": 2}, second={"tasks": {"qqp": TWO_OUTPUTS}})
