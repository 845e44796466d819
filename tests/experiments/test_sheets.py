import io

import pytest
from rich.console import Console

from bertrio.experiments.sheets import Sheet

NAME = "a-row-whose-name-the-next-command-needs"
SHEET = Sheet(
    ["row", "seeds", "sst: paper", "sst: measured", "sts: paper", "sts: measured"],
    [[NAME, "1", "0.500", "0.511 [0.480, 0.540]", "0.600", "0.611 [0.580, 0.640]"], ["b (the run of c)", *"23456"]],
    "Scores",
    groups=[1, 2, 2],
)


def shown(sheet, width):
    console = Console(width=width, record=True, file=io.StringIO())
    sheet.show(console)
    return console.export_text()


def cells(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
def test_names_and_figures_are_whole_on_any_terminal(width):
    text = shown(SHEET, width)
    lines = cells(text)
    assert any(line[0] == NAME for line in lines)
    found = {cell for line in lines for cell in line}
    assert {"0.500", "0.600"} <= found
    assert any("[0.580, 0.640]" in cell for cell in found)
    assert "…" not in text
    assert text.count("Scores") == 1
    if width >= 70:
        assert max(map(len, text.splitlines())) <= width


def test_what_fits_is_one_table():
    first = [NAME, "1", "0.500", "0.511 [0.480, 0.540]", "0.600", "0.611 [0.580, 0.640]"]
    assert cells(shown(SHEET, 200))[0] == first


def test_brackets_move_below_before_columns_move_apart():
    first, below = cells(shown(SHEET, 110))[:2]
    assert first == [NAME, "1", "0.500", "0.511", "0.600", "0.611"]
    assert below == ["", "", "", "[0.480, 0.540]", "", "[0.580, 0.640]"]


def test_columns_that_are_read_together_stay_together_beside_the_names():
    text = shown(SHEET, 80)
    of_names = [line for line in cells(text) if line[0] == NAME]
    assert of_names == [[NAME, "1", "0.500", "0.511"], [NAME, "0.600", "0.611"]]
    assert text.count("(the run of c)") == 2


def test_markdown_has_it_all_on_a_line():
    assert f"| {NAME} | 1 | 0.500 | 0.511 [0.480, 0.540] | 0.600 | 0.611 [0.580, 0.640] |" in SHEET.markdown()
