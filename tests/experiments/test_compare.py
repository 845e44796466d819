import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.significance import ALPHA, holm
from bertrio.experiments.compare import compare, open_side
from bertrio.experiments.revision import Revision
from bertrio.experiments.show import show_comparison
from tests.experiments.conftest import TASKS


def side(*folders) -> list[Revision]:
    """Revisions that are folders; named by them, since all are workspaces."""
    opened = [Revision.open("workspace", folder) for folder in folders]
    for revision, folder in zip(opened, folders):
        revision.name = folder.name
    return opened


def test_figures_are_those_of_the_metrics_and_the_tests(run_of):
    a, b = side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=1.5))
    result = compare(a, b)
    first = evaluate_predictions(a[0].predictions(), a[0].tasks())["dev"]
    second = evaluate_predictions(b[0].predictions(), b[0].tasks())["dev"]
    for name, figures in result["tasks"].items():
        metric = figures["metric"]
        assert figures["first"] == pytest.approx(first[name][metric])
        assert figures["difference"] == pytest.approx(second[name][metric] - first[name][metric])
        assert figures["interval"][0] < figures["difference"] < figures["interval"][1]
        assert set(figures["others"]) == set(first[name]) - {metric}
    for name, figures in result["overall"].items():
        assert figures["difference"] == pytest.approx(second[name] - first[name])
        assert figures["better"] == "second"
    sst = result["tasks"]["sst"]
    assert sst["p"] < 0.001
    assert sst["fixed"] - sst["broken"] == pytest.approx(200 * sst["difference"])
    assert sst["test"] == "paired t-test over rows"
    assert "b is better than a by" in sst["sentence"]


def test_verdicts_on_tasks_follow_holms_correction(run_of):
    tasks = compare(side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=1.3)))["tasks"].values()
    assert [figures["p_holm"] for figures in tasks] == holm([figures["p"] for figures in tasks])
    for figures in tasks:
        assert (figures["better"] is not None) == (figures["p_holm"] < ALPHA)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_other_way_round_is_the_same_verdict(run_of, seeds):
    a = side(*[run_of(f"a{seed}", seed=seed) for seed in range(seeds)])
    b = side(*[run_of(f"b{seed}", seed=9 + seed, skill=1.25) for seed in range(seeds)])
    there, back = compare(a, b, rows=5), compare(b, a, rows=5)
    mirrored = {"first": "second", "second": "first", None: None}
    for kind in ("tasks", "overall"):
        for name, one in there[kind].items():
            other = back[kind][name]
            assert one["sentence"] == other["sentence"]
            assert one["better"] == mirrored[other["better"]]
            assert one["difference"] == -other["difference"]
            assert one["interval"] == pytest.approx([-other["interval"][1], -other["interval"][0]], abs=1e-12)
            assert one["p"] == other["p"]
            assert one.get("p_holm") == other.get("p_holm")
    for name in there["tasks"]:
        fixed, broken = there["rows"][name]["fixed"], back["rows"][name]["broken"]
        assert [row["id"] for row in fixed] == [row["id"] for row in broken]


def led_by(metrics):
    """The tasks, each measured first by what `metrics` says of it."""
    return {name: block | ({"metric": metrics[name]} if name in metrics else {}) for name, block in TASKS.items()}


def test_sides_with_other_first_metrics_are_compared_by_the_usual_one_whichever_comes_first(run_of):
    a, b = side(run_of("a", seed=1, tasks=led_by({"sst": "macro_f1"}))), side(run_of("b", seed=2, skill=1.5))
    there, back = compare(a, b), compare(b, a)
    assert there["tasks"]["sst"]["metric"] == back["tasks"]["sst"]["metric"] == "accuracy"
    for kind in ("tasks", "overall"):
        for name, one in there[kind].items():
            assert one["sentence"] == back[kind][name]["sentence"]
    assert "sst is measured by macro_f1 and by accuracy: compared by accuracy" in there["notes"]


def test_a_side_against_itself_is_no_difference(run_of):
    folder = run_of("a")
    result = compare(side(folder), side(folder))
    for figures in result["tasks"].values():
        assert figures["difference"] == 0
        assert figures["p"] == figures["p_holm"] == 1
        assert "both have" in figures["sentence"]
    assert all(figures["better"] is None for figures in result["overall"].values())


def test_the_order_of_rows_in_a_table_does_not_matter(run_of, make_tables):
    frame = make_tables(2)
    shuffled = frame.sample(frac=1, random_state=0)
    base = run_of("a", seed=1)
    assert (
        compare(side(base), side(run_of("b", frame)))["tasks"]
        == compare(side(base), side(run_of("b", shuffled)))["tasks"]
    )


def test_seeds_are_the_unit_as_well(run_of):
    a = side(*[run_of(f"a{seed}", seed=seed, runtime={"seed": seed}) for seed in range(3)])
    b = side(*[run_of(f"b{seed}", seed=5 + seed, skill=1.5, runtime={"seed": seed}) for seed in range(4)])
    result = compare(a, b)
    for figures in (*result["tasks"].values(), *result["overall"].values()):
        first, second = figures["by_seed"]
        assert (len(first), len(second)) == (3, 4)
        assert figures["test"] == "paired t-test over rows and seeds"
        assert figures["difference"] == pytest.approx(np.mean(second) - np.mean(first))
        low, high = figures["interval"]
        assert low + high == pytest.approx(2 * figures["difference"])
        assert (figures["p"] < 0.05) == (not low <= 0 <= high)
    assert not [note for note in result["notes"] if "differ in" in note]
    assert "b5" not in result["tasks"]["sst"]["sentence"] and "a0 (mean of 3)" in result["tasks"]["sst"]["sentence"]
    assert not [note for note in result["notes"] if "fewer than three runs" in note]


def test_one_seed_against_several_says_that_seeds_are_not_tested(run_of):
    result = compare(side(run_of("a")), side(run_of("b", seed=1), run_of("c", seed=2, finetune={"lr": 1})))
    assert result["tasks"]["sst"]["test"] == "paired t-test over rows"
    assert any("fewer than three runs on a side" in note for note in result["notes"])
    assert any("b (mean of 2) differ in finetune.lr" in note for note in result["notes"])


def test_rows_that_the_sides_decide_differently(run_of):
    a, b = side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=2.0))
    result = compare(a, b, rows=4)
    for name, figures in result["tasks"].items():
        fixed, broken = result["rows"][name]["fixed"], result["rows"][name]["broken"]
        assert len(fixed) == min(4, figures["fixed"])
        assert len(broken) == min(4, figures["broken"])
        for row in fixed:
            before, after = (abs(row[which][0] - row["label"]) for which in ("first", "second"))
            if name == "sts":
                assert before - after > 0.5
            else:
                assert after == 0 < before
        texts = {"text"} if name == "sst" else {"text_a", "text_b"}
        assert all(row["id"] in row[column] for row in fixed for column in texts)


def test_changed_params_are_told_and_numbers_are_numbers(run_of):
    a = run_of("a", finetune={"lr": "2e-05", "epochs": 3})
    b = run_of("b", seed=1, finetune={"lr": 0.00002, "epochs": 4})
    assert compare(side(a), side(b))["params"] == {"finetune.epochs": [["3"], ["4"]]}


def test_texts_come_from_a_revision_that_has_the_rows(run_of):
    a, b = run_of("a", seed=1), run_of("b", seed=2, skill=2.0)
    expected = compare(side(a), side(b), rows=3)["rows"]
    for task in ("sst", "qqp", "sts"):  # a has split anew since it predicted
        path = a / f"data/splits/{task}/dev.parquet"
        table = pd.read_parquet(path)
        table.assign(id="new-" + table["id"]).to_parquet(path)
    assert compare(side(a), side(b), rows=3)["rows"] == expected
    for task in ("sst", "qqp", "sts"):
        (b / f"data/splits/{task}/dev.parquet").unlink()
    with pytest.raises(UserError, match=r"task qqp: in no revision does data/splits/qqp/dev.parquet have the rows"):
        compare(side(a), side(b), rows=3)


def test_a_run_that_counts_twice_is_told(run_of):
    twice = [run_of("a", seed=1), run_of("again", seed=1), run_of("c", seed=2)]
    told = compare(side(*twice), side(run_of("d", seed=1), run_of("e", seed=4)))["notes"]
    assert [note for note in told if "predict all rows alike" in note] == [
        "a and again predict all rows alike: the same run is counted twice"
    ]


def test_names_of_a_side(run_of, monkeypatch):
    monkeypatch.chdir(run_of("a"))
    assert [revision.name for revision in open_side("workspace")] == ["workspace"]
    with pytest.raises(UserError, match="the same revision"):
        open_side("workspace, workspace")
    with pytest.raises(UserError, match="expected a revision"):
        open_side(" , ")


def test_the_command_prints_a_table_and_writes_json(run_of, monkeypatch, capsys):
    monkeypatch.chdir(run_of("a"))
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["compare", "workspace", "workspace", "--rows", "3", "--json", "out/compare.json"]) == 0
    told = capsys.readouterr().out
    assert "sst accuracy" in told
    assert "sst: both have accuracy" in told
    with open("out/compare.json") as file:
        assert set(json.load(file)["tasks"]) == {"sst", "qqp", "sts"}


def other_rows(frame):
    return frame[~((frame["task"] == "sst") & frame["id"].isin(["dev-3", "dev-7"]))]


def other_label(frame):
    place = frame.index[(frame["task"] == "qqp") & (frame["id"] == "dev-12")]
    frame.loc[place, "label"] = 1 - frame.loc[place, "label"]
    return frame


def set_apart(frame):
    """A table whose ensemble was chosen on half of dev."""
    return frame.assign(split=np.where(frame["id"].isin([f"dev-{i}" for i in range(100)]), "selection", "dev"))


@pytest.mark.parametrize(
    ("change", "split", "message"),
    [
        (other_rows, "dev", r"but\n  sst: 2 rows are in a and not in b \(ids dev-3, dev-7\)\n  Runs"),
        (
            other_label,
            "dev",
            r"but\n  qqp: 1 rows have other labels \(the first, dev-12: [01] in a, [01] in b\)\n  Runs",
        ),
        (set_apart, "dev", "sst: 100 rows are in a and not in b"),
        (lambda frame: frame, "test", "split test: a has no labelled rows of it, expected one of dev"),
    ],
)
def test_other_rows_are_refused_and_named(run_of, make_tables, change, split, message):
    with pytest.raises(UserError, match=message):
        compare(side(run_of("a")), side(run_of("b", change(make_tables(1)))), split)


def test_other_targets_are_refused_and_tasks_of_one_side_left_out(run_of):
    other = TASKS | {"sts": {**TASKS["sts"], "range": [0, 1]}}
    with pytest.raises(UserError, match=r"task sts: .*0.0, high=5.0.* in a"):
        compare(side(run_of("a")), side(run_of("b", tasks=other)))
    more = TASKS | {"nli": {"kind": "pair", "target": "classes", "classes": 3}}
    result = compare(side(run_of("a")), side(run_of("b", tasks=more)))
    assert set(result["tasks"]) == set(TASKS) and "overall" not in result
    assert any("left out: nli" in note for note in result["notes"])


def test_figures_on_rows_that_something_was_chosen_on_are_marked(run_of, make_tables):
    frame = set_apart(make_tables(1))
    a, b = run_of("a", frame), run_of("b", frame)  # whose epochs were chosen on dev
    selected_on = {"rows": "holdout", "by": "overall_normalized", "ensemble": "selection"}
    write_json(a / "metrics/evaluation.json", {"selected_on": selected_on})
    result = compare(side(a), side(b), "selection", rows=2)
    assert result["tasks"]["sst"]["rows"] == 100
    assert any("the ensemble members of a were chosen on selection" in note for note in result["notes"])
    assert any("the epochs of b were chosen on" in note for note in result["notes"])
    assert not any("ensemble members" in note for note in compare(side(a), side(b))["notes"])


def test_the_terminal_names_every_metric_in_full_and_shows_texts_as_they_are(run_of):
    result = compare(side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=1.5)), rows=2)
    console = Console(width=140, record=True, file=io.StringIO())
    show_comparison(result, console)
    told = console.export_text()
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines() if line.startswith("│")]
    for name, figures in (*result["tasks"].items(), *result["overall"].items()):
        named = name if name == figures["metric"] else f"{name} {figures['metric']}"
        [cells] = [line[1:] for line in lines if line[0] == named]
        assert cells[:3] == [f"{figures['first']:.4f}", f"{figures['second']:.4f}", f"{figures['difference']:+.4f}"]
        assert cells[-1] == {"first": "A", "second": "B", None: "-"}[figures["better"]]
    assert ["sst balanced_accuracy"] in [line[:1] for line in lines]
    assert "…" not in told and "Overall scores are of qqp, sst, sts." in told
    assert "[red]of[/red]" in told and "B is right or nearer" in told
