import hashlib
import random
from collections import Counter

import pytest

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task, build_target
from bertrio.data.sources import sample
from bertrio.data.sources.sample import generate, load_corpus, load_tasks

NAMES = ("sst", "qqp", "sts")
DIGEST = "070df176ee61e05ba87cccfd75d95b545728d3f1e51337111d1ee32414cb7359"  # of rows of seed 3


def texts(table):
    return [text for column in table.columns[1:-1] for text in table[column]]


@pytest.fixture
def tables(data_params, tasks):
    return load_tasks(data_params(sample={"train_rows": 2000, "dev_rows": 300, "test_rows": 200}), tasks).tables


def test_rows_are_the_same_in_every_process_and_version():
    rows = [generate(name, "train", 200, 3, 0.1).to_csv(index=False) for name in NAMES]
    assert hashlib.sha256("".join(rows).encode()).hexdigest() == DIGEST


def test_table_layout(tables, tasks):
    for name, task in tasks.items():
        assert {split: len(table) for split, table in tables[name].items()} == {"train": 2000, "dev": 300, "test": 200}
        for split, table in tables[name].items():
            assert list(table.columns) == ["id", *task.text_columns, "label"]
            assert table["label"].dtype == "float64" and table["label"].map(task.target.label_problem).isna().all()
            assert table["id"].is_unique and table["id"].str.fullmatch(rf"{name}-{split}-\d{{5}}").all()


def test_splits_share_no_text_and_repeat_no_pair(tables):
    for splits in tables.values():
        train, dev, test = (set(texts(splits[split])) for split in ("train", "dev", "test"))
        assert not (train & dev or train & test or dev & test)
        for table in splits.values():
            pairs = [tuple(sorted(row[1:-1])) for row in table.itertuples(index=False)]
            assert len(pairs) == len(set(pairs)) and all(len(set(pair)) == len(pair) for pair in pairs)


def test_dev_and_test_do_not_depend_on_the_size_of_train(data_params, tasks):
    sizes = {"dev_rows": 50, "test_rows": 50}
    few, more = (load_tasks(data_params(sample={**sizes, "train_rows": rows}), tasks).tables for rows in (10, 100))
    assert all(few[name][split].equals(more[name][split]) for name in tasks for split in ("dev", "test"))


def test_similarity_is_symmetric_and_falls_with_every_edit():
    rng = random.Random("events")
    for _ in range(200):
        event = sample._event(rng)
        edited = sample._edited(rng, event)
        assert sample.similarity(event, event) == 5
        assert sample.similarity(event, edited) == sample.similarity(edited, event) < 5


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task("nli", "pair", "cross", build_target("classes", 3)), r"nli: .* has sst \(single\), qqp \(pair\), sts"),
        (Task("sst", "pair", "cross", build_target("ordered", 5)), r"tasks.sst: found a task of kind pair"),
        (Task("sst", "single", "cross", build_target("ordered", 3)), r"tasks.sst.target: .* label out of range"),
    ],
)
def test_unknown_or_mismatched_task_is_an_error(data_params, task, message):
    with pytest.raises(UserError, match=message):
        load_tasks(data_params(sample={"train_rows": 50, "dev_rows": 50, "test_rows": 50}), {task.name: task})


def test_too_many_rows_for_the_grammar_is_an_error(monkeypatch):
    monkeypatch.setitem(sample.GRAMMARS, "sst", lambda rng: (("Good.",), 3.0))
    with pytest.raises(UserError, match="data.sample.dev_rows: found 5, .* ask for 1 or fewer"):
        generate("sst", "dev", 5, 0, 0.0)


@pytest.mark.parametrize("name", ["imdb", "multinli", "sick"])
def test_corpus_has_the_requested_number_of_texts(data_params, name):
    texts = list(load_corpus(data_params(), name, 20, skipped := Counter()))
    assert len(texts) == 20 and not skipped
    assert list(load_corpus(data_params(), name, 7, skipped)) == texts[:7]
