import io

import pytest
import yaml
from rich.console import Console

from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.recipes.show import show_recipes, show_row
from tests.experiments.recipes.test_rows import write_recipes


@pytest.fixture
def recipes(tmp_path, root, monkeypatch):
    monkeypatch.chdir(root)
    return load_recipes(write_recipes(tmp_path / "recipes"))


def line_of(text, name):
    """The cells of the one line that begins with `name`; others may have it where they go on."""
    found = [line.replace("│", " ").split() for line in text.splitlines() if line.startswith(f"│ {name} ")]
    assert len(found) == 1
    return found[0]


def test_every_row_and_sweep_has_a_line_with_table_and_figures(recipes, capsys):
    show_recipes(recipes)
    told = capsys.readouterr().out
    assert line_of(told, "one-plain") == ["one-plain", "table2", "0.500", "-", "-", "0.600", "Plain"]
    for row in recipes.paper("one").rows:
        assert row.table in line_of(told, row.name)
    assert "one-smart" in line_of(told, "one-lambda-1")  # whose run it is
    assert "literature" in " ".join(line_of(told, "one-quoted"))
    assert "4 runs" in " ".join(line_of(told, "one-grid"))


def test_names_are_whole_on_a_narrow_terminal(root):
    papers = load_recipes(root / "recipes")
    console = Console(width=100, record=True, file=io.StringIO())
    show_recipes(papers, console)
    text = console.export_text()
    assert all(line_of(text, row.name) for paper in papers.papers.values() for row in paper.rows)


def test_the_params_of_a_row_go_to_standard_output_and_are_what_is_run(recipes, capsys):
    show_row(recipes, "one-five", "quick", {"smart.steps": 2, "runtime.seed": 3})
    told = capsys.readouterr()
    assert yaml.safe_load(told.out) == resolve(recipes, recipes.row("one-five"), "quick", {"smart.steps": 2}, seed=3)
    assert "smart.lambda" in told.err


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("one-surgery", ["eta is not given", "Starts from one-smart", "surgery.method"]),
        ("one-grid-lr-3e-05-weight_decay-0.01", ["Learning rate and weight decay"]),
        ("one-quoted", ["can't be run"]),
    ],
)
def test_in_brief_a_row_is_what_it_is_and_what_it_changes(recipes, capsys, name, texts):
    show_row(recipes, name, brief=True)
    shown = capsys.readouterr().out
    assert all(text in shown for text in texts)
    assert "surgery.reduction" not in shown
