import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.rows import Recipes, load_recipes
from bertrio.experiments.recipes.table_text import frame, markdown, show_tables, write_tables
from bertrio.experiments.recipes.tables import paper_tables
from bertrio.experiments.runs import Setting
from tests.experiments.simulated import measured, run, simulate, small_recipes


@pytest.fixture
def recipes() -> Recipes:
    """One paper with every kind of row."""
    return small_recipes()


def test_a_table_as_it_is_written(recipes, root):
    assert markdown(paper_tables(recipes, measured(), "p")) == (root / "tests/experiments/recipes/table.md").read_text()


def test_nothing_measured_is_all_dashes_and_says_what_to_run(recipes):
    tables = paper_tables(recipes, [], "p")
    text = plain(markdown(tables))
    assert "Measured: nothing yet; bertrio recipes run p measures all rows." in text
    assert "| p-base | - | 0.500 | - | 0.700 | - | 0.200 | - |" in text
    assert "0 of 4 rows measured." in text
    assert "Not compared: p-base is not measured yet." in text
    assert frame(tables)["measured"].isna().all()
    asked = markdown(paper_tables(recipes, [], "p", Setting("quick", "cs224n")))
    assert "nothing yet with --budget quick --source cs224n; bertrio recipes run p --budget quick measures" in asked


def plain(text: str) -> str:
    """Return Markdown without the padding of its tables."""
    return re.sub(" {2,}", " ", text)


def shown(tables, width):
    console = Console(width=width, record=True, file=io.StringIO())
    show_tables(tables, console)
    return console.export_text()


def own_text(recipes, runs) -> str:
    """The tables where the paper is a set of rows of our own."""
    return plain(markdown(paper_tables(as_own(recipes), runs, "p")))


def as_own(recipes) -> Recipes:
    return replace(
        recipes, papers={name: paper.model_copy(update={"own": True}) for name, paper in recipes.papers.items()}
    )


def better_with(**dev) -> list:
    """The measured runs, that of p-better with these dev metrics."""
    return [with_dev(run, **dev) if run.row == "p-better" else run for run in measured()]


def with_dev(run, **dev):
    """The same run with these metrics, each on the rows of sst where it has none of its own."""
    metrics = run.metrics | {"dev": run.metrics["dev"] | dev}
    return replace(run, metrics=metrics, by_row={task: run.by_row["sst"] for task in dev} | run.by_row)


def test_rows_of_our_own_have_columns_for_tasks_of_ones_own(recipes, tmp_path):
    tables = paper_tables(as_own(recipes), [with_dev(run, nli={"macro_f1": 0.71}) for run in measured()], "p")
    header, line = (
        next(row for row in markdown(tables).splitlines() if row.startswith(at)) for at in ("| row", "| p-b")
    )
    at = [cell.strip() for cell in header.split("|")].index("nli macro_f1")
    assert line.split("|")[at].strip().startswith("0.71")
    assert {"sst", "qqp", "sts", "nli"} <= set(frame(tables)["metric"])
    text = plain(markdown(tables))
    assert text.startswith("# p: A Paper\n\nMeasured: budget quick")
    assert "reported" not in text.lower() and ": paper" not in text and "as printed" not in text  # columns for a paper
    assert write_tables(tables, tmp_path, plots=True)[-1].exists()


def test_other_tasks_and_other_first_metrics_are_told_and_not_compared(recipes):
    text = own_text(recipes, better_with(nli={"macro_f1": 0.71}))
    assert "Not all runs have the same tasks; overall scores are over those that a run has." in text
    usual = "sst accuracy, qqp accuracy, sts pearson"
    assert f"overall_mean: of p-base it is {usual} and of p-better it is {usual}, nli macro_f1" in text
    text = own_text(recipes, better_with(sts={"spearman": 0.5}))
    assert "sts pearson or spearman" in text or "sts spearman or pearson" in text
    assert "sts: of p-base it is sts pearson and of p-better it is sts spearman" in text


def test_figures_by_another_metric_never_stand_beside_a_papers(recipes):
    tables = paper_tables(recipes, better_with(qqp={"f1": 0.123}), "p")
    assert set(line_of(tables, "p-better").dropna(subset="measured").index) == {"sst", "sts"}
    text = plain(markdown(tables))
    assert "0.123" not in text
    assert re.search(r"Left out of p-better[^:]*: figures by other metrics, or over other tasks, than", text)


def line_of(tables, row, split="dev"):
    """The figures of a row on a split, by metric."""
    return tables.figures.query("row == @row and split == @split").set_index("metric")


def test_of_a_table_without_measured_rows_the_terminal_says_what_measures_it(recipes):
    told = shown(paper_tables(recipes, [], "p", Setting("quick")), 80).splitlines()
    command = "Nothing of this table is measured yet: bertrio recipes run p-t --budget quick"
    assert told.count(command) == 2  # dev and test
    assert not [line for line in told if line.startswith("│")]
    told = shown(paper_tables(recipes, measured(), "p"), 80)
    assert "Nothing of this table is measured: the runs have other metrics, or no labels of test." in told
    assert "3 of 4 rows measured" in told


def test_rows_are_compared_with_any_row_that_was_run(recipes):
    other = run("q-other", 1, 0.25, 0.25, 0.0)
    tables = paper_tables(recipes, [*measured(), other], "p", against="q-other")
    assert line_of(tables, "p-base").loc["qqp", "difference"] == 0.25
    assert "minus q-other" in markdown(tables)
    with pytest.raises(UserError, match="p-quoted: is quoted from the literature"):
        paper_tables(recipes, measured(), "p", against="p-quoted")


def test_runs_on_other_dev_rows_are_shown_and_not_compared(recipes):
    tables = paper_tables(recipes, [measured()[0], simulate("p-better", rows=5)], "p")
    better = line_of(tables, "p-better")
    assert better["measured"].notna().sum() == 5 and better["difference"].isna().all()
    assert "Not compared: p-better and p-base were measured on other dev rows of sst." in markdown(tables)


@pytest.mark.parametrize("other", [{"budget": "paper"}, {"source": "hub"}, {"encoder": "large"}])
def test_settings_are_never_mixed(recipes, other):
    mixed = [*measured(), simulate("p-waits", **other)]
    with pytest.raises(UserError, match="several settings"):
        paper_tables(recipes, mixed, "p")
    assert len(paper_tables(recipes, mixed, "p", Setting("quick", "cs224n", "small")).runs.all) == 3


def test_runs_with_overrides_are_left_out_and_mentioned(recipes, root, monkeypatch):
    monkeypatch.chdir(root)
    changed = {"optimizer.max_grad_norm": None}
    runs = [*measured(), simulate("p-base", overrides=changed)]
    assert "Left out are runs with other overrides (-S), 1 of them" in markdown(paper_tables(recipes, runs, "p"))
    asked = paper_tables(recipes, runs, "p", Setting(overrides=changed))
    assert "Measured: budget quick, cs224n, small, optimizer.max_grad_norm null (" in markdown(asked)
    assert set(frame(asked)["overrides"]) == {"optimizer.max_grad_norm null"}


def test_test_scores_stand_beside_the_reported_ones_of_test(recipes):
    tested = run("p-better", 1, 0.75, 0.75, 0.4)
    tested.metrics["test"] = {"sst": {"accuracy": 0.6}}
    tables = paper_tables(recipes, [tested], "p")
    sst = line_of(tables, "p-better", "test").loc["sst"]
    assert (sst["reported"], sst["measured"]) == (0.54, 0.6)
    assert set(tables.figures.query("split == 'test'")["row"]) == {"p-better"}


def test_papers_whose_own_overall_score_does_not_follow_are_found(root):
    recipes = load_recipes(root / "recipes")
    figures = pd.concat(paper_tables(recipes, [], name).figures for name in recipes.papers)
    found = set(figures[figures["odd"]]["row"])
    assert found == {"strategies-multitask-smart", "beyond-max-size-cycle", "beyond-sft-smart"}


def test_files_are_named_after_the_setting_and_hold_every_figure(recipes, tmp_path):
    tables = paper_tables(recipes, measured(), "p")
    text, figures = write_tables(tables, tmp_path)
    assert text.name == "p-quick-cs224n-small.md"
    assert text.read_text() == markdown(tables)
    table = pd.read_csv(figures).set_index(["split", "row", "metric"])
    better = table.loc[("dev", "p-better", "overall_normalized")]
    assert better["reported"] == pytest.approx(0.65)
    assert better["measured"] == pytest.approx(0.7333, abs=1e-4)
    assert better["against"] == "p-base"
    assert better["difference_low"] < better["difference"] < better["difference_high"]
    assert table.loc[("dev", "p-better", "overall"), "reported"] == 0.66
    assert table.loc[("dev", "p-base", "sst"), "deviation"] == pytest.approx(np.std([0.5, 0.35], ddof=1), rel=1e-5)


def test_the_terminal_shows_what_markdown_says(recipes):
    text = shown(paper_tables(recipes, measured(), "p"), 180)
    for cell in ("p-again (the run of p-better)", "0.425 ±0.106", "+0.250 [-1.000, +1.000]°", "3 of 4 rows measured"):
        assert cell in text
