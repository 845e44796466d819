import pandas as pd
import pytest

from bertrio.experiments.recipes.table_plots import draw_tables, mean_curve
from bertrio.experiments.recipes.table_text import write_tables
from bertrio.experiments.recipes.tables import PaperTables, paper_tables
from tests.experiments.simulated import measured, simulate, small_recipes

PNG = b"\x89PNG\r\n"


@pytest.fixture
def tables() -> PaperTables:
    return paper_tables(small_recipes(), measured(), "p")


def test_every_table_with_a_run_gets_both_pictures_the_same_bytes_each_time(tables, tmp_path):
    first, second = (draw_tables(tables, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first["t"]] == ["t-scores.png", "t-curves.png"]
    for one, other in zip(first["t"], second["t"]):
        assert one.read_bytes() == other.read_bytes()
        assert one.read_bytes().startswith(PNG)


def test_nothing_is_drawn_of_what_was_not_measured(tmp_path):
    assert draw_tables(paper_tables(small_recipes(), [], "p"), tmp_path) == {}
    elsewhere = [simulate("p-base", metrics={"dev": {"other": {"accuracy": 0.5}}})]
    assert draw_tables(paper_tables(small_recipes(), elsewhere, "p"), tmp_path) == {}
    without = paper_tables(small_recipes(), [simulate("p-base", curve=[])], "p")
    assert [path.name for path in draw_tables(without, tmp_path)["t"]] == ["t-scores.png"]


def test_markdown_shows_the_pictures_beside_it(tables, tmp_path):
    text, _, *pictures = write_tables(tables, tmp_path, plots=True)
    assert [f"]({path.relative_to(tmp_path).as_posix()})" in text.read_text() for path in pictures] == [True, True]


def test_curves_are_means_at_the_steps_that_all_seeds_have():
    runs = [simulate("a", 1, curve=[(10, 0.2), (20, 0.4), (30, 0.9)]), simulate("a", 2, curve=[(10, 0.4), (20, 0.5)])]
    pd.testing.assert_series_equal(mean_curve(runs), pd.Series([0.3, 0.45], index=[10, 20]))
    assert mean_curve(runs[:1]).max() == 0.9
