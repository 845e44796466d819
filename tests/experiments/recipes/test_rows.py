"""Files of recipes: a made-up paper, `one`, in a folder beside this file, and what may be wrong in it."""

import shutil
from pathlib import Path

import pytest
import yaml

from bertrio.config.loading import merged
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.rows import load_recipes


def write_recipes(folder, changes=None):
    """A copy of the paper `one`, changed as params are overridden, and its budgets."""
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


def names(found):
    return [row.name for row in found]


def test_a_row_has_what_its_paper_shares_what_it_is_on_and_its_own_on_top(tmp_path):
    recipes = load(tmp_path)
    assert recipes.row("one-surgery").overrides == {
        "finetune.epochs": 3,
        "finetune.lr": 2e-5,
        "schedule.first.qqp": 2,
        "smart.lambda": 1,
        "surgery.method": "pcgrad",
    }
    # The file has 1e-5, a text to YAML 1.1, and the key on, to which it is true
    assert recipes.row("one-smart").overrides["finetune.lr"] == 1e-5
    row = recipes.row("one-plain")
    assert (row.paper, row.table, row.title) == ("one", "table2", "Plain")
    assert (row.reported, row.reported_test) == ({"sst": 0.5, "overall": 0.6}, {"sst": 0.4})
    assert recipes.row("one-smart").choices == ("the radius",)
    assert recipes.paper("one").overall == "normalized"
    assert recipes.paper("one").data == {"sst": {"train": 8544, "dev": 1101}}


def test_rows_of_our_own_are_called_by_their_names_alone(tmp_path):
    recipes = load(tmp_path, {"own": True})
    assert names(recipes.expand(["one-table3"])) == ["smart", "lambda-0.5"]
    assert (recipes.row("lambda-1").run_as, recipes.row("smart").on) == ("smart", "plain")
    sweep = recipes.paper("one").sweeps["grid"]
    assert (sweep.on, next(iter(sweep.rows))) == ("smart", "grid-lr-1e-05-weight_decay-0")
    with pytest.raises(UserError, match="one-smart: is not in"):
        recipes.row("one-smart")


def test_names_stand_for_rows_tables_papers_and_sweeps_each_run_once_in_order(tmp_path):
    recipes = load(tmp_path)
    table2 = ["one-plain", "one-smart", "one-surgery", "one-five"]
    assert names(recipes.expand(["one-table2"])) == table2
    assert names(recipes.expand(["one-table3"])) == ["one-smart", "one-lambda-0.5"]
    assert names(recipes.expand(["one"])) == [*table2, "one-lambda-0.5"]
    assert names(recipes.expand(["one-surgery", "one-table2"])) == ["one-surgery", "one-plain", "one-smart", "one-five"]
    assert len(recipes.expand(["one-grid"])) == 4
    same = recipes.row("one-lambda-1")
    assert (same.run_as, same.reported) == ("one-smart", {"sst": 0.53})
    assert same.overrides == recipes.row("one-smart").overrides


def test_points_of_a_sweep_are_called_after_their_values(tmp_path):
    recipes = load(tmp_path)
    sweep = recipes.paper("one").sweeps["grid"]
    assert (sweep.on, sweep.over["finetune.lr"]) == ("one-smart", (1e-5, 3e-5))
    assert list(sweep.rows) == [
        f"one-grid-lr-{lr}-weight_decay-{decay}" for lr in ("1e-05", "3e-05") for decay in ("0", "0.01")
    ]
    sets = {"finetune.lr": 3e-5, "optimizer.weight_decay": 0.01}
    point = recipes.row("one-grid-lr-3e-05-weight_decay-0.01")
    assert point.overrides == {**recipes.row("one-smart").overrides, **sets}


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"finetune.lr": [1], "prefinetune.lr": [1]}, ["one-new-finetune.lr-1-prefinetune.lr-1"]),
        ({"tasks.sst.dropout": [1], "tasks.qqp.dropout": [1]}, ["one-new-sst.dropout-1-qqp.dropout-1"]),
        ({"tasks.*.dropout": [1], "smart.lambda": [2]}, ["one-new-dropout-1-lambda-2"]),
        # What sets the same as a row of a table is the same run
        (
            {"finetune.lr": ["1e-5"], "smart.lambda": [0.5, 1, 2]},
            ["one-lambda-0.5", "one-smart", "one-new-lr-1e-05-lambda-2"],
        ),
    ],
)
def test_points_are_called_by_as_much_of_their_params_as_tells_them_apart(tmp_path, over, expected):
    recipes = load(tmp_path, {"sweeps": {"new": {"title": "N", "on": "smart", "over": over}}})
    assert names(recipes.expand(["one-new"])) == expected


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("one-smrt", r"^one-smrt: is not in .*; did you mean one-smart\?"),
        ("on", r"^on: is not in .*; did you mean one\?"),
        ("xxxxxxxxxxxx", "is not in .*known here"),
        ("one-quoted", "one-quoted: can't be run"),
    ],
)
def test_a_name_that_can_not_be_run_is_an_error(tmp_path, name, told):
    with pytest.raises(UserError, match=told):
        load(tmp_path).expand(["one-plain", name])


def test_where_one_row_is_wanted_a_table_names_its_own(tmp_path):
    with pytest.raises(UserError, match="^one-table3: expected one row, found 2; name one of them, such as one-l"):
        load(tmp_path).row("one-table3")


NOT_ONE = "expected one of literature, same_as, or on and set"
NEW = {"title": "S", "on": "smart"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (rows(smart={"titel": "S"}), "one.yaml: tables.table2.rows.smart.titel: unknown key, found S"),
        ({"overall": "mean"}, "one.yaml: overall: Input should be 'raw' or 'normalized', found mean"),
        (rows(smart={"on": "plian"}), "plian: is not in the rows of "),
        (rows("table3", lambda_1={"same_as": "smat"}), "smat: is not in the rows of "),
        (rows(plain={"on": "smart"}), "one.yaml: plain -> smart -> plain: expected a start that can be run"),
        (rows(new={"on": "quoted"}), "one.yaml: new -> quoted: expected a start that can be run"),
        (rows("table3", other={"same_as": "lambda-1"}), "other: same_as: lambda-1 has no run of its own"),
        (rows("table3", lambda_1={"set": {"a": 1}}), NOT_ONE),
        (rows(quoted={"set": {"a": 1}}), NOT_ONE),
        (rows("table3", smart={"title": "S"}), "one-smart is the name of two"),
        (rows(table3={"title": "S"}), "one-table3 is the name of two"),
        ({"own": True} | rows(one={"title": "S"}), "one is the name of two papers, rows, tables or sweeps"),
        (rows(**{"a b": {"title": "S"}}), "rows.a b.[key]: String should match pattern"),  # git would refuse it
        ({"sweeps": {"grid": {"on": "smat"}}}, "smat: is not in the rows of "),
        ({"sweeps": {"new": NEW | {"over": {}}}}, "sweeps.new.over: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_row_and_key(tmp_path, changes, message):
    with pytest.raises(UserError) as caught:
        load(tmp_path, changes)
    assert message in str(caught.value)


def test_other_files_of_the_folder_are_no_papers_and_budgets_are_read_as_strictly(tmp_path):
    with pytest.raises(UserError, match="found no recipes"):
        load_recipes(tmp_path)
    folder = write_recipes(tmp_path / "recipes")
    for name in ("claims", "extensions"):
        (folder / f"{name}.yaml").write_text("something: else")
    assert list(load_recipes(folder).papers) == ["one"]
    (folder / "budgets.yaml").write_text("quick: {title: less, multiplied: {}}")
    with pytest.raises(UserError, match=r"budgets.yaml: quick.multiplied: unknown key"):
        load_recipes(folder)
