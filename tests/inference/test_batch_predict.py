import csv
import io
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrio.core.errors import UserError
from bertrio.core.tasks import Binary, Ordered, Score, Task, build_target
from bertrio.inference import batch_predict
from bertrio.inference.batch_predict import predict_file
from tests.inference.serve.conftest import FakePredictor

TARGETS = {"qqp": Binary(), "sts": Score(0.0, 5.0), "nli": build_target("classes", ["no", "maybe, perhaps", "yes"])}
PAIRS = {name: Task(name, "pair", "cross", target) for name, target in TARGETS.items()}
PREDICTOR = FakePredictor({"sst": Task("sst", "single", "cross", Ordered(3)), **PAIRS})


def predicted(text, task="sst", kind="tsv", **options):
    target = io.BytesIO()
    source = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    count = predict_file(PREDICTOR, task, kind, source, target, **options)
    return target.getvalue().decode(), count


ADDED = "prediction\tprediction_label\tp_0\tp_1\tp_2"
NLI = 'text_a,text_b,prediction,prediction_label,p_0,p_1,p_2\na,bbb,1,"maybe, perhaps",0.250000,0.500000,0.250000\n'
LONG = "x" * 50  # beyond the range of scores
STS = f"text_a,text_b,prediction,score\n{LONG},abc,5.000000,5.300000\n"


@pytest.mark.parametrize(
    ("task", "kind", "text", "expected"),
    [
        ("sst", "tsv", "id\ttext\n7\tabcd\n", f"id\ttext\t{ADDED}\n7\tabcd\t1\t1\t0.250000\t0.500000\t0.250000\n"),
        ("sst", "tsv", "text\tnote\n", f"text\tnote\t{ADDED}\n"),
        ("sst", "jsonl", "", ""),
        ("sts", "csv", f"text_a,text_b\n{LONG},abc\n", STS),
        ("nli", "csv", "text_a,text_b\na,bbb\n", NLI),
    ],
)
def test_rows_keep_their_fields_and_gain_predictions(task, kind, text, expected):
    assert predicted(text, task, kind) == (expected, (max(0, text.count("\n") - 1), 0))


def test_json_lines_keep_types_and_skip_unusable_lines(capsys):
    row = {"text": "abcd", "n": 3, "deep": [None, {"a": "é"}], "x": 1.5}
    lines = [json.dumps(row), "", '{"text": "ab", "half": "\\ud800"}', "{", '{"text": 3}', '{"text": null}']
    written, count = predicted("\ufeff" + "\n".join(lines), kind="jsonl", name="rows.jsonl")
    first, second = (json.loads(line) for line in written.splitlines())
    assert first == {**row, "prediction": 1, "prediction_label": "1", "p_0": 0.25, "p_1": 0.5, "p_2": 0.25}
    assert second["half"] == "\ud800" and second["prediction"] == 2 and count == (2, 3)
    assert capsys.readouterr().err.splitlines() == [
        "rows.jsonl: line 4: not valid JSON; left out",
        "rows.jsonl: line 5: text: text is not a string; left out",
        "rows.jsonl: line 6: text: missing field; left out",
    ]


def parquet(columns):
    pq.write_table(pa.table(columns), file := io.BytesIO())
    return file.getvalue()


def test_parquet_keeps_its_columns_and_gains_predictions(monkeypatch, capsys):
    monkeypatch.setattr(batch_predict, "CHUNK_ROWS", 2)
    rows = pa.table({"text": ["a", None, "abc", "ab"], "when": pa.array([1, 2, None, 4], pa.timestamp("us"))})
    content, target = parquet(rows), io.BytesIO()
    assert predict_file(PREDICTOR, "sst", "parquet", io.BytesIO(content), target, {}, "x.parquet") == (3, 1)
    written = pq.read_table(target)
    assert written.column("when").equals(rows.take([0, 2, 3]).column("when"))
    assert written.column_names == ["text", "when", "prediction", "prediction_label", "p_0", "p_1", "p_2"]
    assert written.column("prediction").to_pylist() == [1, 0, 2]
    assert "x.parquet: row 2: text: missing field; left out" in capsys.readouterr().err
    for task, wrong, message in (
        ("qqp", b"text\n", "can't be read as Parquet"),
        ("qqp", content, "expected 'text_a'"),
        ("sst", parquet({"text": [b"a"]}), "x.parquet: column text: found the type binary, expected text"),
    ):
        with pytest.raises(UserError, match=message):
            predict_file(PREDICTOR, task, "parquet", io.BytesIO(wrong), target, {}, "x.parquet")


@pytest.mark.parametrize("texts", [[], ["", None]])
def test_parquet_without_usable_rows_keeps_column_types(texts):
    target = io.BytesIO()
    source = io.BytesIO(parquet({"text": pa.array(texts, pa.string())}))
    assert predict_file(PREDICTOR, "sst", "parquet", source, target, {}, "x.parquet") == (0, len(texts))
    assert list(map(str, pq.read_schema(target).types)) == ["string", "int64", "string", *["double"] * 3]


@pytest.mark.parametrize(("kind", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_fields_survive_a_round_trip(kind, delimiter):
    rows = [["a", 'say "this"', "two\nlines"], ["b", "x,y\tz", "\rend\r\n"]]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([["text", "b", "c"], *rows])
    written, count = predicted(text.getvalue(), kind=kind)
    assert count == (2, 0)
    assert [row[:3] for row in csv.reader(io.StringIO(written, newline=""), delimiter=delimiter)][1:] == rows


def test_columns_may_have_other_names():
    text = "sentence2\tid\tsentence1\nbcd\t1\ta\n"
    written, _ = predicted(text, "qqp", columns={"text_a": "sentence1", "text_b": "sentence2"})
    assert written.splitlines()[1].startswith("bcd\t1\ta\t0\t")
    with pytest.raises(UserError, match="--columns: found 'texta', expected text_a or text_b, as in text_a=NAME"):
        predicted(text, "qqp", columns={"texta": "sentence1"})
    for kind, text in (("csv", "id,q 1,q2\nbcd,1,a\n"), ("jsonl", '{"q 1": "a", "q2": "b"}\n')):
        with pytest.raises(UserError, match="rows: found .*'q 1', .*expected 'text_a', .*'text_a=q 1' text_b=q2$"):
            predicted(text, "qqp", kind=kind, name="rows")


def test_unusable_rows_are_reported_and_left_out(capsys):
    text = b"text\tn\ngood\t1\nonly one\n\n \t2\n\xff\t3\n" + b'"stray\t4\nlast\t5\n'
    written, count = predicted(text, name="rows.tsv")
    assert [line.split("\t")[:2] for line in written.splitlines()[1:]] == [["good", "1"], ["last", "5"]]
    assert count == (2, 4)
    assert capsys.readouterr().err.splitlines() == [
        "rows.tsv: line 3: wrong number of columns; left out",
        "rows.tsv: line 5: text: empty text; left out",
        "rows.tsv: line 6: not UTF-8; left out",
        "rows.tsv: line 7: damaged quoting; left out",
    ]
    with pytest.raises(UserError, match="standard input: line 3: wrong number of columns; without --strict"):
        predicted(text, strict=True)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("text\ttext\na\tb\n", "tsv", "found 2 columns 'text', expected one"),
        ("text\tprediction_label\na\t1\n", "tsv", "found a column 'prediction_label', which predict adds"),
        ("text,label\na,1\n", "tsv", "',' stood between .*a tab; if so, set --format tsv or csv"),
        ('{"text": "a", "p_2": 1}', "jsonl", "found a column 'p_2', which predict adds"),
    ],
)
def test_wrong_columns_are_an_error(text, kind, message):
    with pytest.raises(UserError, match=message):
        predicted(text, kind=kind)


def test_only_one_chunk_of_a_file_is_held_in_memory():
    read, written, held = 0, -1, []  # the header is no row

    def lines():
        nonlocal read
        yield b"text\n"
        for read in range(1, 20_001):  # noqa: B007
            yield b"a\n"

    def write(data):
        nonlocal written
        held.append(read - written)
        written += data.count(b"\n")

    sink = SimpleNamespace(write=write, flush=lambda: None)
    assert predict_file(PREDICTOR, "sst", "tsv", lines(), sink) == (20_000, 0)
    assert written == 20_000 and max(held) <= batch_predict.CHUNK_ROWS
