import itertools
import statistics
import time

import numpy as np
import pandas as pd
import pytest

from bertrio.ensembling import COMBINE, combine, combine_members
from bertrio.errors import UserError
from bertrio.evaluation.predictions import prediction_rows, write_predictions
from bertrio.tasks import Binary, Ordered, Score, Task

TASKS = {
    "sst": Task("sst", "single", "cross", Ordered(5)),
    "qqp": Task("qqp", "pair", "cross", Binary()),
    "sts": Task("sts", "pair", "cross", Score(0.0, 5.0)),
}


def member(seed, rows=40):
    """A made-up member: all tasks, dev and test."""
    generator, ids = np.random.default_rng(seed), [str(i) for i in range(rows)]
    parts = [
        prediction_rows(task, split, ids, labels, generator.normal(2, 3, (rows, task.target.size)))
        for task in TASKS.values()
        for split, labels in (("dev", np.ones(rows)), ("test", np.full(rows, np.nan)))
    ]
    return pd.concat(parts, ignore_index=True)


def classes(*probabilities):
    """A member's rows of sst dev, with the probabilities given."""
    logits = np.log(np.maximum(np.array(probabilities, float), 1e-300))
    return prediction_rows(TASKS["sst"], "dev", [str(i) for i in range(len(logits))], np.zeros(len(logits)), logits)


def binary(*yes):
    """A member's rows of qqp dev, with the probabilities of yes given."""
    probabilities = np.array(yes, float)
    logits = np.log(probabilities / (1 - probabilities))[:, None]
    return prediction_rows(TASKS["qqp"], "dev", [str(i) for i in range(len(logits))], np.zeros(len(logits)), logits)


def file_bytes(frame, path):
    write_predictions(frame, path)
    return path.read_bytes()


@pytest.mark.parametrize("how", COMBINE)
def test_one_member_is_the_identity(how, tmp_path):
    alone = combine({"base": member(0)}, how, TASKS)
    assert file_bytes(alone, tmp_path / "a") == file_bytes(member(0), tmp_path / "b")


@pytest.mark.parametrize("how", COMBINE)
def test_members_that_agree_keep_their_predictions(how):
    same = combine({name: member(0) for name in "abc"}, how, TASKS)
    np.testing.assert_allclose(same["prediction"], member(0)["prediction"], rtol=1e-15)
    np.testing.assert_allclose(same["score"], member(0)["score"], rtol=1e-15)


@pytest.mark.parametrize("how", COMBINE)
def test_order_of_members_does_not_change_a_byte(how, tmp_path):
    members = {str(seed): member(seed) for seed in range(4)}
    results = {
        file_bytes(combine({name: members[name] for name in order}, how, TASKS), tmp_path / "a")
        for order in itertools.permutations(members)
    }
    assert len(results) == 1


@pytest.mark.parametrize("count", [3, 4])
def test_vote_is_the_mode_for_classes_and_the_median_for_scores(count):
    members = {str(seed): member(seed) for seed in range(count)}
    voted = combine(members, "vote", TASKS)
    for place, row in voted.iterrows():
        own = [frame.loc[place] for frame in members.values()]
        values = [one["prediction"] for one in own]
        if row["task"] == "sts":
            assert row["prediction"] == pytest.approx(statistics.median(values))
            assert row["score"] == pytest.approx(statistics.median(one["score"] for one in own))
        else:
            summed = sum(one["probabilities"] for one in own)
            assert row["prediction"] == max(statistics.multimode(values), key=lambda value: summed[int(value)])


def test_mean_is_of_probabilities_and_of_clipped_scores():
    members = {str(seed): member(seed) for seed in range(3)}
    meant = combine(members, "mean", TASKS)
    for place, row in meant.iterrows():
        own = [frame.loc[place] for frame in members.values()]
        if row["task"] == "sts":
            assert row["prediction"] == pytest.approx(sum(one["prediction"] for one in own) / 3)
            assert row["score"] == pytest.approx(sum(one["score"] for one in own) / 3)
            assert row["probabilities"] is None
        else:
            expected = sum(one["probabilities"] for one in own) / 3
            np.testing.assert_allclose(row["probabilities"], expected)
            assert row["prediction"] == (expected[1] > 0.5 if row["task"] == "qqp" else expected.argmax())
            assert np.isnan(row["score"])


def test_both_ways_give_the_same_probabilities():
    members = {str(seed): member(seed) for seed in range(3)}
    one, other = (combine(members, how, TASKS)["probabilities"].dropna() for how in COMBINE)
    assert np.array_equal(np.concatenate(one.to_list()), np.concatenate(other.to_list()))


def test_a_tied_vote_goes_to_the_larger_summed_probability():
    sure, unsure = classes([0, 0, 0, 0.9, 0.1]), classes([0.5, 0.3, 0.2, 0, 0])
    assert combine({"a": sure, "b": unsure}, "vote", TASKS)["prediction"].tolist() == [3]


def test_a_class_without_most_votes_does_not_win_by_probability():
    members = {"a": classes([0.6, 0, 0.4, 0, 0]), "b": classes([0.6, 0, 0.4, 0, 0]), "c": classes([0, 0, 1, 0, 0])}
    assert combine(members, "vote", TASKS)["prediction"].tolist() == [0]
    assert combine(members, "mean", TASKS)["prediction"].tolist() == [2]


@pytest.mark.parametrize("how", COMBINE)
def test_what_is_equal_on_paper_goes_to_the_lowest_class(how):
    yes = np.arange(1, 100) / 100  # each against its complement: 0.5 on paper, off by a rounding error in floats
    assert (combine({"a": binary(*yes), "b": binary(*(1 - yes))}, how, TASKS)["prediction"] == 0).all()
    members = {"a": classes([0.1, 0.7, 0.2, 0, 0]), "b": classes([0.7, 0.1, 0.2, 0, 0])}
    assert combine(members, how, TASKS)["prediction"].tolist() == [0]


def test_rows_are_matched_by_task_split_and_id(tmp_path):
    members = {str(seed): member(seed) for seed in range(3)}
    shuffled = {**members, "2": members["2"].sample(frac=1, random_state=0), "1": members["1"].iloc[::-1]}
    for how in COMBINE:
        results = {file_bytes(combine(given, how, TASKS), tmp_path / "a") for given in (members, shuffled)}
        assert len(results) == 1


def test_members_over_different_rows_are_an_error_that_names_them_and_the_rows():
    longer = member(1).assign(id=lambda frame: frame["id"].where(frame.index != 45, "new"))
    expected = r"members a and c .*1 only in a \(first: task sst, split test, id '5'\); 1 only in c .*'new'"
    with pytest.raises(UserError, match=expected):
        combine({"a": member(0), "b": member(2), "c": longer}, "vote", TASKS)
    with pytest.raises(UserError, match="members a and b .*80 only in a .*task sts, split dev, id '0'"):
        combine({"a": member(0), "b": member(1)[lambda frame: frame["task"] != "sts"]}, "vote", TASKS)


def test_members_with_different_labels_or_classes_are_errors():
    with pytest.raises(UserError, match="members a and b have different labels for task sst, .* id '0': 1.0 and 2.0"):
        combine({"a": member(0), "b": member(1).assign(label=2.0)}, "vote", TASKS)
    fewer = classes([0.5, 0.5, 0, 0, 0]).assign(probabilities=[np.array([0.5, 0.5])])
    with pytest.raises(UserError, match="task sst: .*a: 5; b: 2"):
        combine({"a": classes([1, 0, 0, 0, 0]), "b": fewer}, "mean", TASKS)


def test_what_params_do_not_know_is_an_error_that_lists_what_they_do():
    with pytest.raises(UserError, match="ensemble.combine: found 'best', expected one of vote, mean"):
        combine({"a": member(0)}, "best", TASKS)
    with pytest.raises(UserError, match="expected at least one"):
        combine({}, "vote", TASKS)
    with pytest.raises(UserError, match="ensemble member b: task sst, split dev, id '0' stands twice"):
        combine({"a": member(0), "b": pd.concat([member(0), member(0)])}, "vote", TASKS)


def test_members_are_read_from_and_written_to_files(tmp_path):
    for seed in (0, 1):
        write_predictions(member(seed), tmp_path / f"m{seed}" / "predictions.parquet")
    combine_members(["m0", "m1"], "mean", TASKS, tmp_path, tmp_path / "ensemble.parquet")
    expected = file_bytes(combine({"m0": member(0), "m1": member(1)}, "mean", TASKS), tmp_path / "a")
    assert (tmp_path / "ensemble.parquet").read_bytes() == expected
    with pytest.raises(UserError, match="m2.predictions.parquet: can't be read"):
        combine_members(["m0", "m2"], "mean", TASKS, tmp_path, tmp_path / "ensemble.parquet")


def test_many_rows_and_members_take_seconds():
    logits = np.random.default_rng(0).normal(size=(50_000, 5))
    table = prediction_rows(TASKS["sst"], "dev", [str(i) for i in range(len(logits))], np.zeros(len(logits)), logits)
    start = time.perf_counter()
    combine({str(i): table for i in range(10)}, "vote", TASKS)
    assert time.perf_counter() - start < 10
