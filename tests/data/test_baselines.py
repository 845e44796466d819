import numpy as np
import pandas as pd
import pytest

from bertrio.data.baselines import simple_baselines, word_overlap_pearson
from bertrio.data.sources.sample import load_tasks


def table(labels, **texts):
    return pd.DataFrame({"id": [str(number) for number in range(len(labels))], **texts, "label": labels})


def test_word_counts_do_not_solve_the_sample(data_params, tasks):
    scores = simple_baselines(load_tasks(data_params(sample={"train_rows": 6000}), tasks).tables, tasks)
    assert 0.35 < scores["sst"]["bag_of_words"]["accuracy"] < 0.55
    assert 0.5 < scores["qqp"]["bag_of_words"]["accuracy"] < 0.7
    assert 0.3 < scores["sts"]["word_overlap"]["pearson"] < 0.65


def test_bag_of_words_separates_pairs_by_shared_words(tasks):
    words = ["tea", "milk", "rice", "salt"]
    pairs = [(a, b) for a in words for b in words]
    rows = table([float(a == b) for a, b in pairs], text_a=[a for a, _ in pairs], text_b=[b for _, b in pairs])
    scores = simple_baselines({"qqp": {"train": rows, "dev": rows}}, {"qqp": tasks["qqp"]})
    assert scores == {"qqp": {"bag_of_words": {"accuracy": 1.0}}}


def test_word_overlap_ignores_case_and_punctuation():
    rows = table([5.0, 0.0, 2.5], text_a=["A b.", "a b", "a b c"], text_b=["B, a", "c d", "a b d"])
    assert word_overlap_pearson(rows) == pytest.approx(1.0)


@pytest.mark.parametrize("dev", [table([np.nan], text=["a film"]), table([], text=[])])
def test_task_without_labelled_dev_rows_has_no_baseline(tasks, dev):
    tables = {"train": table([1.0, 2.0], text=["a", "b"]), "dev": dev}
    assert simple_baselines({"sst": tables}, {"sst": tasks["sst"]}) == {}


def test_baseline_of_texts_without_words_or_a_single_class(tasks):
    no_words, one_class = table([1.0, 1.0, 2.0], text=["?", "!", "."]), table([3.0, 3.0], text=["a film", "a plot"])
    for rows, accuracy in ((no_words, 2 / 3), (one_class, 1.0)):
        scores = simple_baselines({"sst": {"train": rows, "dev": rows}}, {"sst": tasks["sst"]})
        assert scores["sst"]["bag_of_words"]["accuracy"] == accuracy
