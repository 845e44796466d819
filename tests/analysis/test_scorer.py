import numpy as np
import pandas as pd
import pytest

from bertrio.analysis.figures import model_caption
from bertrio.analysis.scorer import Scorer
from bertrio.config import build_tasks
from bertrio.core.errors import UserError
from bertrio.data.table import read_table
from bertrio.evaluation.predictions import read_predictions


def load(params):
    return Scorer.load(params, build_tasks(params), "models")


def dev(task):
    return read_table(f"data/splits/{task}/dev.parquet")


def of(table, task, column):
    return table[(table["task"] == task) & (table["split"] == "dev")][column].to_list()


def test_it_says_of_the_rows_of_dev_what_the_run_said(finished):
    scorer, table = load(finished.params()), read_predictions("predictions/ensemble.parquet")
    for task in ("sst", "qqp", "sts"):
        found = scorer.predict(task, dev(task))
        np.testing.assert_array_equal(found.values, of(table, task, "prediction"))
        if found.probabilities is None:
            np.testing.assert_array_equal(found.scores, of(table, task, "score"))
        else:
            np.testing.assert_array_equal(found.probabilities, np.stack(of(table, task, "probabilities")))


def test_a_pair_encoded_apart_is_the_mean_of_its_texts(run):
    overrides = {"tasks": {"sts": {"encoding": "bi", "head": "siamese"}}}
    params = run.params(**overrides)
    run.train()
    scorer, rows = load(params), dev("sts")
    alone = [scorer.embed("sst", pd.DataFrame({"text": rows[column]})) for column in ("text_a", "text_b")]
    np.testing.assert_allclose(scorer.embed("sts", rows), (alone[0] + alone[1]) / 2, atol=1e-5)


def test_each_task_is_asked_of_the_first_member_that_answers_it(run):
    members = {"base": {"answers": ["qqp", "sts"]}, "second": {"encoder": {"max_length": 32}}}
    params = run.params(ensemble={"members": members})
    for name in members:
        run.train(name)
    models = load(params).models
    assert {task: model.name for task, model in models.items()} == {"sst": "second", "qqp": "base", "sts": "base"}
    assert models["qqp"].network is models["sts"].network
    assert (models["sst"].config.encoder.max_length, models["qqp"].config.encoder.max_length) == (32, 128)


def test_a_soup_speaks_for_all_members(run):
    members = {"base": {"finetune": {"eval_batch_size": 3}}, "second": {}}
    params = run.params(ensemble={"members": members})
    run.train()
    soup = run.train("second", folder="models/ensemble")  # other weights than those of the first member
    scorer = load(params)
    for task in ("sst", "qqp", "sts"):
        assert scorer.models[task].name == "ensemble"
        assert scorer.models[task].batch_size == params.finetune.eval_batch_size != 3
        found, table = scorer.predict(task, dev(task)), of(soup, task, "prediction")
        np.testing.assert_array_equal(found.values, table)
        if found.probabilities is not None:
            np.testing.assert_array_equal(found.probabilities, np.stack(of(soup, task, "probabilities")))


def test_whose_figures_they_are_is_said_where_the_ensemble_is_more_than_one_model():
    asked = {task: {"model": name} for task, name in {"sst": "base", "qqp": "second", "sts": "base"}.items()}
    caption = model_caption(asked, ["base", "second"])
    assert caption.endswith("not the ensemble: base for sst, second for qqp, base for sts.")
    soup = {task: {"model": "ensemble"} for task in asked}
    assert model_caption(asked, ["base"]) == model_caption(soup, ["base", "second"]) == ""
    assert model_caption({}, ["base", "second"]) == ""


def test_a_missing_model_is_an_error_that_says_what_makes_it(run):
    with pytest.raises(UserError, match="members/base/encoder/config.json: is missing; an earlier stage makes it"):
        load(run.params())
