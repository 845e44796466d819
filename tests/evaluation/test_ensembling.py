import itertools
import statistics

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit, softmax

from bertrio.core.errors import UserError
from bertrio.core.tasks import Predicted
from bertrio.evaluation import ensembling
from bertrio.evaluation.ensembling import RULES, combine, in_selection, mark_selection, pick_members
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import predicted_of, prediction_rows, write_predictions
from tests.evaluation.tables import QQP, SST, TASKS
from tests.evaluation.tables import predictions as member

FIXED = [rule for rule in RULES if rule != "greedy"]  # greedy breaks ties by the order of members


def rows_of(task, outputs):
    """Dev rows of a member with these outputs."""
    ids = [str(i) for i in range(len(outputs))]
    return prediction_rows(task, "dev", ids, np.zeros(len(ids)), np.asarray(outputs))


def classes(*probabilities):
    """Dev rows of a member for sst with these probabilities."""
    return rows_of(SST, np.log(np.maximum(np.array(probabilities, float), 1e-300)))


def combined(members, rule, answers=None):
    """The combined table, without the weights."""
    return combine(members, rule, TASKS, answers)[0]


@pytest.mark.parametrize("rule", FIXED)
def test_order_of_members_does_not_change_the_bytes(rule, tmp_path):
    members = {str(seed): member(seed) for seed in range(3)}
    results = set()
    for names in itertools.permutations(members):
        write_predictions(combined({name: members[name] for name in names}, rule), tmp_path / "a")
        results.add((tmp_path / "a").read_bytes())
    assert len(results) == 1


@pytest.mark.parametrize("count", [3, 4])
def test_vote_and_mean_by_hand(count):
    members = {str(seed): member(seed) for seed in range(count)}
    rules = (("vote", statistics.median), ("mean", statistics.fmean))
    tables = {rule: combined(members, rule) for rule, _ in rules}
    for position in members["0"].index:
        rows = [frame.loc[position] for frame in members.values()]
        results = {rule: table.loc[position] for rule, table in tables.items()}
        if rows[0]["task"] == "sts":
            for (rule, average), column in itertools.product(rules, ("prediction", "score")):
                assert results[rule][column] == pytest.approx(average([row[column] for row in rows]))
            continue
        probabilities = sum(row["probabilities"] for row in rows) / count
        for result in results.values():
            np.testing.assert_allclose(result["probabilities"], probabilities)
        most_frequent = statistics.multimode(row["prediction"] for row in rows)
        assert results["vote"]["prediction"] == max(most_frequent, key=lambda label: probabilities[int(label)])
        assert results["mean"]["prediction"] == probabilities.argmax()


def test_mean_logits_by_formula():
    logits = np.random.default_rng(3).normal(0, 3, (4, 30, 5))
    table = combined({str(i): rows_of(SST, outputs) for i, outputs in enumerate(logits)}, "mean_logits")
    expected = softmax(logits.mean(axis=0), axis=1)
    np.testing.assert_allclose(np.stack(table["probabilities"]), expected, rtol=1e-10)
    assert table["prediction"].tolist() == expected.argmax(axis=1).tolist()
    single = logits[:, :, :1]
    table = combined({str(i): rows_of(QQP, outputs) for i, outputs in enumerate(single)}, "mean_logits")
    np.testing.assert_allclose(np.stack(table["probabilities"])[:, 1], expit(single.mean(axis=0)[:, 0]), rtol=1e-10)


def test_mean_logits_of_a_probability_of_zero_by_hand():
    sure, unsure = classes([1, 0, 0, 0, 0]), classes([0, 0.4, 0.3, 0.2, 0.1])
    row = combined({"a": sure, "b": unsure}, "mean_logits").loc[0]
    by_hand = np.sqrt(np.maximum([1, 0, 0, 0, 0], 1e-12) * np.maximum([0, 0.4, 0.3, 0.2, 0.1], 1e-12))
    np.testing.assert_allclose(row["probabilities"], by_hand / by_hand.sum(), rtol=1e-6)
    assert row["prediction"] == 0


@pytest.mark.parametrize("rule", FIXED)
def test_ties_go_to_the_lowest_class(rule):
    yes = np.arange(1, 100) / 100  # each against its complement: 0.5 up to rounding
    members = {"a": rows_of(QQP, logit(yes)[:, None]), "b": rows_of(QQP, logit(1 - yes)[:, None])}
    assert (combined(members, rule)["prediction"] == 0).all()
    members = {"a": classes([0.1, 0.7, 0.2, 0, 0]), "b": classes([0.7, 0.1, 0.2, 0, 0])}
    assert combined(members, rule)["prediction"].tolist() == [0]


def test_members_that_do_not_fit_together_are_an_error():
    first, second = member(0), member(1)
    for other in (second[second["task"] != "sts"], second.assign(label=second["label"] + 1)):
        with pytest.raises(UserError, match="members a and b have different rows or labels; run"):
            combined({"a": first, "b": other}, "vote")
    unlabelled = first.assign(label=np.nan)
    with pytest.raises(UserError, match="found 0 and 0 labelled rows of task sst, expected at least 1 in each"):
        combined({"a": unlabelled, "b": unlabelled}, "greedy")


@pytest.mark.parametrize("rule", RULES)
def test_a_task_that_one_member_answers_keeps_its_predictions(rule):
    members = {"a": member(0), "b": member(1), "c": member(2)}
    table, weights = combine(members, rule, TASKS, {"a": ["sst"], "b": ["sts", "qqp"], "c": ["qqp"]})
    for task, name in (("sst", "a"), ("sts", "b")):
        pd.testing.assert_frame_equal(*(rows[rows["task"] == task] for rows in (table, members[name])))
        assert weights[task] == {name: 1.0}
    assert list(weights) == list(TASKS) and list(weights["qqp"]) == ["b", "c"]


def scores(*rows):
    """Scores of members, clipped to no range."""
    return [Predicted(np.array(row, float), None, np.array(row, float)) for row in rows]


def test_members_are_picked_with_replacement_while_scores_improve(monkeypatch):
    def closeness(to):
        return lambda result: -float(np.abs(result.values - to).sum())

    three = scores([0.0], [1.0], [10.0])
    assert pick_members(three, closeness(1.0)) == [0, 1, 0]
    assert pick_members(three, closeness(4.0)) == [0, 2 / 3, 1 / 3]  # 1, then 5.5, then exactly 4
    assert pick_members(scores([2.0], [2.0]), closeness(2.0)) == [1, 0]  # ties go to the first
    monkeypatch.setattr(ensembling, "MAX_PICKS", 2)
    assert pick_members(three, closeness(4.0)) == [0, 0.5, 0.5]


def test_greedy_is_the_weighted_mean():
    rows = [predicted_of(member(seed)[member(seed)["task"] == "sst"]) for seed in range(3)]
    result = ensembling.combine_predictions(rows, "greedy", [3, 0, 1])
    np.testing.assert_allclose(result.probabilities, 0.75 * rows[0].probabilities + 0.25 * rows[2].probabilities)

    assert ensembling.combine_predictions(rows, "greedy", [0, 1, 0]) is rows[1]


def test_greedy_beats_members_on_selection_rows_and_ignores_dev_rows():
    members = {str(i): member(i) for i in range(4)}
    table, weights = combine(members, "greedy", TASKS)
    greedy = evaluate_predictions(table, TASKS)["selection"]
    single = [evaluate_predictions(mark_selection(frame), TASKS)["selection"] for frame in members.values()]
    for name, task in TASKS.items():
        metric = task.target.metrics[0]
        assert greedy[name][metric] >= max(metrics[name][metric] for metrics in single) - 1e-12
        assert sum(weights[name].values()) == pytest.approx(1) and list(weights[name]) == list(members)
    dev = members["0"]["split"] == "dev"
    assert table["split"][~dev].eq("test").all() and set(table["split"][dev]) == {"dev", "selection"}
    assert table["id"].equals(members["0"]["id"])
    labels = members["0"]["label"]  # the same in all members
    flipped = labels.where(table["split"] != "dev", 1 - labels.clip(upper=1))
    others = {name: frame.assign(label=flipped) for name, frame in members.items()}
    assert combine(others, "greedy", TASKS)[1] == weights


@pytest.mark.parametrize("form", ["{}", "{:025x}"])
def test_selection_halves_depend_on_ids_and_are_balanced(form):
    ids = [form.format(i) for i in range(2000)]
    half = in_selection("sst", ids)
    assert 0.45 < half.mean() < 0.55
    assert in_selection("sst", ids[::-1]).tolist() == half[::-1].tolist()
