import json

import numpy as np
import pandas as pd
import pytest
import yaml

from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.significance import ALPHA
from bertrio.experiments.compare import compare, open_side
from bertrio.experiments.revision import Revision
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


def test_holm_is_over_the_tasks(run_of):
    from statsmodels.stats.multitest import multipletests

    tasks = compare(side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=1.3)))["tasks"].values()
    theirs = multipletests([figures["p"] for figures in tasks], method="holm")[1]
    assert [figures["p_holm"] for figures in tasks] == pytest.approx(theirs)
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


def test_the_same_answers_with_other_probabilities_are_not_alike_where_ranks_count(run_of, make_tables):
    frame = make_tables(1)
    surer = frame.copy()
    surer["probabilities"] = [
        None if of is None else of**3 / (of**3).sum() if row % 2 else of
        for row, of in enumerate(frame["probabilities"])
    ]
    tasks = led_by({"qqp": "roc_auc"})
    result = compare(side(run_of("a", frame, tasks=tasks)), side(run_of("b", surer, tasks=tasks)))["tasks"]
    assert result["qqp"]["fixed"] == result["qqp"]["broken"] == 0 and result["qqp"]["difference"] != 0
    assert "alike" not in result["qqp"]["sentence"] and "alike" in result["sts"]["sentence"]


def test_a_side_against_itself_is_no_difference(run_of):
    folder = run_of("a")
    result = compare(side(folder), side(folder))
    for figures in result["tasks"].values():
        assert figures["difference"] == 0
        assert figures["p"] == figures["p_holm"] == 1
        assert "both predict all 200 rows alike" in figures["sentence"]
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
    assert "more than luck explains" in result["overall"]["overall_mean"]["sentence"]
    assert not [note for note in result["notes"] if "differ in" in note]
    assert "a0 and 2 more" in result["tasks"]["sst"]["sentence"]


@pytest.mark.parametrize(("first", "second", "expected"), [(2, 2, True), (2, 3, True), (3, 3, False), (1, 2, False)])
def test_two_seeds_a_side_are_told_to_be_few(run_of, first, second, expected):
    a = side(*[run_of(f"a{seed}", seed=seed) for seed in range(first)])
    b = side(*[run_of(f"b{seed}", seed=9 + seed) for seed in range(second)])
    notes = compare(a, b)["notes"]
    assert any("two seeds on a side leave one degree of freedom" in note for note in notes) == expected
    assert any("three or more are better" in note for note in notes) == expected


def test_one_seed_against_several_says_that_seeds_are_not_tested(run_of):
    result = compare(side(run_of("a")), side(run_of("b", seed=1), run_of("c", seed=2, finetune={"lr": 1})))
    assert result["tasks"]["sst"]["test"] == "paired t-test over rows"
    assert any("one run on a side says nothing of other seeds" in note for note in result["notes"])
    assert "more than luck explains" not in " ".join(of["sentence"] for of in result["tasks"].values())
    assert any("b and 1 more differ in finetune.lr" in note for note in result["notes"])


def test_other_rows_are_refused_and_named(run_of, make_tables):
    frame = make_tables(1)
    fewer = frame[~((frame["task"] == "sst") & frame["id"].isin(["dev-3", "dev-7"]))]
    with pytest.raises(UserError) as caught:
        compare(side(run_of("a")), side(run_of("b", fewer)))
    assert "sst: 2 of 200 rows are in a and not in b (ids dev-3, dev-7)" in str(caught.value)
    assert "qqp" not in str(caught.value)


def test_other_labels_are_refused_and_named(run_of, make_tables):
    frame = make_tables(1)
    at = frame.index[(frame["task"] == "qqp") & (frame["id"] == "dev-12")][0]
    was = frame.loc[at, "label"]
    frame.loc[at, "label"] = 1 - was
    with pytest.raises(UserError, match=f"qqp: 1 rows have other labels .dev-12: {was:g} in a, {1 - was:g} in b"):
        compare(side(run_of("a")), side(run_of("b", frame)))


def test_rows_that_an_ensemble_was_chosen_on_are_named_as_such(run_of, make_tables):
    frame = make_tables(1)
    frame.loc[frame["id"].isin([f"dev-{i}" for i in range(100)]), "split"] = "selection"
    with pytest.raises(UserError, match="100 of them are those that b chose its ensemble on"):
        compare(side(run_of("a")), side(run_of("b", frame)))
    assert (
        compare(side(run_of("b", frame)), side(run_of("c", frame)), "selection", rows=2)["tasks"]["sst"]["rows"] == 100
    )


def test_a_split_without_labels_is_an_error_that_names_those_with(run_of):
    with pytest.raises(UserError, match="split test: a has no labelled rows of it, expected one of dev"):
        compare(side(run_of("a")), side(run_of("b")), "test")


def test_other_targets_are_refused_and_other_tasks_left_out(run_of):
    tasks = yaml.safe_load((run_of("x") / "params.yaml").read_text())["tasks"]

    other = {**tasks, "sts": {**tasks["sts"], "range": [0, 1]}}
    with pytest.raises(UserError, match="task sts: .*0.0, high=5.0.* in a"):
        compare(side(run_of("a")), side(run_of("b", tasks=other)))


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


def test_figures_on_rows_that_epochs_were_chosen_on_are_marked(run_of):
    assert any("chosen on dev" in note for note in compare(side(run_of("a")), side(run_of("b", seed=1)))["notes"])


def chosen_on(folder, **selected_on):
    write_json(folder / "metrics/evaluation.json", {"selected_on": {"by": "overall_normalized", **selected_on}})
    return folder


def test_rows_that_an_ensemble_was_chosen_on_flatter_it(run_of, make_tables):
    frame = make_tables(1)
    frame.loc[frame["id"].isin([f"dev-{i}" for i in range(100)]), "split"] = "selection"
    a = chosen_on(run_of("a", frame), rows="holdout", ensemble="selection")
    b = chosen_on(run_of("b", frame), rows="dev")
    told = compare(side(a), side(b), "selection")["notes"]
    assert [note for note in told if "the ensembles of a were chosen on these rows" in note]
    assert [note for note in told if "the epochs of b were chosen on dev" in note]
    assert not [note for note in compare(side(a), side(b), "dev")["notes"] if "ensembles of" in note]


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
    with pytest.raises(UserError, match=r"task qqp: no revision has the texts(.|\n)*a: .* lacks 6 rows(.|\n)*missing"):
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
    with pytest.raises(UserError, match="named twice"):
        open_side("workspace, workspace")
    with pytest.raises(UserError, match="expected a revision"):
        open_side(" , ")


def test_the_command_prints_a_table_and_writes_json(run_of, monkeypatch, capsys):
    monkeypatch.chdir(run_of("a"))
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["compare", "workspace", "workspace", "--rows", "3", "--json", "out/compare.json"]) == 0
    told = capsys.readouterr().out
    assert "sst accuracy" in told
    assert "sst: both predict all 200 rows alike." in told
    with open("out/compare.json") as file:
        assert set(json.load(file)["tasks"]) == {"sst", "qqp", "sts"}


def test_the_terminal_shows_texts_as_they_are(run_of, capsys):
    from bertrio.experiments.show import show_comparison

    show_comparison(compare(side(run_of("a", seed=1)), side(run_of("b", seed=2)), rows=2))
    told = capsys.readouterr().out
    assert "[red]of[/red]" in told
    assert "fixed: B is right" in told


def test_the_same_comparison_has_the_same_bytes(run_of):
    a, b = side(run_of("a", seed=1)), side(run_of("b", seed=2))
    assert json.dumps(compare(a, b)) == json.dumps(compare(a, b))
    assert isinstance(compare(a, b)["tasks"]["sst"]["fixed"], int)
