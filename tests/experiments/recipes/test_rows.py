"""Files of recipes: the made-up paper `one`, and errors in it."""

import shutil
from pathlib import Path

import pytest
import yaml

from bertrio.config.loading import merged
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.rows import load_recipes


def write_recipes(folder, changes=None):
    """Write a copy of the paper `one`, with changes merged in, and its budgets."""
    shutil.copytree(Path(__file__).parent / "one", folder)
    if changes:
        paper = yaml.safe_load((folder / "one.yaml").read_text().replace("on:", "'on':"))
        (folder / "one.yaml").write_text(yaml.safe_dump(merged(paper, changes), sort_keys=False))
    return folder


def load(folder, changes=None):
    return load_recipes(write_recipes(folder / "recipes", changes))


def rows(table="table2", **changed):
    """Changes to rows of one table."""
    return {"tables": {table: {"rows": {name.replace("_", "-"): row for name, row in changed.items()}}}}


def names(listed):
    return [row.name for row in listed]


def test_a_row_has_what_its_paper_shares_what_it_is_on_and_its_own_on_top(tmp_path):
    recipes = load(tmp_path)
    inherited = {"finetune.epochs": 3, "schedule.first.qqp": 2, "smart.lambda": 1}
    assert recipes.row("one-surgery").overrides == inherited | {"finetune.lr": 2e-5, "surgery.method": "pcgrad"}
    # The file has 1e-5 and the key on, which YAML 1.1 reads as text and as true
    assert recipes.row("one-smart").overrides["finetune.lr"] == 1e-5
    row = recipes.row("one-plain")
    assert (row.paper, row.table, row.title) == ("one", "table2", "Plain")
    assert (row.reported, row.reported_test) == ({"sst": 0.5, "overall": 0.6}, {"sst": 0.4})


def test_rows_of_our_own_are_called_by_their_names_alone(tmp_path):
    recipes = load(tmp_path, {"own": True})
    assert names(recipes.expand(["one-table3"])) == ["smart", "lambda-0.5"]
    assert (recipes.row("lambda-1").run_as, recipes.row("smart").on) == ("smart", "plain")
    sweep = recipes.paper("one").sweeps["grid"]
    assert (sweep.on, next(iter(sweep.rows))) == ("smart", "grid-lr-1e-05-weight_decay-0")


def test_names_stand_for_rows_tables_papers_and_sweeps_each_run_once_in_order(tmp_path):
    recipes = load(tmp_path)
    assert names(recipes.expand(["one-table3"])) == ["one-smart", "one-lambda-0.5"]
    once = ["one-surgery", "one-plain", "one-smart", "one-five", "one-lambda-0.5"]
    assert names(recipes.expand(["one-surgery", "one"])) == once
    same = recipes.row("one-lambda-1")
    assert (same.run_as, same.reported) == ("one-smart", {"sst": 0.53})
    assert same.overrides == recipes.row("one-smart").overrides


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"tasks.sst.dropout": [1], "tasks.qqp.dropout": [1]}, ["one-new-sst.dropout-1-qqp.dropout-1"]),
        ({"tasks.*.dropout": [1], "smart.lambda": [2]}, ["one-new-dropout-1-lambda-2"]),
        # A point with the overrides of a row in a table is the same run
        ({"smart.lambda": [0.5, 2], "finetune.lr": [1e-5]}, ["one-lambda-0.5", "one-new-lambda-2-lr-1e-05"]),
    ],
)
def test_points_of_a_sweep_are_called_after_their_values_and_set_them(tmp_path, over, expected):
    recipes = load(tmp_path, {"sweeps": {"new": {"title": "N", "on": "smart", "over": over}}})
    points = recipes.expand(["one-new"])
    assert names(points) == expected
    last = {param: values[-1] for param, values in over.items()}
    assert points[-1].overrides == {**recipes.row("one-smart").overrides, **last}


def test_a_name_that_can_not_be_run_is_an_error(tmp_path):
    recipes = load(tmp_path)
    with pytest.raises(UserError, match=r"^one-smrt: is not in .*; did you mean one-smart\?"):
        recipes.expand(["one-plain", "one-smrt"])
    with pytest.raises(UserError, match="one-quoted: can't be run"):
        recipes.expand(["one-plain", "one-quoted"])
    with pytest.raises(UserError, match="^one-table3: expected one row, found 2; name one of them, such as one-l"):
        recipes.row("one-table3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (rows(smart={"titel": "S"}), "one.yaml: tables.table2.rows.smart.titel: unknown key; did you mean"),
        (rows(smart={"on": "plian"}), "plian: is not in the rows of "),
        (rows(plain={"on": "smart"}), "one.yaml: plain -> smart -> plain: expected a start that can be run"),
        (rows("table3", lambda_1={"set": {"a": 1}}), "expected one of literature, same_as, or on and set"),
        (rows("table3", smart={"title": "S"}), "one-smart is the name of two"),
        (rows(**{"a b": {"title": "S"}}), "rows.a b: expected a name of small letters and digits"),  # git refuses it
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_row_and_key(tmp_path, changes, message):
    with pytest.raises(UserError) as caught:
        load(tmp_path, changes)
    assert message in str(caught.value)


def test_budgets_are_read_as_strictly_and_a_folder_without_papers_is_an_error(tmp_path):
    with pytest.raises(UserError, match="found no recipes"):
        load_recipes(tmp_path)
    folder = write_recipes(tmp_path / "recipes")
    (folder / "budgets.yaml").write_text("quick: {title: less, multiplied: {}}")
    with pytest.raises(UserError, match="budgets.yaml: quick.multiplied: unknown key"):
        load_recipes(folder)
