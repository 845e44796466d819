import pytest
import yaml

from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.recipes.show import show_recipes, show_row
from tests.experiments.recipes.test_rows import write_recipes


@pytest.fixture
def recipes(tmp_path):
    return load_recipes(write_recipes(tmp_path / "recipes"))


def line_of(text, name):
    """Return the cells of the one line that begins with `name`."""
    [line] = [line.split() for line in text.splitlines() if line.startswith(f"{name} ")]
    return line


def test_recipes_are_listed_with_table_and_figures(recipes, capsys):
    show_recipes(recipes)
    shown = capsys.readouterr().out
    assert line_of(shown, "one-plain") == ["one-plain", "table2", "0.500", "-", "-", "0.600", "Plain"]
    assert "one-smart" in line_of(shown, "one-lambda-1")  # it shares this run
    assert "another tool's or paper's, can't be run" in " ".join(line_of(shown, "one-quoted"))
    assert "4 runs" in " ".join(line_of(shown, "one-grid"))


def test_show_row_prints_the_params_that_run(recipes, capsys):
    show_row(recipes, "one-five", "quick", {"smart.steps": 2, "runtime.seed": 3})
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out) == resolve(recipes, recipes.row("one-five"), "quick", {"smart.steps": 2}, seed=3)
    assert "smart.lambda" in shown.err


def test_brief_shows_description_and_changes(recipes, capsys):
    for name in ("one-surgery", "one-grid-lr-3e-05-weight_decay-0.01", "one-quoted"):
        show_row(recipes, name, brief=True)
    shown = capsys.readouterr().out
    for text in ("eta is not given", "Starts from one-smart", "surgery.method", "Learning rate and weight", "can't be"):
        assert text in shown
    assert "surgery.reduction" not in shown
