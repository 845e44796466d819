import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter

import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task, build_target
from bertrio.data.sources import sample
from bertrio.data.sources.sample import generate, load_corpus, load_tasks

NAMES = ("sst", "qqp", "sts")


def digest() -> str:
    """A hash of some rows of every task."""
    rows = [generate(name, "train", 200, 3, 0.1).to_csv() for name in NAMES]
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def texts(table):
    return [text for column in table.columns[1:-1] for text in table[column]]


@pytest.fixture(scope="module")
def clean():
    """Rows without label noise."""
    return {name: generate(name, "train", 2000, 0, 0.0) for name in NAMES}


@pytest.fixture
def tables(data_params, tasks):
    return load_tasks(data_params(sample={"train_rows": 2000, "dev_rows": 300, "test_rows": 200}), tasks).tables


def test_rows_are_the_same_in_every_process():
    code = "from test_sample import digest; print(digest())"
    for seed in ("1", "2"):
        path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        found = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert found.strip() == digest()


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_makes_other_rows(name):
    assert set(texts(generate(name, "dev", 50, 0, 0.0))) != set(texts(generate(name, "dev", 50, 1, 0.0)))


def test_tables_have_the_layout_that_was_asked_for(tables, tasks):
    for name, task in tasks.items():
        assert {split: len(table) for split, table in tables[name].items()} == {"train": 2000, "dev": 300, "test": 200}
        for split, table in tables[name].items():
            assert list(table.columns) == ["id", *task.text_columns, "label"]
            assert table["label"].dtype == "float64" and table["label"].map(task.target.label_problem).isna().all()
            assert table["id"].is_unique and table["id"].str.fullmatch(rf"{name}-{split}-\d{{5}}").all()


def test_no_text_stands_in_two_splits_and_no_pair_twice_in_one(tables):
    for splits in tables.values():
        train, dev, test = (set(texts(splits[split])) for split in ("train", "dev", "test"))
        assert not (train & dev or train & test or dev & test)
        for table in splits.values():
            pairs = [tuple(sorted(row[1:-1])) for row in table.itertuples(index=False)]
            assert len(pairs) == len(set(pairs)) and all(len(set(pair)) == len(pair) for pair in pairs)


def test_dev_and_test_do_not_depend_on_the_size_of_train(data_params, tasks):
    few, more = (load_tasks(data_params(sample={"train_rows": rows, "dev_rows": 50, "test_rows": 50}), tasks).tables
                 for rows in (10, 100))  # fmt: skip
    for name in tasks:
        for split in ("dev", "test"):
            assert few[name][split].equals(more[name][split])


def test_sentences_look_like_sentences(clean):
    for name, table in clean.items():
        for text in texts(table):
            assert re.fullmatch(r"[A-Z][A-Za-z]*(,? [A-Za-z]+)+" + {"sst": r"\.", "qqp": r"\?", "sts": ""}[name], text)
            assert not re.search(r"\b(a [aeiou]|an [^aeiou])", text), text
            assert not re.search(r"\b(\w+) \1\b", text), text


def test_all_labels_come_often(clean):
    sst, qqp = (clean[name]["label"].value_counts(normalize=True) for name in ("sst", "qqp"))
    assert len(sst) == 5 and sst.min() > 0.08 and sst.max() < 0.35
    assert len(qqp) == 2 and qqp.min() > 0.35
    sts = clean["sts"]["label"]
    assert sts.min() == 0 and sts.max() == 5 and sts.std() > 1.2 and sts.nunique() > 15


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("name", NAMES)
def test_label_noise_is_the_share_of_wrong_labels(monkeypatch, name, noise):
    grammar, true = sample.GRAMMARS[name], {}

    def watched(rng):
        texts, label = grammar.row(rng)
        true.setdefault(texts, label)
        return texts, label

    monkeypatch.setitem(sample.GRAMMARS, name, grammar._replace(row=watched))
    table = generate(name, "train", 2000, 0, noise)
    wrong = [label != true[tuple(row)] for *row, label in table.iloc[:, 1:].itertuples(index=False)]
    assert abs(sum(wrong) / len(wrong) - noise) <= 0.15 * noise


def degree(monkeypatch, *opinions, joint):
    """The value of a review of `opinions` joined by `joint`."""
    clauses = iter(opinions)
    monkeypatch.setattr(sample, "_clause", lambda rng, subject: next(clauses))
    monkeypatch.setattr(sample, "JOINTS", {joint: sample.JOINTS[joint]})
    monkeypatch.setattr(sample, "_chance", lambda rng, probability: False)
    return sample._review(random.Random(0)).value


@pytest.mark.parametrize(
    ("joint", "later_wins"), [("{}, but {}", True), ("although {}, {}", True), ("{}, although {}", False)]
)
def test_the_main_clause_decides_sentiment(monkeypatch, joint, later_wins):
    good, bad = sample._Opinion(2.0, "good"), sample._Opinion(-2.0, "bad")
    assert (degree(monkeypatch, good, bad, joint=joint) < 0) == later_wins
    assert (degree(monkeypatch, bad, good, joint=joint) > 0) == later_wins


def overlap(a, b):
    a, b = set(a.lower().split()), set(b.lower().split())
    return len(a & b) / len(a | b)


def test_a_true_paraphrase_can_share_few_words_and_a_near_miss_many(clean):
    table = clean["qqp"]
    shared = pd.Series([overlap(a, b) for a, b in zip(table["text_a"], table["text_b"], strict=True)])
    assert (shared[table["label"] == 0] > 0.5).mean() > 0.2
    assert (shared[table["label"] == 1] < 0.4).mean() > 0.2


def test_similarity_is_symmetric_and_falls_with_every_edit():
    rng = random.Random("events")
    for _ in range(200):
        event = sample._event(rng)
        edited = sample._edited(rng, event)
        assert sample.similarity(event, event) == 5
        assert sample.similarity(event, edited) == sample.similarity(edited, event) < 5


def test_an_unknown_task_is_an_error_that_lists_the_known(data_params, tasks):
    other = Task("nli", "pair", "cross", build_target("classes", 3))
    with pytest.raises(UserError, match="no task nli, only sst, qqp, sts"):
        load_tasks(data_params(), {**tasks, "nli": other})


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task("sst", "pair", "cross", build_target("ordered", 5)), r"tasks.sst.kind: found pair"),
        (Task("sst", "single", "cross", build_target("ordered", 3)), r"tasks.sst.target: .* label out of range"),
    ],
)
def test_a_task_of_another_shape_is_an_error(data_params, task, message):
    with pytest.raises(UserError, match=message):
        load_tasks(data_params(sample={"train_rows": 50, "dev_rows": 50, "test_rows": 50}), {"sst": task})


def test_more_rows_than_the_grammar_has_is_an_error(monkeypatch):
    monkeypatch.setitem(sample.GRAMMARS, "sst", sample.GRAMMARS["sst"]._replace(row=lambda rng: (("Good.",), 3.0)))
    with pytest.raises(UserError, match="data.sample.dev_rows: found 5, .* ask for 1 or fewer"):
        generate("sst", "dev", 5, 0, 0.0)


@pytest.mark.parametrize("name", ["imdb", "multinli", "sick"])
def test_a_corpus_has_as_many_texts_as_asked_for(data_params, name):
    params = data_params(sample={"train_rows": 7})
    skipped = Counter()
    assert len(list(load_corpus(params, name, 20, skipped))) == 20 and not skipped
    assert list(load_corpus(params, name, None, skipped)) == list(load_corpus(params, name, 20, skipped))[:7]
