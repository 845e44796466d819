import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.comparable import Setting
from bertrio.experiments.recipes.rows import Recipes
from bertrio.experiments.recipes.table_plots import draw_tables, mean_curve
from bertrio.experiments.recipes.table_text import frame, table_document, to_markdown, write_tables
from bertrio.experiments.recipes.tables import paper_tables
from tests.experiments.simulated import measured, run, simulate, small_recipes


@pytest.fixture
def recipes() -> Recipes:
    """One paper with every kind of row."""
    return small_recipes()


def text_of(tables) -> str:
    """Return Markdown without the padding of its tables."""
    return re.sub(" {2,}", " ", to_markdown(table_document(tables)))


def test_a_table_as_it_is_written(recipes, root):
    text = to_markdown(table_document(paper_tables(recipes, measured(), "p")))
    assert text == (root / "tests/experiments/recipes/table.md").read_text()


def test_of_a_table_that_is_not_measured_the_text_says_what_to_run(recipes):
    tables = paper_tables(recipes, [], "p", Setting("quick", "cs224n"))
    text = text_of(tables)
    assert "| p-base | 0.500 | 0.700 | 0.200 | - | 0 |" in text
    assert "nothing yet with --budget quick --source cs224n; bertrio recipes run p --budget quick measures" in text
    assert "To measure the rest: bertrio recipes run p-t --budget quick\n" in text


def with_dev(runs, **dev) -> list:
    """Return the runs with these metrics on dev."""
    return [replace(run, metrics={"dev": run.metrics["dev"] | dev}) for run in runs]


def test_rows_of_our_own_have_columns_for_tasks_of_ones_own(recipes):
    papers = {name: paper.model_copy(update={"own": True}) for name, paper in recipes.papers.items()}
    tables = paper_tables(replace(recipes, papers=papers), with_dev(measured(), nli={"macro_f1": 0.71}), "p")
    text = text_of(tables)
    assert "| sts: measured | nli: measured |" in text and "nli macro_f1" in text
    assert "reported beside" not in text


def test_figures_by_another_metric_never_stand_beside_a_papers(recipes):
    tables = paper_tables(recipes, with_dev(measured(), qqp={"f1": 0.123}), "p")
    assert set(line_of(tables, "p-better").dropna(subset="measured").index) == {"sst", "sts"}
    assert "0.123" not in text_of(tables)
    assert "Not compared: qqp of p-better has other metrics or tasks" in text_of(tables)


def line_of(tables, row, split="dev"):
    """Return the figures of a row on a split, by metric."""
    return tables.figures.query("row == @row and split == @split").set_index("metric")


def test_rows_are_compared_with_any_row_that_was_run(recipes):
    other = run("q-other", 1, 0.25, 0.25, 0.0)
    tables = paper_tables(recipes, [*measured(), other], "p", against="q-other")
    assert line_of(tables, "p-base").loc["qqp", "difference"] == 0.25
    with pytest.raises(UserError, match="p-quoted: is quoted from the literature"):
        paper_tables(recipes, measured(), "p", against="p-quoted")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (measured()[:1], "p-better and p-base were measured on other dev rows of sst"),
        ([], "p-base is not measured yet"),
    ],
)
def test_runs_that_can_not_be_compared_are_shown_with_the_reason(recipes, base, message):
    tables = paper_tables(recipes, [*base, simulate("p-better", rows=5)], "p")
    better = line_of(tables, "p-better")
    assert better["measured"].notna().sum() == 5 and better["difference"].isna().all()
    assert f"Not compared: {message}." in text_of(tables)


def test_runs_with_overrides_are_left_out_and_mentioned(recipes, root, monkeypatch):
    monkeypatch.chdir(root)
    changed = {"optimizer.max_grad_norm": None}
    runs = [*measured(), simulate("p-base", overrides=changed)]
    assert "Left out are runs with other overrides (-S), 1 of them" in text_of(paper_tables(recipes, runs, "p"))
    wanted = paper_tables(recipes, runs, "p", Setting(overrides=changed))
    assert "Measured: budget quick, cs224n, small, optimizer.max_grad_norm null;" in text_of(wanted)
    assert set(frame(wanted)["overrides"]) == {"optimizer.max_grad_norm null"}


def test_test_scores_stand_beside_the_reported_ones_of_test(recipes):
    tested = run("p-better", 1, 0.75, 0.75, 0.4)
    tested.metrics["test"] = {"sst": {"accuracy": 0.6}}
    sst = line_of(paper_tables(recipes, [tested], "p"), "p-better", "test").loc["sst"]
    assert (sst["reported"], sst["measured"]) == (0.54, 0.6)


def test_files_are_named_after_the_setting_and_have_all_figures_and_the_same_pictures_each_time(recipes, tmp_path):
    first, second = (write_tables(paper_tables(recipes, measured(), "p"), tmp_path / name, plots=True) for name in "ab")
    text, figures, *pictures = first
    assert text.name == "p-quick-cs224n-small.md"
    table = pd.read_csv(figures).set_index(["split", "row", "metric"])
    better = table.loc[("dev", "p-better", "overall_normalized")]
    assert (better["reported"], better["measured"]) == pytest.approx((0.65, 0.7333), abs=1e-4)
    assert better["against"] == "p-base"
    assert better["difference_low"] < better["difference"] < better["difference_high"]
    assert table.loc[("dev", "p-better", "overall"), "reported"] == 0.66
    assert table.loc[("dev", "p-base", "sst"), "deviation"] == pytest.approx(np.std([0.5, 0.35], ddof=1), rel=1e-5)
    assert [path.name for path in pictures] == ["t-scores.png", "t-curves.png"]
    assert [path.read_bytes() for path in pictures] == [path.read_bytes() for path in second[2:]]
    assert all(f"]({path.relative_to(tmp_path / 'a').as_posix()})" in text.read_text() for path in pictures)


@pytest.mark.parametrize(("runs", "drawn"), [([], []), ([simulate("p-base", curve=[])], ["t-scores.png"])])
def test_nothing_is_drawn_of_what_was_not_measured(recipes, runs, drawn, tmp_path):
    pictures = draw_tables(paper_tables(recipes, runs, "p"), tmp_path)
    assert [path.name for paths in pictures.values() for path in paths] == drawn


def test_curves_are_means_at_the_steps_that_all_seeds_have():
    runs = [simulate("a", 1, curve=[(10, 0.2), (20, 0.4), (30, 0.9)]), simulate("a", 2, curve=[(10, 0.4), (20, 0.5)])]
    pd.testing.assert_series_equal(mean_curve(runs), pd.Series([0.3, 0.45], index=[10, 20]))
