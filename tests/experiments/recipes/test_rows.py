"""Recipe files: the example paper `one`, and errors in it."""

import shutil
from pathlib import Path

import pytest
import yaml

from bertrio.config.loading import merged
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.rows import load_recipes


def write_recipes(folder, changes=None):
    """Write a copy of the paper `one`, with changes merged in, and its budgets; params.yaml goes beside the folder."""
    shutil.copytree(Path(__file__).parent / "one", folder)
    shutil.copy(Path(__file__).parents[3] / "params.yaml", folder.parent)
    if changes:
        paper = yaml.safe_load((folder / "one.yaml").read_text().replace("on:", "'on':"))
        (folder / "one.yaml").write_text(yaml.safe_dump(merged(paper, changes), sort_keys=False))
    return folder


def load(folder, changes=None):
    return load_recipes(write_recipes(folder / "recipes", changes))


def rows(table="table2", **changes):
    """Return changes to rows of one table."""
    return {"tables": {table: {"rows": {name.replace("_", "-"): row for name, row in changes.items()}}}}


def names(listed):
    return [row.name for row in listed]


def test_row_inherits_from_its_paper_and_its_base_row(tmp_path):
    recipes = load(tmp_path)
    inherited = {"finetune.epochs": 3, "schedule.first.qqp": 2, "smart.lambda": 1}
    assert recipes.row("one-surgery").overrides == inherited | {"finetune.lr": 2e-5, "surgery.method": "pcgrad"}
    # YAML 1.1 reads 1e-5 as text and the key on as true
    assert recipes.row("one-smart").overrides["finetune.lr"] == 1e-5
    row = recipes.row("one-plain")
    assert (row.paper, row.table, row.title) == ("one", "table2", "Plain")
    assert (row.reported, row.reported_test) == ({"sst": 0.5, "overall": 0.6}, {"sst": 0.4})


def test_own_rows_have_no_prefix(tmp_path):
    recipes = load(tmp_path, {"own": True})
    assert names(recipes.expand(["one-table3"])) == ["smart", "lambda-0.5"]
    assert (recipes.row("lambda-1").run_as, recipes.row("smart").on) == ("smart", "plain")
    sweep = recipes.paper("one").sweeps["grid"]
    assert (sweep.on, next(iter(sweep.rows))) == ("smart", "grid-lr-1e-05-weight_decay-0")


def test_names_expand_to_rows_in_order_without_duplicates(tmp_path):
    recipes = load(tmp_path)
    assert names(recipes.expand(["one-table3"])) == ["one-smart", "one-lambda-0.5"]
    once = ["one-surgery", "one-plain", "one-smart", "one-five", "one-lambda-0.5"]
    assert names(recipes.expand(["one-surgery", "one"])) == once
    shared = recipes.row("one-lambda-1")
    assert (shared.run_as, shared.reported) == ("one-smart", {"sst": 0.53})
    assert shared.overrides == recipes.row("one-smart").overrides


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"tasks.sst.dropout": [1], "tasks.qqp.dropout": [1]}, ["one-new-sst.dropout-1-qqp.dropout-1"]),
        ({"tasks.*.dropout": [1], "smart.lambda": [2]}, ["one-new-dropout-1-lambda-2"]),
        # A point with the overrides of a row in a table is the same run
        ({"smart.lambda": [0.5, 2], "finetune.lr": [1e-5]}, ["one-lambda-0.5", "one-new-lambda-2-lr-1e-05"]),
    ],
)
def test_sweep_points_are_named_after_their_values(tmp_path, over, expected):
    recipes = load(tmp_path, {"sweeps": {"new": {"title": "N", "on": "smart", "over": over}}})
    points = recipes.expand(["one-new"])
    assert names(points) == expected
    last = {param: values[-1] for param, values in over.items()}
    assert points[-1].overrides == {**recipes.row("one-smart").overrides, **last}


def test_name_that_can_not_be_run_is_an_error(tmp_path):
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
        (rows(**{"a b": {"title": "S"}}), "rows.a b: expected a name of small letters and digits"),  # no valid git ref
    ],
)
def test_error_names_file_row_and_key(tmp_path, changes, message):
    with pytest.raises(UserError) as caught:
        load(tmp_path, changes)
    assert message in str(caught.value)


def test_invalid_budgets_and_empty_folder_are_errors(tmp_path):
    with pytest.raises(UserError, match="found no recipes"):
        load_recipes(tmp_path)
    folder = write_recipes(tmp_path / "recipes")
    (folder / "budgets.yaml").write_text("quick: {title: less, multiplied: {}}")
    with pytest.raises(UserError, match="budgets.yaml: quick.multiplied: unknown key"):
        load_recipes(folder)
