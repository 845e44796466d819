"""What is kept of a run: that nothing is lost on the way, and that it says as much of luck as the predictions do."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bertrio.core.errors import UserError
from bertrio.core.files import write_json, write_text
from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.predictions import Scored
from bertrio.experiments.recipes.measured import (
    Measured,
    load_measured,
    measure,
    read_measured,
    to_json,
    write_measured,
)
from bertrio.experiments.revision import Revision
from tests.experiments.simulated import simulate


def measured(**changes) -> Measured:
    """A run whose figures are as a file has them."""
    usual = {
        "name": "toy-a-quick-s1",
        "overrides": {"finetune.lr": 3e-05, "schedule.tasks": ["sst"], "smart.tasks": None},
        "metrics": {"dev": {"sst": {"accuracy": 0.41}, "overall_mean": 0.6}, "test": {}},
        "intervals": {"dev": {"sst": {"accuracy": (0.39, 0.43)}, "overall_mean": (0.58, 0.62)}, "test": {}},
        "curve": [(267, 0.55), (534, 0.61)],
    }
    return simulate("toy-a", rows=1101, **usual | changes)


def test_what_is_written_is_read_and_the_same_run_makes_the_same_bytes(tmp_path):
    kept = measured()
    write_measured(replace(kept, name="toy-b-quick-s1"), tmp_path)
    path = write_measured(kept, tmp_path)
    found, other = load_measured(tmp_path)  # in the order of their names
    assert (path, other.name) == (tmp_path / "toy-a-quick-s1.json", "toy-b-quick-s1")
    assert replace(found, by_row={}) == replace(kept, by_row={})
    assert np.array_equal(found.by_row["sst"].values, kept.by_row["sst"].values)
    assert np.allclose(found.by_row["sts"].values, kept.by_row["sts"].values, rtol=1e-3)
    assert [own.rows for own in found.by_row.values()] == [own.rows for own in kept.by_row.values()]
    assert write_measured(found, tmp_path / "again").read_bytes() == path.read_bytes()
    assert path.stat().st_size < 8_000
    assert load_measured(tmp_path / "nowhere") == []


def test_settings_keep_all_digits_by_which_runs_are_found(tmp_path):
    settings = {"finetune.lr": 1.23456789e-05}
    found = read_measured(write_measured(measured(overrides=settings, seconds=1 / 3), tmp_path))
    assert found.overrides == settings and found.seconds == 0.3333333333


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda content: content.pop("seed"), "seed"),
        (lambda content: content.update(sead=1), "sead"),
        (lambda content: content.update(seconds="long"), "seconds"),
        (lambda content: content["metrics"]["dev"].update(overall_mean=None), "metrics.dev.overall_mean"),
        (lambda content: content["by_row"]["sst"].update(values="%%%"), "by_row.sst.*0 bytes, which are not 1101 rows"),
        (lambda content: content["by_row"]["sst"].update(count=5), "by_row.sst.*138 bytes, which are not 5 rows"),
        (
            lambda content: content["by_row"]["sst"].update(kind="wrong"),
            "by_row.sst.kind: .*'right' or 'influence', found wrong",
        ),
        (lambda content: content["by_row"]["sst"].pop("ids"), "by_row.sst.ids: Field required"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong_in_it(damage, told, tmp_path):
    content = to_json(measured())
    damage(content)
    write_json(tmp_path / "toy-a-quick-s1.json", content)
    with pytest.raises(UserError, match=f"toy-a-quick-s1.json: is no measured run .*{told}.*recipes collect"):
        load_measured(tmp_path)


def test_a_file_cut_off_or_missing_is_an_error(tmp_path):
    write_text(tmp_path / "cut.json", json.dumps(to_json(measured()))[:500])
    for name, told in (("cut", "is no measured run"), ("none", "can't be read")):
        with pytest.raises(UserError, match=f"{name}.json: {told}"):
            read_measured(tmp_path / f"{name}.json")


def finish(folder, tasks=("sst", "qqp", "sts")) -> Revision:
    """Adds what `measure` reads to a run on disk."""
    scores = {"sst": {"accuracy": 0.5, "f1": 0.4}, "qqp": {"accuracy": 0.7}, "sts": {"pearson": 0.8, "rmse": 1.0}}
    dev = {task: scores[task] for task in tasks} | ({"overall_mean": 0.66} if len(tasks) == 3 else {})
    limits = {task: {metric: [0.1, 0.9] for metric in scores[task]} for task in tasks}
    write_json(folder / "metrics/evaluation.json", {"dev": dev, "intervals": {"dev": limits}})
    timing = {
        "split": {"seconds": 50.0, "peak_memory_mb": 5000.0},
        "pretrain_mlm": {"seconds": 3.0, "peak_memory_mb": 400.0},
        "finetune-base": {"seconds": 20.0, "peak_memory_mb": 600.0, "precision": "bf16", "threads": 2},
        "finetune-other": {"seconds": 30.0, "peak_memory_mb": 500.0, "precision": "bf16", "threads": 2},
    }
    write_json(folder / "metrics/timing.json", timing)
    write_json(folder / "metrics/data.json", {"tasks": {task: {"dev": {"rows": 200}} for task in scores}})
    column = ",dev_overall_normalized" if len(tasks) == 3 else ""
    lines = [f"epoch,step{column}", *[f"{i},{10 * i}" + (f",0.{i}" if column else "") for i in (1, 2)]]
    write_text(folder / "plots/history/base.csv", "\n".join(lines) + "\n")
    return Revision.open("workspace", folder)


def settings(encoder: str = "tiny") -> dict:
    return {
        "runtime": {"seed": 3, "precision": "auto", "threads": None},
        "data": {"source": "sample"},
        "encoder": {"name": encoder},
        "ensemble": {"members": {"base": {}}},
    }


FACTS = {"name": "toy-a-quick-s3", "row": "toy-a", "budget": "quick", "overrides": {}, "commit": "1a2b3c4"}


def test_measure_takes_first_metrics_the_cost_of_training_and_rows_by_their_ids(run_of, make_tables):
    frame = make_tables()
    shuffled = frame.sample(frac=1, random_state=0)
    found = [
        measure(finish(run_of(name, table, **settings("/models/small"))), **FACTS)
        for name, table in (("one", frame), ("two", shuffled))
    ]
    one = found[0]
    assert (one.seed, one.source, one.encoder) == (3, "sample", "small")
    assert one.metrics["dev"] == {
        "sst": {"accuracy": 0.5}, "qqp": {"accuracy": 0.7}, "sts": {"pearson": 0.8}, "overall_mean": 0.66,
    }  # fmt: skip
    assert one.intervals["dev"]["sts"] == {"pearson": (0.1, 0.9)}
    assert one.metrics["test"] == {}
    assert (one.seconds, one.peak_memory_mb) == (53.0, 600.0)  # of training, with all members; not of the data
    assert (one.precision, one.threads) == ("bf16", 2)
    assert one.curve == [(10, 0.1), (20, 0.2)]
    assert one.rows["sst"] == {"dev": 200}
    assert to_json(one) == to_json(found[1])  # the order of the rows does not matter
    for task, metric in (("sst", "accuracy"), ("sts", "pearson")):
        rows = frame[frame["task"] == task].sort_values("id")
        assert np.array_equal(one.by_row[task].values, contributions(Scored.of(rows), metric))


def test_other_rows_or_labels_have_another_digest(run_of, make_tables):
    frame = make_tables()
    relabelled = frame.copy()
    relabelled.loc[0, "label"] = (relabelled.loc[0, "label"] + 1) % 5
    digests = [
        measure(finish(run_of(name, table, **settings())), **FACTS).by_row["sst"].rows
        for name, table in (("one", frame), ("two", make_tables(5)), ("fewer", frame[1:]), ("other", relabelled))
    ]
    assert digests[0] == digests[1]  # other predictions of the same rows
    assert len(set(digests)) == 3


def test_what_a_run_does_not_have_is_left_out(run_of, make_tables):
    several = settings() | {"ensemble": {"members": {"base": {}, "other": None}}}
    assert measure(finish(run_of("several", make_tables(), **several)), **FACTS).curve == []
    frame = make_tables()
    frame.loc[frame["task"] == "qqp", "label"] = np.nan
    found = measure(finish(run_of("run", frame, **settings()), tasks=("sst", "sts")), **FACTS)
    assert set(found.metrics["dev"]) == set(found.by_row) == {"sst", "sts"}
    assert found.curve == []
    with pytest.raises(UserError, match="timing.json: is missing"):
        measure(Revision.open("workspace", run_of("bare", **settings())), **FACTS)
