import numpy as np
import pandas as pd
import pytest

from bertrio.analysis.challenges import write_challenges
from bertrio.config import Challenge
from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.evaluation.predictions import read_predictions


class SameWords:
    """A model that predicts "paraphrase" for pairs with the same words, and class 4 for every single text."""

    def __init__(self, task):
        self.name, self.target = f"member-{task.name}", task.target

    def predict(self, task, texts):
        if task == "sst":
            return self.target.predict(np.tile(np.eye(5)[4], (len(texts), 1)))
        same = [sorted(a.split()) == sorted(b.split()) for a, b in zip(texts["text_a"], texts["text_b"])]
        return self.target.predict(np.array(same, dtype=float)[:, None] * 4 - 2)


PAWS = """id\tsentence1\tsentence2\tlabel
1\tflights from here to there\tflights from there to here\t0
2\twhat is it\tis it what\t1
3\ta b\tb a\t0
4\ta b\tc d\t0
5\tno label\tat all\t
6\tthe label is\tout of range\t7
7\tone field is missing
"""
DEV = {
    "sst": pd.DataFrame({"id": [], "text": [], "label": []}),
    "qqp": pd.DataFrame({"id": [*"1234"], "text_a": "a b", "text_b": [*["b a"] * 3, "c"], "label": [1.0, 1, 0, 0]}),
    "sts": pd.DataFrame({"id": list("12"), "text_a": ["a", "b"], "text_b": ["a", "c"], "label": [5.0, 0]}),
}


@pytest.fixture
def measure(default_tasks, tmp_path):
    def run(**challenges):
        files = {name: Challenge(**challenge) for name, challenge in challenges.items()}
        path, folder = tmp_path / "metrics/challenges.json", tmp_path / "predictions/challenges"
        models = {name: SameWords(task) for name, task in default_tasks.items()}
        write_challenges(models, default_tasks, files, DEV, path, folder)
        return read_json(path)

    return run


@pytest.fixture
def paws(tmp_path):
    path = tmp_path / "paws.tsv"
    path.write_text(PAWS)
    return {"task": "qqp", "path": str(path), "columns": {"text_a": "sentence1", "text_b": "sentence2"}}


def test_all_metrics_are_measured_with_those_of_dev(measure, paws, default_tasks, tmp_path):
    (tmp_path / "films.jsonl").write_text('{"text": "a", "label": 4}\n')
    measured = measure(paws=paws, films={"task": "sst", "path": str(tmp_path / "films.jsonl")})
    result, metrics = measured["paws"], default_tasks["qqp"].target.metrics
    assert (result["task"], result["model"], result["n"], result["rejected"]) == ("qqp", "member-qqp", 4, 3)
    assert set(result) == {"task", "model", "n", "rejected", "intervals", "dev", *metrics}
    assert set(result["intervals"]) == set(result["dev"]) == set(metrics)
    assert result["accuracy"] == 0.5 and result["f1"] == pytest.approx(0.5)
    assert result["intervals"]["accuracy"] == [0.0, 1.0]  # of four rows
    assert result["dev"]["accuracy"] == 0.75, "one of four pairs is a false positive"
    assert measured["films"]["dev"] == {}, "dev of sst has no labelled rows"


def test_predictions_and_rejected_rows_are_written(measure, paws, tmp_path):
    measure(paws=paws)
    table = read_predictions(tmp_path / "predictions/challenges/paws.parquet")
    assert table["id"].tolist() == ["1", "2", "3", "4"] and set(table["split"]) == {"paws"}
    assert table["prediction"].tolist() == [1, 1, 1, 0] and table["label"].tolist() == [0, 1, 0, 0]
    rejects = pd.read_csv(tmp_path / "predictions/challenges/paws-rejects.csv")
    assert rejects["row"].tolist() == [6, 7, 8]
    assert rejects["reason"].tolist() == ["missing label", "label out of range", "wrong number of columns"]
    assert "one field is missing" in rejects["raw"][2]


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (PAWS, {"columns": {}}, r"challenges\.paws\.path: .*expected 'text_a'.*evaluate\.challenges\.paws\.columns"),
        ("sentence1\tsentence2\tlabel\na\tb\t9\n", {}, r"challenges\.paws: .*no row that can be used"),
    ],
)
def test_unusable_files_are_an_error(measure, paws, tmp_path, text, change, message):
    (tmp_path / "paws.tsv").write_text(text)
    with pytest.raises(UserError, match=message):
        measure(paws=paws | change)
