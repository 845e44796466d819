import numpy as np
import pandas as pd

from bertrio.analysis.figures import model_caption
from bertrio.analysis.models import load_models
from bertrio.config import build_tasks
from bertrio.data.table import read_table


def load(params):
    return load_models(params, build_tasks(params), "models")


def dev(task):
    return read_table(f"data/splits/{task}/dev.parquet")


def assert_predicts(models, table, task):
    """Check that the task's model makes the table's predictions of dev."""
    predicted, expected = models[task].predict(task, dev(task)), table.query("task == @task and split == 'dev'")
    np.testing.assert_array_equal(predicted.values, expected["prediction"])
    if predicted.probabilities is not None:
        np.testing.assert_array_equal(predicted.probabilities, np.stack(expected["probabilities"]))
    else:
        np.testing.assert_array_equal(predicted.scores, expected["score"])


def test_pooled_vectors_of_a_bi_encoded_pair_are_those_of_its_texts(run):
    params = run.params(tasks={"sts": {"encoding": "bi", "head": "siamese"}})
    run.train()
    models, rows = load(params), dev("sts")
    singles = [pd.DataFrame({"text": rows[column]}) for column in ("text_a", "text_b")]
    expected = np.concatenate([models["sst"].pooled("sst", texts) for texts in singles], axis=1)
    np.testing.assert_allclose(models["sts"].pooled("sts", rows), expected, atol=1e-5)


def test_each_task_uses_the_first_member_that_answers_it(run):
    members = {"base": {"answers": ["qqp", "sts"]}, "second": {"encoder": {"max_length": 32}}}
    params = run.params(ensemble={"members": members})
    tables = {name: run.train(name) for name in members}
    models = load(params)
    assert {task: model.name for task, model in models.items()} == {"sst": "second", "qqp": "base", "sts": "base"}
    assert models["qqp"].network is models["sts"].network
    for task, name in (("sst", "second"), ("qqp", "base"), ("sts", "base")):
        assert_predicts(models, tables[name], task)
    assert (models["sst"].config.encoder.max_length, models["qqp"].config.encoder.max_length) == (32, 128)


def test_soup_replaces_all_members(run):
    members = {"base": {"finetune": {"eval_batch_size": 3}}, "second": {}}
    params = run.params(ensemble={"members": members})
    run.train()
    soup = run.train("second", folder="models/ensemble")  # weights that differ from the first member's
    models = load(params)
    for task in ("sst", "qqp", "sts"):
        assert models[task].name == "ensemble"
        assert models[task].batch_size == params.finetune.eval_batch_size != 3
        assert_predicts(models, soup, task)


def test_caption_names_the_members_used():
    figures = {"sst": {"model": "base"}, "qqp": {"model": "second"}}
    assert model_caption(figures, ["base", "second"]).endswith("not the ensemble: base for sst, second for qqp.")
    assert model_caption({"sst": {"model": "ensemble"}}, ["base", "second"]) == "", "a soup"
