import textwrap

import pytest
import yaml

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import merge
from bertrio.experiments.recipes.rows import load_recipes

BUDGETS = """
paper: {title: as the papers trained}
quick:
  title: less
  multiply: {finetune.epochs: 0.2, tasks.*.epochs: 0.2, schedule.first.*: 0.2, finetune.lr: 6}
  set: {data: {split: {keep: {train: 0.1}}}}
"""
PAPER = """
title: A paper
overall: normalized
data:
  sst: {train: 8544, dev: 1101}
choices: [eta is not given; that of params.yaml is used]
base:
  finetune: {epochs: 10, lr: 1e-5}
  schedule: {first: {qqp: 2}}
tables:
  table2:
    title: Methods
    rows:
      plain:
        title: Plain
        reported: {sst: 0.5, overall: 0.6}
        reported_test: {sst: 0.4}
      smart:
        on: plain
        set: {smart: {lambda: 1}, finetune: {epochs: 3}}
        choices: [the radius]
      surgery: {on: smart, set: {surgery: {method: pcgrad}, finetune: {lr: 2.0e-5}}}
      five:
        on: smart
        set: {ensemble: {members: {a: {runtime: {seed: 1}}, b: {runtime: {seed: 2}, finetune: {epochs: 10}}}}}
      quoted: {title: Others, reported: {sst: 0.55}, literature: true}
  table3:
    title: Lambda
    rows:
      lambda-1: {same_as: smart, reported: {sst: 0.53}}
      lambda-0.5: {on: smart, set: {smart: {lambda: 0.5}}}
sweeps:
  grid:
    title: Learning rate and weight decay
    on: smart
    over: {finetune.lr: [1e-5, 3.0e-5], optimizer.weight_decay: [0.0, 0.01]}
"""


def write_recipes(folder, changes=None, budgets=BUDGETS):
    """A folder with the paper `one`, changed as params are overridden, and budgets."""
    paper = merge(yaml.safe_load(PAPER.replace("on:", "'on':")), changes or {})
    folder.mkdir(exist_ok=True)
    (folder / "one.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    (folder / "budgets.yaml").write_text(budgets)
    return folder


def load(folder, changes=None):
    return load_recipes(write_recipes(folder / "recipes", changes))


def rows(table="table2", **changed):
    """Changes to rows of one table."""
    return {"tables": {table: {"rows": {name.replace("_", "-"): row for name, row in changed.items()}}}}


def names(found):
    return [row.name for row in found]


def test_a_row_has_what_its_paper_shares_what_it_is_on_and_its_own_on_top(tmp_path):
    overrides = load(tmp_path).row("one-surgery").overrides
    assert overrides == {
        "finetune.epochs": 3,
        "finetune.lr": 2e-5,
        "schedule.first.qqp": 2,
        "smart.lambda": 1,
        "surgery.method": "pcgrad",
    }


def test_a_row_knows_where_it_stands_and_what_was_reported(tmp_path):
    recipes = load(tmp_path)
    row = recipes.row("one-plain")
    assert (row.paper, row.table, row.title) == ("one", "table2", "Plain")
    assert (row.reported, row.reported_test) == ({"sst": 0.5, "overall": 0.6}, {"sst": 0.4})
    assert recipes.row("one-smart").choices == ("the radius",)
    assert recipes.paper("one").overall == "normalized"
    assert recipes.paper("one").data == {"sst": {"train": 8544, "dev": 1101}}


OWN = """
title: Ours
own: true
overall: normalized
tables:
  t:
    title: T
    rows:
      plain: {}
      more: {on: plain, set: {smart: {lambda: 1}}}
      again: {same_as: more}
sweeps:
  grid: {title: Rates, on: more, over: {finetune.lr: [1e-5, 3.0e-5]}}
"""


def load_own(folder, text=OWN):
    written = write_recipes(folder / "recipes")
    (written / "ours.yaml").write_text(text)
    return load_recipes(written)


def test_rows_of_our_own_are_called_by_their_names_alone(tmp_path):
    recipes = load_own(tmp_path)
    assert names(recipes.expand(["ours"])) == names(recipes.expand(["ours-t"])) == ["plain", "more"]
    assert (recipes.row("again").run_as, recipes.row("more").on) == ("more", "plain")
    assert recipes.row("one-smart").overrides["smart.lambda"] == recipes.row("more").overrides["smart.lambda"]
    sweep = recipes.paper("ours").sweeps["grid"]
    assert (sweep.on, names(sweep.rows.values())) == ("more", ["grid-lr-1e-05", "grid-lr-3e-05"])
    with pytest.raises(UserError, match="ours-more: is not in"):
        recipes.row("ours-more")


def test_rows_of_our_own_have_names_of_their_own(tmp_path):
    with pytest.raises(UserError, match="one is the name of two papers, rows, tables or sweeps"):
        load_own(tmp_path, OWN.replace("plain: {}", "one: {}\n      plain: {}"))


def test_a_number_is_one_however_yaml_1_1_would_read_it(tmp_path):
    folder = tmp_path / "recipes"
    write_recipes(folder)
    (folder / "one.yaml").write_text(PAPER)  # with 1e-5, a text to YAML 1.1, and the key on, to which it is true
    assert load_recipes(folder).row("one-smart").overrides["finetune.lr"] == 1e-5


def test_what_is_the_same_run_is_run_once_under_the_first_name(tmp_path):
    recipes = load(tmp_path)
    row = recipes.row("one-lambda-1")
    assert (row.run_as, row.reported) == ("one-smart", {"sst": 0.53})
    assert row.overrides == recipes.row("one-smart").overrides
    assert names(recipes.expand(["one-lambda-1", "one-smart"])) == ["one-smart"]


def test_names_stand_for_rows_tables_papers_and_sweeps_each_run_once_in_order(tmp_path):
    recipes = load(tmp_path)
    table2 = ["one-plain", "one-smart", "one-surgery", "one-five"]
    assert names(recipes.expand(["one-table2"])) == table2
    assert names(recipes.expand(["one-table3"])) == ["one-smart", "one-lambda-0.5"]
    assert names(recipes.expand(["one"])) == [*table2, "one-lambda-0.5"]
    assert names(recipes.expand(["one-surgery", "one-table2"])) == ["one-surgery", "one-plain", "one-smart", "one-five"]
    assert len(recipes.expand(["one-grid"])) == 4


def test_points_of_a_sweep_are_called_after_their_values(tmp_path):
    recipes = load(tmp_path)
    sweep = recipes.paper("one").sweeps["grid"]
    assert (sweep.on, sweep.over["finetune.lr"]) == ("one-smart", (1e-5, 3e-5))
    assert names(sweep.rows.values()) == [
        "one-grid-lr-1e-05-weight_decay-0",
        "one-grid-lr-1e-05-weight_decay-0.01",
        "one-grid-lr-3e-05-weight_decay-0",
        "one-grid-lr-3e-05-weight_decay-0.01",
    ]
    point = recipes.row("one-grid-lr-3e-05-weight_decay-0.01")
    sets = {"finetune.lr": 3e-5, "optimizer.weight_decay": 0.01}
    assert point.overrides == {**recipes.row("one-smart").overrides, **sets}


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (["finetune.lr", "prefinetune.lr"], "finetune.lr-1-prefinetune.lr-1"),
        (["tasks.sst.dropout", "tasks.qqp.dropout"], "sst.dropout-1-qqp.dropout-1"),
        (["tasks.*.dropout", "smart.lambda"], "dropout-1-lambda-1"),
    ],
)
def test_points_are_called_by_as_much_of_their_params_as_tells_them_apart(tmp_path, params, name):
    recipes = load(
        tmp_path, {"sweeps": {"new": {"title": "N", "on": "smart", "over": {param: [1] for param in params}}}}
    )
    assert names(recipes.expand(["one-new"])) == [f"one-new-{name}"]


@pytest.mark.parametrize("name", ["one-smrt", "on", "one-tabel2"])
def test_an_unknown_name_is_an_error_with_the_nearest(tmp_path, name):
    nearest = {"one-smrt": "one-smart", "on": "one", "one-tabel2": "one-table2"}[name]
    with pytest.raises(UserError, match=rf"^{name}: is not in .*; did you mean {nearest}\?"):
        load(tmp_path).expand([name])


def test_an_unknown_name_like_no_other_says_what_lists_them(tmp_path):
    with pytest.raises(UserError, match="is not in .*known here"):
        load(tmp_path).row("xxxxxxxxxxxx")


def test_a_point_of_a_sweep_that_sets_what_a_row_does_is_the_same_run(tmp_path):
    over = {"finetune.lr": ["1e-5"], "smart.lambda": [0.5, 1, 2]}
    recipes = load(tmp_path, {"sweeps": {"weight": {"title": "Weight", "on": "smart", "over": over}}})
    runs = names(recipes.expand(["one-weight"]))
    assert runs == ["one-lambda-0.5", "one-smart", "one-weight-lr-1e-05-lambda-2"]


def test_where_one_row_is_wanted_a_table_names_its_own(tmp_path):
    with pytest.raises(UserError, match="^one-table3: expected one row, found 2; name one of them, such as one-l"):
        load(tmp_path).row("one-table3")


def test_a_row_from_the_literature_is_left_out_and_an_error_on_its_own(tmp_path):
    recipes = load(tmp_path)
    assert recipes.row("one-quoted").literature
    with pytest.raises(UserError, match="one-quoted: can't be run"):
        recipes.expand(["one-plain", "one-quoted"])


WRONG = {
    "an unknown key of a row": (rows(smart={"titel": "S"}), "one.yaml: tables.table2.rows.smart.titel: unknown key"),
    "an unknown key of a table": (
        {"tables": {"table2": {"row": {}}}},
        "one.yaml: tables.table2.row: unknown key",
    ),
    "an unknown key of a paper": ({"bsae": {}}, "one.yaml: bsae: unknown key, found {}"),
    "a wrong convention": ({"overall": "mean"}, "one.yaml: overall: Input should be 'raw' or 'normalized', found mean"),
    "a figure that is none": (rows(smart={"reported": {"sst": "n/a"}}), "rows.smart.reported.sst: Input should be"),
    "on no row": (rows(smart={"on": "plian"}), "plian: is not in the rows of "),
    "same_as no row": (rows("table3", lambda_1={"same_as": "smat"}), "smat: is not in the rows of "),
    "a circle": (rows(plain={"on": "smart"}), "one.yaml: plain -> smart -> plain: expected a start that can be run"),
    "a run of its own and another's": (
        rows("table3", lambda_1={"set": {"a": 1}}),
        "expected one of literature, same_as, or on and set",
    ),
    "same_as of same_as": (
        rows("table3", other={"same_as": "lambda-1"}),
        "one.yaml: other: same_as: lambda-1 has no run of its own",
    ),
    "on the literature": (rows(new={"on": "quoted"}), "one.yaml: new -> quoted: expected a start that can be run"),
    "the literature with params": (
        rows(quoted={"set": {"a": 1}}),
        "expected one of literature, same_as, or on and set",
    ),
    "two rows of a name": (rows("table3", smart={"title": "S"}), "one-smart is the name of two"),
    "a row called as a table": (rows(table3={"title": "S"}), "one-table3 is the name of two"),
    "a name that git refuses": (rows(**{"a b": {"title": "S"}}), "rows.a b.[key]: String should match pattern"),
    "a sweep on no row": ({"sweeps": {"grid": {"on": "smat"}}}, "smat: is not in the rows of "),
    "a sweep over nothing": ({"sweeps": {"new": {"title": "S", "on": "smart", "over": {}}}}, "sweeps.new.over: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_a_file_is_named_with_file_row_and_key(tmp_path, case):
    changes, message = WRONG[case]
    with pytest.raises(UserError) as caught:
        load(tmp_path, changes)
    assert message in str(caught.value)


def test_budgets_are_read_as_strictly(tmp_path):
    write_recipes(tmp_path / "recipes", budgets="quick: {title: less, multiplied: {}}")
    with pytest.raises(UserError, match=r"budgets.yaml: quick.multiplied: unknown key"):
        load_recipes(tmp_path / "recipes")


def test_other_files_of_the_folder_are_no_papers(tmp_path):
    folder = write_recipes(tmp_path / "recipes")
    for name in ("claims", "extensions"):
        (folder / f"{name}.yaml").write_text(textwrap.dedent("something: else"))
    assert list(load_recipes(folder).papers) == ["one"]


def test_a_folder_without_recipes_is_an_error(tmp_path):
    with pytest.raises(UserError, match="found no recipes"):
        load_recipes(tmp_path)
