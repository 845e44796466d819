import re

import pytest
import yaml

from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json
from bertrio.evaluation.evaluate import evaluate, selection_text, show_metrics, timings
from bertrio.evaluation.intervals import intervals
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import write_predictions
from tests.evaluation.tables import TASKS, predictions

MEMBERS = ["base", "second"]
SELECTED_ON = {"rows": "dev", "by": "overall_normalized"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of a run up to the evaluation, in the current directory."""
    monkeypatch.chdir(tmp_path)
    write_predictions(predictions(rows=6), "predictions/ensemble.parquet")
    for epoch, name in enumerate(MEMBERS, start=1):
        write_json(f"predictions/members/{name}/summary.json", {"best_epoch": epoch, "selected_on": SELECTED_ON})
    for stage in ("split", "finetune-base", "finetune-second", "finetune-dropped"):
        write_json(f"metrics/timing/{stage}.json", {"seconds": 1.5})
    return tmp_path


def run(submission=True) -> dict:
    evaluate(MEMBERS, TASKS, "predictions", "metrics", "plots", submission)
    return read_json("metrics/evaluation.json")


def test_metrics_hold_scores_best_epochs_and_selection(folder):
    metrics = run()
    assert set(metrics) == {"dev", "overall_tasks", "intervals", "best_epoch", "selected_on"}  # test has no labels
    assert metrics["best_epoch"] == {"base": 1, "second": 2} and metrics["selected_on"] == SELECTED_ON
    dev = evaluate_predictions(predictions(rows=6), TASKS)["dev"]
    assert metrics["dev"]["overall_mean"] == pytest.approx(dev["overall_mean"], abs=1e-6)
    for name in TASKS:
        assert metrics["dev"][name] == pytest.approx(dev[name], abs=1e-6)
        assert set(metrics["intervals"]["dev"][name]) == set(dev[name])
    limits = intervals(predictions(rows=6), TASKS)["dev"]["overall_mean"]
    assert metrics["intervals"]["dev"]["overall_mean"] == pytest.approx(limits, abs=1e-6)


def test_selection_rows_are_measured_apart(folder, capsys):
    frame = predictions(rows=6)
    frame["split"] = frame["split"].where((frame["split"] == "test") | frame["id"].isin(list("0134")), "selection")
    write_predictions(frame, "predictions/ensemble.parquet")
    metrics = run()
    assert set(metrics) == {"dev", "selection", "overall_tasks", "intervals", "best_epoch", "selected_on"}
    assert metrics["selected_on"] == {**SELECTED_ON, "ensemble": "selection"}
    measured = evaluate_predictions(frame, TASKS)["selection"]["qqp"]
    assert metrics["selection"]["qqp"] == pytest.approx(measured, abs=1e-6)
    capsys.readouterr()
    show_metrics("metrics/evaluation.json")
    printed = capsys.readouterr().out
    [line] = [line for line in printed.splitlines() if "qqp accuracy" in line]
    accuracies = [f"{metrics[split]['qqp']['accuracy']:.3f} [" for split in ("dev", "selection")]
    assert line.index(accuracies[0]) < line.rindex(accuracies[1])
    assert "ensemble chosen on selection" in " ".join(printed.split())


def test_bytes_are_the_same_and_old_submissions_are_removed(folder):
    run()
    first = (folder / "metrics/evaluation.json").read_bytes()
    assert set(timings("metrics/timing", MEMBERS)) == {"split", "finetune-base", "finetune-second"}  # no dropped member
    assert set(read_json("metrics/calibration.json")) == {"sst", "qqp"} and list((folder / "plots").rglob("*.csv"))
    run(submission=False)
    assert (folder / "metrics/evaluation.json").read_bytes() == first
    assert not list((folder / "predictions/submission").iterdir())


def test_main_scores_are_shown_with_baselines_and_others_on_request(folder, capsys):
    metrics = run()
    write_json("metrics/data.json", {"simple_baselines": {"qqp": {"bag_of_words": {"accuracy": 0.626}}}})
    capsys.readouterr()
    show_metrics("metrics/evaluation.json")
    short = capsys.readouterr().out
    show_metrics("metrics/evaluation.json", every=True)
    printed = capsys.readouterr().out
    (low, high), value = metrics["intervals"]["dev"]["qqp"]["accuracy"], metrics["dev"]["qqp"]["accuracy"]
    names = ["overall_normalized", "sst accuracy", "qqp accuracy", "sts pearson"]
    assert re.findall("|".join(names), short)[:4] == names and "f1" not in short and "bertrio metrics --all" in short
    assert max(map(len, short.splitlines()[:9])) <= 80
    [line] = [line for line in short.splitlines() if "qqp accuracy" in line]
    assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in line and "0.626 bag of words" in line
    assert printed.startswith(short.partition("bertrio")[0]) and "qqp f1" in printed


def test_dvc_metrics_are_the_main_scores(root, folder, capsys):
    """Each number of a metrics file is a column of `dvc exp show` and a line of `dvc metrics diff`."""
    frame = predictions(rows=6)
    frame["label"] = frame["label"].fillna(frame["prediction"])  # test with labels, all of them right
    write_predictions(frame, "predictions/ensemble.parquet")
    metrics = run()
    scores = read_json("metrics/scores.json")
    assert list(scores) == ["dev", "test"]
    assert list(scores["dev"]) == ["sst", "qqp", "sts", "overall_normalized"]
    assert scores["dev"]["sts"] == metrics["dev"]["sts"]["pearson"] and scores["test"]["sst"] == 1.0
    printed = capsys.readouterr()
    assert f"dev: sst {scores['dev']['sst']:.4f}, qqp " in printed.err and not printed.out
    stages = yaml.safe_load((root / "dvc.yaml").read_text())["stages"].values()
    assert [stage["metrics"] for stage in stages if "metrics" in stage] == [[{"metrics/scores.json": {"cache": False}}]]


def test_selection_of_epochs_and_thresholds_is_reported_per_kind(folder, capsys):
    holdout = {"rows": "holdout", "by": "sst", "thresholds": "holdout"}
    for name, selected_on in (("base", {"rows": "none", "by": "last"}), ("second", holdout)):
        write_json(f"predictions/members/{name}/summary.json", {"best_epoch": 1, "selected_on": selected_on})
    assert run()["selected_on"] == {"rows": "none, holdout", "by": "last, sst", "thresholds": "holdout"}
    show_metrics("metrics/evaluation.json")
    assert "best epochs chosen on holdout by sst" in " ".join(capsys.readouterr().out.split())
    assert selection_text({"rows": "none", "by": "last"}) == ""


def test_unreadable_files_are_an_error(folder):
    write_json("metrics/data.json", {"tasks": {}})
    with pytest.raises(UserError, match="metrics/data.json: found no selected_on, which evaluate writes"):
        show_metrics("metrics/data.json")
    with pytest.raises(UserError, match="none.json: can't be read .*run dvc repro"):
        show_metrics("none.json")
    (folder / "predictions/members/base/summary.json").write_text("{")
    with pytest.raises(UserError, match="base.summary.json: can't be read"):
        run()
