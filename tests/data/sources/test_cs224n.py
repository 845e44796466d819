from collections import Counter

import numpy as np
import pytest

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task, build_target
from bertrio.data.sources import cs224n

QUORA = "\tid\tsentence1\tsentence2\tis_duplicate\n"
QUORA += '7\td1\tWhy?\t"""Why"" not?"\t0.0\n8\td2\tHow?\t\t\n9\td3\tWho\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "quora-train.csv").write_text(QUORA, encoding="utf-8")
    return tmp_path


def load(data_params, folder, tasks, *names):
    params = data_params(source="cs224n", path=str(folder))
    return cs224n.load_tasks(params, {name: tasks[name] for name in names})


def test_quoted_fields_are_read_and_damaged_rows_rejected(folder, data_params, tasks):
    data = load(data_params, folder, tasks, "qqp")
    assert data.tables["qqp"]["train"].values.tolist() == [["d1", "Why?", '"Why" not?', 0.0]]
    rejects = [(reject.file, reject.row, reject.reason) for reject in data.rejects]
    assert rejects == [("quora-train.csv", 3, "empty text"), ("quora-train.csv", 4, "wrong number of columns")]
    assert list(data.tables["qqp"]) == ["train"]  # missing splits are an error of the split stage


def test_missing_train_file_is_an_error(folder, data_params, tasks):
    with pytest.raises(UserError, match=r"sts-train\.csv, expected it for task sts"):
        load(data_params, folder, tasks, "sts")


@pytest.mark.parametrize(("name", "kind"), [("news", "single"), ("sst", "pair")])
def test_unknown_task_error_lists_the_known_ones(folder, data_params, name, kind):
    task = Task(name, kind, "cross", build_target("binary"))
    with pytest.raises(UserError, match=rf"tasks\.{task.name}: .*qqp \(pair\)"):
        load(data_params, folder, {task.name: task}, task.name)


def corpus(params, name, rows, skipped=None):
    return list(cs224n.load_corpus(params, name, rows, Counter() if skipped is None else skipped))


def test_corpora_are_read_and_subsampled(tmp_path, data_params):
    (tmp_path / "imdb.tsv").write_text('id\ttext\n1\t"Hamlet" is long\n2\t\n3\tShort.\n4\t"Long\n', encoding="utf-8")
    (tmp_path / "multinli.tsv").write_text("premise\thypothesis\tlabel\na \tb\tneutral\n", encoding="utf-8")
    (tmp_path / "sick.tsv").write_text("split\tsentence_a\tsentence_b\ntest\tx\ty\ntrain\tc\td\n", encoding="utf-8")
    params = data_params(corpora_path=str(tmp_path))
    assert corpus(params, "imdb", 10**6) == ['"Hamlet" is long', "Short.", '"Long']
    assert corpus(params, "multinli", 10**6) == ["a b"]
    assert corpus(params, "sick", 9) == ["c d"]
    (tmp_path / "imdb.tsv").write_text("text\n" + "".join(f"{row:03}\n" for row in range(400)), encoding="utf-8")
    sampled = corpus(params, "imdb", 100)
    assert sampled == sorted(set(sampled)) == corpus(params, "imdb", 100) and len(sampled) == 100
    assert 150 < np.mean([int(text) for text in sampled]) < 250  # from all rows, not the first ones


def test_unusable_rows_of_a_corpus_are_counted_by_reason(tmp_path, data_params):
    rows = [b"fine\tyes", b"\t ", b"caf\xe9\tno", b"one", b'"open\tyes', b'"open\ta\tb', b"last\tyes", b"\t"]
    (tmp_path / "multinli.tsv").write_bytes(b"\n".join([b"premise\thypothesis", *rows]))
    params, skipped = data_params(corpora_path=str(tmp_path)), Counter()
    assert corpus(params, "multinli", 10**6, skipped) == ["fine yes", '"open yes', "last yes"]
    assert skipped == {"empty text": 2, "not UTF-8": 1, "wrong number of columns": 1, "damaged quoting": 1}


def test_missing_corpus_is_an_error(tmp_path, data_params):
    with pytest.raises(UserError, match=r"no file .*imdb\.tsv.*mlm\.rows\.imdb to 0"):
        corpus(data_params(corpora_path=str(tmp_path)), "imdb", 1)


@pytest.mark.shared
def test_row_counts_of_the_course_data(shared, data_params, tasks):
    tasks = {**tasks, "cfimdb": Task("cfimdb", "single", "cross", build_target("classes", 2))}
    data = load(data_params, shared / "data" / "cs224n", tasks, *tasks)
    counts = {task: [len(table) for table in tables.values()] for task, tables in data.tables.items()}
    assert counts == {
        "sst": [8544, 1101, 2210], "qqp": [14149, 2021, 4042], "sts": [6040, 863, 1725], "cfimdb": [1707, 245, 488],
    }  # fmt: skip
    assert [(reject.file, reject.row) for reject in data.rejects] == [("quora-train.csv", n) for n in (14151, 14152)]


@pytest.mark.shared
def test_row_counts_of_the_corpora(shared, data_params):
    params = data_params(corpora_path=str(shared / "data" / "corpora"))
    counts = {name: len(corpus(params, name, 10**6)) for name in ("imdb", "multinli", "sick")}
    assert counts == {"imdb": 20000, "multinli": 20273, "sick": 4500}
