import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.significance import ALPHA, holm
from bertrio.experiments.compare import compare, open_side
from bertrio.experiments.revision import Revision
from bertrio.experiments.show import show_comparison
from tests.experiments.conftest import TASKS, tables


def side(*folders) -> list[Revision]:
    """Open folders as revisions, named after their folders."""
    opened = [Revision.open("workspace", folder) for folder in folders]
    for revision, folder in zip(opened, folders):
        revision.name = folder.name
    return opened


@pytest.fixture(scope="module")
def pair(run_of):
    """Two runs, the second one better."""
    return side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=1.5))


@pytest.fixture(scope="module")
def result(pair):
    return compare(*pair, rows=4)


def test_figures_equal_metrics_and_tests(pair, result):
    first, second = (evaluate_predictions(run.predictions(), run.tasks())["dev"] for [run] in pair)
    for name, figures in result["tasks"].items():
        metric = figures["metric"]
        assert figures["first"] == pytest.approx(first[name][metric])
        assert figures["difference"] == pytest.approx(second[name][metric] - first[name][metric])
        assert figures["interval"][0] < figures["difference"] < figures["interval"][1]
        assert set(figures["others"]) == set(first[name]) - {metric}
        assert (figures["better"] is not None) == (figures["p_holm"] < ALPHA)
    for name, figures in result["overall"].items():
        assert figures["difference"] == pytest.approx(second[name] - first[name])
        assert figures["better"] == "second"
    corrected = [figures["p_holm"] for figures in result["tasks"].values()]
    assert corrected == holm([figures["p"] for figures in result["tasks"].values()])
    sst = result["tasks"]["sst"]
    assert sst["fixed"] - sst["broken"] == pytest.approx(200 * sst["difference"])
    assert "b is better than a by" in sst["sentence"]


def test_rows_decided_differently_have_texts(result):
    for name, figures in result["tasks"].items():
        for kind, rows in result["rows"][name].items():
            assert len(rows) == min(4, figures[kind])
        for row in result["rows"][name]["fixed"]:
            before, after, label = row["first"][0], row["second"][0], row["label"]
            assert abs(before - label) - abs(after - label) > 0.5 if name == "sts" else before != label == after
            assert name != "qqp" or {before, after} == {"no", "yes"}
            assert all(row["id"] in row[column] for column in row if column.startswith("text"))


def test_terminal_output(result):
    console = Console(width=140, record=True, file=io.StringIO(), force_terminal=True)
    show_comparison(result, console)
    styled = console.export_text(clear=False, styles=True).splitlines()
    shown = console.export_text()
    names = ["overall_normalized", "overall_mean", "sst", "qqp", "sts"]
    assert [line.partition(":")[0] for line in shown.splitlines()[:5]] == names  # verdict first
    assert styled[0].startswith("\x1b[32moverall_normalized: b is better than a by")
    for name, figures in (*result["tasks"].items(), *result["overall"].items()):
        metric = name if name == figures["metric"] else f"{name} {figures['metric']}"
        [line] = [line for line in shown.splitlines() if line.startswith(f"│ {metric} ")]
        expected = (f"{figures['first']:.4f}", f"{figures['second']:.4f}", f"{figures['difference']:+.4f}")
        assert all(figure in line for figure in expected)
    assert "…" not in shown and "[red]of[/red]" in shown and "Overall scores are of sst, qqp, sts." in shown


@pytest.mark.parametrize("seeds", [1, 3])
def test_swapped_sides_give_the_same_verdict(run_of, seeds):
    macro_first = TASKS | {"sst": TASKS["sst"] | {"metric": "macro_f1"}}
    a = side(*[run_of(f"a{seed}", seed=seed, tasks=macro_first) for seed in range(seeds)])
    b = side(*[run_of(f"b{seed}", seed=9 + seed, skill=1.25) for seed in range(seeds)])
    forward, backward = compare(a, b, rows=5), compare(b, a, rows=5)
    mirrored = {"first": "second", "second": "first", None: None}
    for name, one in (forward["tasks"] | forward["overall"]).items():
        other = (backward["tasks"] | backward["overall"])[name]
        assert all(one[key] == other[key] for key in ("metric", "sentence", "p"))
        assert (one["better"], one["difference"]) == (mirrored[other["better"]], -other["difference"])
        assert one["interval"] == pytest.approx([-end for end in reversed(other["interval"])], abs=1e-12)
    for name in forward["tasks"]:
        fixed, broken = forward["rows"][name]["fixed"], backward["rows"][name]["broken"]
        assert [row["id"] for row in fixed] == [row["id"] for row in broken]
    assert "sst is measured by macro_f1 and by accuracy: compared by accuracy" in forward["notes"]


def test_order_of_rows_makes_no_difference(run_of):
    result = compare(side(run_of("a")), side(run_of("b", tables().sample(frac=1, random_state=0))), rows=5)
    console = Console(record=True, file=io.StringIO())
    show_comparison(result, console)
    assert "sst: fixed (0), B is right or nearer: none\n" in console.export_text()
    for figures in result["tasks"].values():
        assert figures["difference"] == figures["fixed"] == figures["broken"] == 0
        assert figures["p"] == figures["p_holm"] == 1 and "both have" in figures["sentence"]
    assert all(figures["better"] is None for figures in result["overall"].values())


def test_several_seeds_are_tested_over_rows_and_seeds(run_of):
    a = side(*[run_of(f"a{seed}", seed=seed, runtime={"seed": seed}) for seed in range(3)])
    b = side(*[run_of(f"b{seed}", seed=5 + seed, skill=1.5, runtime={"seed": seed}) for seed in range(4)])
    result = compare(a, b)
    for figures in (*result["tasks"].values(), *result["overall"].values()):
        first, second = figures["by_seed"]
        assert (len(first), len(second)) == (3, 4)
        assert figures["test"] == "paired t-test over rows and seeds"
        assert figures["difference"] == pytest.approx(np.mean(second) - np.mean(first))
        low, high = figures["interval"]
        assert (figures["p"] < 0.05) == (not low <= 0 <= high)
    assert [note[:35] for note in result["notes"] if "chosen" not in note] == ["few rows or seeds decide on sst, ov"]
    assert "a0 (mean of 3)" in result["tasks"]["sst"]["sentence"]


def test_notes_on_params_and_runs_of_one_side(run_of):
    learning = {"finetune": {"lr": 2e-05, "epochs": 3}}
    a = run_of("a", finetune={"lr": 0.00002, "epochs": 4})
    other = run_of("c", seed=2, **learning, smart={"lambda": 1})
    result = compare(side(a), side(run_of("b", seed=1, **learning), run_of("again", seed=1, **learning), other))
    assert result["params"] == {"finetune.epochs": [["4"], ["3"]], "smart.lambda": [["(absent)"], ["(absent)", "1"]]}
    assert result["tasks"]["sst"]["test"] == "paired t-test over rows and seeds"
    notes = "\n".join(result["notes"])
    assert "fewer than three runs on a side" in notes and "b (mean of 3) differ in smart.lambda" in notes
    assert notes.count("predict all rows alike") == 1
    assert "b and again predict all rows alike: the same run is counted twice" in notes


def test_texts_come_from_a_revision_that_has_the_rows(run_of):
    a, b = run_of("a", seed=1), run_of("b", seed=2, skill=2.0)
    expected = compare(side(a), side(b), rows=3)["rows"]
    for task in TASKS:  # a has new splits since its predictions
        path = a / f"data/splits/{task}/dev.parquet"
        table = pd.read_parquet(path)
        table.assign(id="new-" + table["id"]).to_parquet(path)
    assert compare(side(a), side(b), rows=3)["rows"] == expected
    (b / "data/splits/qqp/dev.parquet").unlink()
    with pytest.raises(UserError, match=r"task qqp: in no revision does data/splits/qqp/dev.parquet have the rows"):
        compare(side(a), side(b), rows=3)


def test_invalid_side_is_an_error():
    for names, message in (("workspace, workspace", "the same revision"), (" , ", "expected a revision")):
        with pytest.raises(UserError, match=message):
            open_side(names)


def other_rows(frame):
    return frame[~((frame["task"] == "sst") & frame["id"].isin(["dev-3", "dev-7"]))]


def other_label(frame):
    changed = (frame["task"] == "qqp") & (frame["id"] == "dev-12")
    return frame.assign(label=frame["label"].mask(changed, 1 - frame["label"]))


def with_selection_rows(frame):
    """Return a table with an ensemble selected on half of dev."""
    return frame.assign(split=np.where(frame["id"].isin([f"dev-{i}" for i in range(100)]), "selection", "dev"))


@pytest.mark.parametrize(
    ("change", "split", "message"),
    [
        (other_rows, "dev", r"sst: 2 rows are in a and not in b \(ids dev-3, dev-7\)"),
        (other_label, "dev", r"qqp: 1 rows have other labels \(the first, dev-12: [01] in a, [01] in b\)"),
        (lambda frame: frame, "test", "split test: a has no labelled rows of it, expected one of dev"),
    ],
)
def test_different_rows_or_labels_are_an_error(pair, run_of, change, split, message):
    with pytest.raises(UserError, match=message):
        compare(pair[0], side(run_of("b", change(tables(1)))), split)


def test_different_targets_are_an_error_and_unshared_tasks_left_out(pair, run_of):
    other = TASKS | {"sts": {**TASKS["sts"], "range": [0, 1]}}
    with pytest.raises(UserError, match=r"task sts: .*0.0, high=5.0.* in a"):
        compare(pair[0], side(run_of("b", tasks=other)))
    more = TASKS | {"nli": {"kind": "pair", "target": "classes", "classes": 3}}
    result = compare(pair[0], side(run_of("b", tasks=more)))
    assert set(result["tasks"]) == set(TASKS) and "overall" not in result
    assert any("left out: nli" in note for note in result["notes"])


def test_rows_used_for_selection_are_noted(run_of):
    frame = with_selection_rows(tables(1))
    a, b = run_of("a", frame), run_of("b", frame)  # epochs selected on dev
    selected_on = {"rows": "holdout", "by": "overall_normalized", "ensemble": "selection"}
    write_json(a / "metrics/evaluation.json", {"selected_on": selected_on})
    result = compare(side(a), side(b), "selection", rows=2)
    assert result["tasks"]["sst"]["rows"] == 100
    assert any("the ensemble members of a were chosen on selection" in note for note in result["notes"])
    assert any("the epochs of b were chosen on" in note for note in result["notes"])
    assert not any("ensemble members" in note for note in compare(side(a), side(b))["notes"])
