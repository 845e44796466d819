"""Measured files: lossless, with the same tests as on predictions."""

from dataclasses import replace

import numpy as np
import pytest

from bertrio.core.errors import UserError
from bertrio.core.files import write_json, write_text
from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.predictions import Scored
from bertrio.experiments.recipes.measured import Measured, load_measured, measure, to_json, write_measured
from bertrio.experiments.revision import Revision
from tests.experiments.conftest import tables
from tests.experiments.simulated import simulate


def measured(**changes) -> Measured:
    """Return a run with rounded figures, as in a file."""
    defaults = {
        "name": "toy-a-quick-s1",
        "overrides": {"finetune.lr": 1.23456789e-05, "schedule.tasks": ["sst"], "smart.tasks": None},
        "metrics": {"dev": {"sst": {"accuracy": 0.41}, "overall_mean": 0.6}, "test": {}},
        "intervals": {"dev": {"sst": {"accuracy": (0.39, 0.43)}, "overall_mean": (0.58, 0.62)}, "test": {}},
        "history": {"step": [267, 534], "loss_sst": [1.2, 0.9], "dev_sst": [0.4, None]}, "best_epoch": 1,
        "dots": {"sst qqp": [(267, -0.5), (534, 0.25)]}, "session": "0a1b2c3d", "update_seconds": 51.5,
        "curve": [(267, 0.55), (534, 0.61)],
    }  # fmt: skip
    return simulate("toy-a", rows=1101, **defaults | changes)


def test_round_trip_with_reproducible_bytes(tmp_path):
    run = measured()
    path = write_measured(run, tmp_path)
    [read] = load_measured(tmp_path)
    assert read.epochs["dev_sst"].to_dict() == pytest.approx({1: 0.4, 2: np.nan}, nan_ok=True)
    assert read.trained == ["sst"]
    assert path == tmp_path / "toy-a-quick-s1.json"
    assert replace(read, by_row={}) == replace(run, by_row={})  # overrides keep all digits: runs are matched by them
    assert np.array_equal(read.by_row["sst"].values, run.by_row["sst"].values)
    assert np.allclose(read.by_row["sts"].values, run.by_row["sts"].values, rtol=1e-3)
    assert all(read.by_row[task].rows == by_row.rows for task, by_row in run.by_row.items())
    assert write_measured(read, tmp_path / "again").read_bytes() == path.read_bytes()
    assert path.stat().st_size < 8_000
    assert load_measured(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.pop("seed"), "seed"),
        (lambda content: content["by_row"]["sst"].update(values="%%%"), "by_row.sst"),
        (lambda content: content["by_row"]["sst"].update(kind="wrong"), "by_row.sst.kind"),
    ],
)
def test_damaged_file_error_names_the_field(damage, message, tmp_path):
    content = to_json(measured())
    damage(content)
    write_json(tmp_path / "toy-a-quick-s1.json", content)
    with pytest.raises(UserError, match=f"quick-s1.json: is no measured run \\({message}: missing.*recipes collect"):
        load_measured(tmp_path)


def finish(folder, tasks=("sst", "qqp", "sts"), pretrained="s") -> Revision:
    """Add the files that `measure` reads to a run on disk."""
    scores = {"sst": {"accuracy": 0.5, "f1": 0.4}, "qqp": {"accuracy": 0.7}, "sts": {"pearson": 0.8, "rmse": 1.0}}
    dev = {task: scores[task] for task in tasks} | ({"overall_mean": 0.66} if len(tasks) == 3 else {})
    limits = {task: {metric: [0.1, 0.9] for metric in scores[task]} for task in tasks}
    best = {"base": 2}
    write_json(folder / "metrics/evaluation.json", {"dev": dev, "intervals": {"dev": limits}, "best_epoch": best})
    timing = {
        "split": {"seconds": 50.0, "peak_memory_mb": 5000.0, "session": "other"},
        "pretrain_mlm": {"seconds": 3.0, "peak_memory_mb": 400.0, "session": pretrained},
        "finetune-base": {"seconds": 20.0, "peak_memory_mb": 600.0, "precision": "bf16", "threads": 2, "session": "s"},
    }
    timing["finetune-base"] |= {"ms_per_step": 150.0, "steps": 100}
    write_json(folder / "metrics/timing.json", timing)
    write_json(folder / "metrics/data.json", {"tasks": {task: {"dev": {"rows": 200}} for task in scores}})
    lines = "epoch,step,lr,train_loss_sst,dev_sst_accuracy,dev_sst_f1,train_sst_accuracy,dev_overall_normalized\n"
    write_text(folder / "plots/history/base.csv", lines + "1,10,0,1.5,0.3,0,0.4,0.1\n2,20,0,,0.5,0,0.6,0.2\n")
    dots = "".join(f"{step},sst,qqp,{step % 2 or -2},0\n" for step in range(1, 41))
    write_text(folder / "plots/conflicts/base.csv", f"step,task_a,task_b,dot,cosine\n{dots}")
    return Revision.open("workspace", folder)


SETTINGS = {
    "runtime": {"seed": 3, "precision": "auto", "threads": None},
    "data": {"source": "sample"},
    "encoder": {"name": "/models/small"},
    "ensemble": {"members": {"base": {}}},
}
FACTS = {"name": "toy-a-quick-s3", "row": "toy-a", "budget": "quick", "overrides": {}, "commit": "1a2b3c4"}


def test_measure_main_metrics_training_cost_and_rows(run_of):
    frame = tables()
    relabelled = frame.copy()
    relabelled.loc[0, "label"] = (relabelled.loc[0, "label"] + 1) % 5
    frames = {"one": frame, "better": tables(5), "fewer": frame[1:], "relabelled": relabelled}
    frames["shuffled"] = frame.sample(frac=1, random_state=0)
    runs = {name: measure(finish(run_of(name, table, **SETTINGS)), **FACTS) for name, table in frames.items()}
    one = runs["one"]
    assert (one.seed, one.source, one.encoder) == (3, "sample", "small")
    main_scores = {"sst": {"accuracy": 0.5}, "qqp": {"accuracy": 0.7}, "sts": {"pearson": 0.8}}
    assert one.metrics["dev"] == {**main_scores, "overall_mean": 0.66}
    assert one.intervals["dev"]["sts"] == {"pearson": (0.1, 0.9)}
    assert (one.seconds, one.peak_memory_mb, one.precision) == (23.0, 600.0, "bf16")  # of training stages only
    assert (one.training_seconds, replace(one, seconds=9.0).training_seconds) == (23.0, 15.0)
    lines = {"step": [10, 20], "dev_overall_normalized": [0.1, 0.2]}
    assert one.history == lines | {"loss_sst": [1.5, None], "dev_sst": [0.3, 0.5], "train_sst": [0.4, 0.6]}
    assert (one.best_epoch, one.session, one.dots) == (2, "s", {"sst qqp": [(end, -0.5) for end in range(2, 41, 2)]})
    assert one.rows["sst"] == {"dev": 200}
    assert to_json(one) == to_json(runs["shuffled"])
    for task, metric in (("sst", "accuracy"), ("sts", "pearson")):
        rows = frame[frame["task"] == task].sort_values("id")
        assert np.array_equal(one.by_row[task].values, contributions(Scored.from_rows(rows), metric))
    digests = {name: run.by_row["sst"].rows for name, run in runs.items()}
    assert digests["one"] == digests["better"]
    assert len({digests["one"], digests["fewer"], digests["relabelled"]}) == 3


def test_measure_leaves_out_missing_parts(run_of):
    several = SETTINGS | {"ensemble": {"members": {"base": {}, "other": None}}}
    run = measure(finish(run_of("several", tables(), **several)), **FACTS)
    assert (run.history, run.best_epoch, run.dots) == ({}, None, {})
    two_sessions = finish(run_of("elsewhere", tables(), **SETTINGS), pretrained="another")
    assert measure(two_sessions, **FACTS).session is None  # its stages ran in two sessions
    frame = tables()
    frame.loc[frame["task"] == "qqp", "label"] = np.nan
    one = measure(finish(run_of("run", frame, **SETTINGS), tasks=("sst", "sts")), **FACTS)
    assert set(one.metrics["dev"]) == set(one.by_row) == {"sst", "sts"}
    with pytest.raises(UserError, match="timing.json: is missing"):
        measure(Revision.open("workspace", run_of("bare", **SETTINGS)), **FACTS)
