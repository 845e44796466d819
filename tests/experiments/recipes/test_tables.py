import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.comparable import Setting
from bertrio.experiments.recipes.rows import Recipes
from bertrio.experiments.recipes.table_plots import curves_of, draw_tables, mean_curve
from bertrio.experiments.recipes.table_text import frame, table_document, to_markdown, write_tables
from bertrio.experiments.recipes.tables import paper_tables
from tests.experiments.simulated import measured, run, simulate, small_recipes


@pytest.fixture
def recipes() -> Recipes:
    """A paper with every kind of row."""
    return small_recipes()


def text_of(tables) -> str:
    """Return Markdown without the padding of its tables."""
    return re.sub(" {2,}", " ", to_markdown(table_document(tables)))


def test_text_of_a_table(recipes, root):
    text = to_markdown(table_document(paper_tables(recipes, measured(), "p")))
    assert text == (root / "tests/experiments/recipes/table.md").read_text()


def test_unmeasured_table_names_the_command(recipes):
    tables = paper_tables(recipes, [], "p", Setting("quick", "cs224n"))
    text = text_of(tables)
    assert "| p-base | 0.500 | 0.700 | 0.200 | - | 0 |" in text
    assert "nothing yet with --budget quick --source cs224n; bertrio recipes run p --budget quick measures" in text
    assert "To measure the rest: bertrio recipes run p-t --budget quick\n" in text


def with_dev(runs, **dev) -> list:
    """Return the runs with these metrics on dev."""
    return [replace(run, metrics={"dev": run.metrics["dev"] | dev}) for run in runs]


def test_own_rows_have_columns_for_own_tasks(recipes):
    papers = {name: paper.model_copy(update={"own": True}) for name, paper in recipes.papers.items()}
    tables = paper_tables(replace(recipes, papers=papers), with_dev(measured(), nli={"macro_f1": 0.71}), "p")
    text = text_of(tables)
    assert "| sts: measured | nli: measured |" in text and "nli macro_f1" in text
    assert "p-quoted: by another model." in text and "is quoted" not in text and "reported beside" not in text


def test_other_metrics_are_not_compared_with_reported_ones(recipes):
    tables = paper_tables(recipes, with_dev(measured(), qqp={"f1": 0.123}), "p")
    assert set(line_of(tables, "p-better").dropna(subset="measured").index) == {"sst", "sts"}
    assert "0.123" not in text_of(tables)
    assert "Not compared: qqp of p-better has other metrics or tasks" in text_of(tables)


def line_of(tables, row, split="dev"):
    """Return the figures of a row on a split, by metric."""
    return tables.figures.query("row == @row and split == @split").set_index("metric")


def test_comparison_against_any_row_that_has_runs(recipes):
    for against in ("q-other", "p-quoted"):
        tables = paper_tables(recipes, [*measured(), run(against, 1, 0.25, 0.25, 0.0)], "p", against=against)
        assert line_of(tables, "p-base").loc["qqp", "difference"] == 0.25
    with pytest.raises(UserError, match="p-quoted: is another tool's or paper's"):
        paper_tables(recipes, measured(), "p", against="p-quoted")


OTHER_ROWS = "p-better and p-base were measured on other dev rows of sst"


@pytest.mark.parametrize(("count", "message"), [(1, OTHER_ROWS), (0, "p-base is not measured yet")])
def test_incomparable_runs_are_shown_with_the_reason(recipes, count, message):
    tables = paper_tables(recipes, [*measured()[:count], simulate("p-better", rows=5)], "p")
    better = line_of(tables, "p-better")
    assert better["measured"].notna().sum() == 5 and better["difference"].isna().all()
    assert f"Not compared: {message}." in text_of(tables)


def test_runs_with_overrides_are_left_out_and_noted(recipes, root, monkeypatch):
    monkeypatch.chdir(root)
    changed = {"optimizer.max_grad_norm": None}
    runs = [*measured(), simulate("p-base", overrides=changed)]
    assert "Left out are runs with other overrides (-S), 1 of them" in text_of(paper_tables(recipes, runs, "p"))
    selected = paper_tables(recipes, runs, "p", Setting(overrides=changed))
    assert "Measured: budget quick, cs224n, small, optimizer.max_grad_norm null;" in text_of(selected)
    assert set(frame(selected)["overrides"]) == {"optimizer.max_grad_norm null"}


def test_test_scores_are_compared_with_reported_test_scores(recipes):
    tested = run("p-better", 1, 0.75, 0.75, 0.4)
    tested.metrics["test"] = {"sst": {"accuracy": 0.6}}
    sst = line_of(paper_tables(recipes, [tested], "p"), "p-better", "test").loc["sst"]
    assert (sst["reported"], sst["measured"]) == (0.54, 0.6)


def test_files_have_all_figures_and_reproducible_plots(recipes, tmp_path):
    runs = [replace(run, dots={"sst qqp": [(10, -0.5), (20, 0.5)]}) for run in measured()]
    first, second = (write_tables(paper_tables(recipes, runs, "p"), tmp_path / name, plots=True) for name in "ab")
    text, figures, *pictures = first
    assert text.name == "p-quick-cs224n-small.md"
    table = pd.read_csv(figures).set_index(["split", "row", "metric"])
    better = table.loc[("dev", "p-better", "overall_normalized")]
    assert (better["reported"], better["measured"]) == pytest.approx((0.65, 0.7333), abs=1e-4)
    assert better["against"] == "p-base"
    assert better["difference_low"] < better["difference"] < better["difference_high"]
    assert table.loc[("dev", "p-better", "overall"), "reported"] == 0.66
    assert table.loc[("dev", "p-base", "sst"), "deviation"] == pytest.approx(np.std([0.5, 0.35], ddof=1), rel=1e-5)
    assert [path.name for path in pictures] == ["t-scores.png", "t-curves.png", "t-dots.png"]
    assert [path.read_bytes() for path in pictures] == [path.read_bytes() for path in second[2:]]
    assert all(f"]({path.relative_to(tmp_path / 'a').as_posix()})" in text.read_text() for path in pictures)


@pytest.mark.parametrize(("runs", "expected"), [([], []), ([simulate("p-base", curve=[])], ["t-scores.png"])])
def test_no_plots_without_measurements(recipes, runs, expected, tmp_path):
    pictures = draw_tables(paper_tables(recipes, runs, "p"), tmp_path)
    assert [path.name for paths in pictures.values() for path in paths] == expected


def test_mean_curve_covers_epochs_of_all_seeds():
    longer, shorter = ({"step": steps, "dev_sst": scores} for steps, scores in (([9, 18], [0.2, 0.4]), ([9], [0.4])))
    mean = mean_curve([simulate("a", 1, history=longer), simulate("a", 2, history=shorter)])
    assert mean.to_dict() == {"step": {1: 9}, "dev_sst": {1: pytest.approx(0.3)}}


def test_curves_cover_trained_tasks_and_the_papers_overall(recipes):
    recipes.papers["p"].tables["t"].rows["p-base"].overrides["schedule.tasks"] = ["sts"]
    single = {"loss_sts": [1.0], "dev_sts": [0.3], "dev_sst": [0.1], "dev_overall_mean": [0.5]}
    joint = single | {"loss_sst": [2.0], "loss_qqp": [0.5], "dev_qqp": [0.6], "dev_overall_normalized": [0.7]}
    paper = recipes.papers["p"].model_copy(update={"overall": "raw"})
    runs = [simulate("p-base", history=single), simulate("p-better", history=joint), simulate("p-waits")]
    curves = curves_of(paper_tables(replace(recipes, papers={"p": paper}), runs, "p"), "t")
    panels = {panel: {row: curve[1] for row, curve in lines.items()} for panel, lines in curves.items()}
    assert panels["dev", "sts"] == panels["dev", "sts"] | {"base": 0.3, "better": 0.3}
    assert panels["dev", "sst"] == {"better": 0.1}  # base does not train sst
    assert panels["dev", "overall"] == {"better": 0.5} and panels["loss", "overall"] == {"better": 3.5}
    normalized = curves_of(paper_tables(recipes, runs, "p"), "t")["dev", "overall"]
    assert set(normalized) == {"better", "waits"}  # a file without history has only this score
    recipes.papers["p"].tables["t"].rows["p-waits"].overrides["schedule.tasks"] = ["sst"]
    assert set(curves_of(paper_tables(recipes, runs, "p"), "t")["dev", "overall"]) == {"better"}
