import itertools

import pytest

from bertrio.config import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import changes, with_numbers
from bertrio.experiments.recipes.resolving import check_apart, resolve
from bertrio.experiments.recipes.rows import load_recipes
from tests.experiments.recipes.test_rows import rows, write_recipes


@pytest.fixture
def base(root):
    return with_numbers(read_yaml(root / "params.yaml"))


@pytest.fixture
def resolved(tmp_path, base):
    """Resolves a row of the made-up paper, whose rows may be changed."""
    count = itertools.count()

    def resolved(name, budget="paper", overrides=None, seed=None, changed=None):
        recipes = load_recipes(write_recipes(tmp_path / f"recipes{next(count)}", changed))
        return resolve(recipes, recipes.row(name), budget, overrides, seed, base)

    return resolved


def test_under_the_papers_budget_params_differ_in_what_the_row_says(resolved, base):
    assert {name: after for name, (_, after) in changes(base, resolved("one-smart")).items()} == {
        "finetune.lr": 1e-5,
        "smart.lambda": 1,
        "schedule.first.qqp": 2,
    }


def test_a_budget_multiplies_and_sets_after_the_row_also_in_members(resolved):
    params = resolved("one-five", "quick", changed=rows(five={"set": {"finetune": {"epochs": 10}}}))
    assert (params["finetune"]["epochs"], params["finetune"]["lr"]) == (2, 6e-05)
    assert params["schedule"]["first"] == {"qqp": 1}
    assert params["data"]["split"]["keep"]["train"] == 0.1
    members = params["ensemble"]["members"]
    assert members["b"]["finetune"]["epochs"] == 2
    assert list(members) == ["a", "b"]  # and not the member of params.yaml


def test_the_user_has_the_last_word(resolved):
    params = resolved("one-plain", "quick", {"finetune.lr": 1e-3, "runtime.seed": 7, "smart": {"steps": 2}}, seed=3)
    assert params["finetune"]["lr"] == 1e-3
    assert params["runtime"]["seed"] == 7
    assert params["smart"]["steps"] == 2
    assert "eta" in params["smart"]


def test_a_point_of_a_sweep_has_its_values_on_the_row_that_it_is_on(resolved):
    over = {"finetune.lr": [1e-3], "tasks.*.dropout": [0.5]}
    params = resolved(
        "one-new-lr-0.001-dropout-0.5", changed={"sweeps": {"new": {"title": "N", "on": "five", "over": over}}}
    )
    assert params["finetune"]["lr"] == 1e-3
    assert {task["dropout"] for task in params["tasks"].values()} == {0.5}
    assert list(params["ensemble"]["members"]) == ["a", "b"]


def test_no_member_is_the_same_in_two_seeds(resolved):
    def seeds(seed):
        params = resolved("one-five", seed=seed)
        return [params["runtime"]["seed"], *[of["runtime"]["seed"] for of in params["ensemble"]["members"].values()]]

    assert seeds(None) == [1, 1, 2]
    assert seeds(1) == [1, 1, 2]
    assert seeds(3) == [3, 2001, 2002]


def seeded(seed, **members):
    """Params of a run with this seed, whose members have seeds of their own, or none."""
    blocks = {name: own and {"runtime": {"seed": own}} for name, own in members.items()}
    return {"runtime": {"seed": seed}, "ensemble": {"members": blocks}}


def test_runs_that_share_a_member_are_refused(resolved):
    def five(overrides, *seeds):
        return [resolved("one-five", "paper", overrides, seed) for seed in seeds]

    check_apart(five({}, 1, 2, 3), "x")
    check_apart(five({"ensemble.members.b": {"runtime": {"seed": 1001}, "finetune": {"epochs": 1}}}, 2), "x")
    check_apart([seeded(1, base=None, b=2)], "x")
    for runs, told in (
        (five({"ensemble.members.b.runtime.seed": 7}, 1, 2), "b of one run is member b of another, both with seed 7"),
        ([seeded(1, base=None, b=2), seeded(2, base=None, b=2)], "base of one run is member b .* seed 2"),
        ([seeded(1, a=1, b=1001), seeded(1, a=1001, b=2001)], "a of one run is member b .* seed 1001"),
    ):
        with pytest.raises(UserError, match=f"x: member {told}"):
            check_apart(runs, "x")


def test_resolving_leaves_the_recipes_as_they_were(tmp_path, base):
    recipes = load_recipes(write_recipes(tmp_path / "recipes"))
    row = recipes.row("one-five")
    first = resolve(recipes, row, base=base)
    resolve(recipes, row, "quick", {"ensemble.members.a.finetune.epochs": 1}, seed=5, base=base)
    assert resolve(recipes, row, base=base) == first


def test_the_base_is_params_yaml_of_this_folder(tmp_path, root, monkeypatch):
    text = (root / "params.yaml").read_text().replace("source: sample ", "source: hub ")
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    recipes = load_recipes(write_recipes(tmp_path / "recipes"))
    assert resolve(recipes, recipes.row("one-plain"))["data"]["source"] == "hub"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"changed": rows(smart={"set": {"smart": {"lamda": 1}}})},
            "one.yaml: one-smart, budget paper: smart.lamda: unknown param; did you mean smart.lambda?",
        ),
        (
            {"changed": rows(smart={"set": {"ensemble": {"members": {"a": {"finetune": {"epoch": 1}}}}}})},
            "one.yaml: one-smart, budget paper: ensemble.members.a.finetune.epoch: unknown param; did",
        ),
        ({"overrides": {"finetune.lr": "x"}}, "one-smart, budget paper, -S finetune.lr=x: finetune.lr: expected"),
        (
            {"overrides": {"smart.lambda.x": 1}},
            "one-smart, budget paper, -S smart.lambda.x=1: smart.lambda.x: unknown param; smart.lambda is 1",
        ),
        ({"budget": "quik"}, "quik: is not in"),
        ({"name": "one-quoted"}, "one-quoted: has no params"),
    ],
)
def test_an_error_names_who_brought_in_what_is_wrong(resolved, arguments, message):
    with pytest.raises(UserError) as caught:
        resolved(**{"name": "one-smart"} | arguments)
    assert message in str(caught.value)


def test_a_task_that_params_yaml_does_not_have_is_not_blamed_on_the_row(tmp_path, base):
    changed = rows(plain={"set": {"tasks": {"sts": {"dropout": 0.2}}}})
    recipes = load_recipes(write_recipes(tmp_path / "recipes", changed))
    del base["tasks"]["sts"]
    with pytest.raises(UserError) as caught:
        resolve(recipes, recipes.row("one-plain"), base=base)
    assert "one.yaml: one-plain, budget paper: params.yaml has no task sts, which this changes" in str(caught.value)
    assert "kind" not in str(caught.value)
    own = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}
    own["data"] = {"train": "a.csv", "dev": "b.csv"}
    recipes = load_recipes(write_recipes(tmp_path / "more", rows(plain={"set": {"tasks": {"polar": own}}})))
    row = recipes.row("one-plain")
    row = row.model_copy(update={"overrides": {**row.overrides, "tasks.polar.dropout": 0.3}})
    assert resolve(recipes, row, base=base)["tasks"]["polar"]["dropout"] == 0.3


def test_a_row_with_a_member_that_answers_what_it_does_not_train_is_refused_before_it_runs(resolved):
    own = {"schedule": {"tasks": ["qqp"], "until": "longest"}, "finetune": {"select": "last"}}
    with pytest.raises(UserError, match=r"one-five.*members\.b: it answers sst beside a, and does not train it"):
        resolved("one-five", overrides={"ensemble.members.b": own})
