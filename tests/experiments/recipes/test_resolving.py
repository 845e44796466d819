import pytest

from bertrio.config import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import changes
from bertrio.experiments.recipes.resolving import check_apart, resolve
from bertrio.experiments.recipes.rows import load_recipes
from tests.experiments.recipes.test_rows import rows, write_recipes


@pytest.fixture
def base(root):
    return read_yaml(root / "params.yaml")


@pytest.fixture
def resolved(tmp_path, base):
    """Resolve a row of the made-up paper, whose rows may be changed; the recipes stay as they are."""

    def resolved(name, budget="paper", overrides=None, seed=None, changed=None):
        folder = write_recipes(tmp_path / "recipes", changed)
        recipes = load_recipes(folder)
        params = resolve(recipes, recipes.row(name), budget, overrides, seed, base)
        assert recipes == load_recipes(folder)
        return params

    return resolved


def test_under_the_papers_budget_params_differ_in_what_the_row_says(resolved, base):
    differing = {name: after for name, (_, after) in changes(base, resolved("one-smart")).items()}
    assert differing == {"finetune.lr": 1e-5, "smart.lambda": 1, "schedule.first.qqp": 2}


def test_a_budget_multiplies_and_sets_after_the_row_also_in_members(resolved):
    params = resolved("one-five", "quick", changed=rows(five={"set": {"finetune": {"epochs": 10}}}))
    assert (params["finetune"]["epochs"], params["finetune"]["lr"]) == (2, 6e-05)
    assert params["data"]["split"]["keep"]["train"] == 0.1
    members = params["ensemble"]["members"]
    assert members["b"]["finetune"]["epochs"] == 2
    assert list(members) == ["a", "b"]  # and not the member of params.yaml


def test_the_user_has_the_last_word(resolved):
    params = resolved("one-plain", "quick", {"finetune.lr": 1e-3, "runtime.seed": 7, "smart": {"steps": 2}}, seed=3)
    assert (params["finetune"]["lr"], params["runtime"]["seed"], params["smart"]["steps"]) == (1e-3, 7, 2)
    assert "eta" in params["smart"]


@pytest.mark.parametrize(("seed", "seeds"), [(None, [1, 1, 2]), (3, [3, 2001, 2002])])
def test_seeds_of_members_move_with_the_run(resolved, seed, seeds):
    params = resolved("one-five", seed=seed)
    members = params["ensemble"]["members"].values()
    assert [params["runtime"]["seed"], *[member["runtime"]["seed"] for member in members]] == seeds


def seeded(seed, **members):
    """Params of a run with this seed, and its members with their seeds or None."""
    blocks = {name: member and {"runtime": {"seed": member}} for name, member in members.items()}
    return {"runtime": {"seed": seed}, "ensemble": {"members": blocks}}


def test_runs_that_share_a_member_are_refused():
    check_apart([seeded(1, a=1, b=1001), seeded(2, a=2001, b=2002)], "x")
    for second in (seeded(2, base=None, b=1002), seeded(3, a=2)):
        with pytest.raises(UserError, match="x: member .* with seed 2 is in two of the runs"):
            check_apart([seeded(1, base=None, b=2), second], "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"changed": rows(smart={"set": {"smart": {"lamda": 1}}})}, "smart.lamda: unknown param; did you mean smart."),
        ({"overrides": {"finetune.lr": "x"}}, "one.yaml: one-smart, budget paper, -S finetune.lr=x: finetune.lr: exp"),
        ({"budget": "quik"}, "quik: is not in"),
        ({"name": "one-quoted"}, "one-quoted: has no params"),
        ({"name": "one-five", "overrides": {"ensemble.members.b.schedule.tasks": ["qqp"]}}, "b: it answers sst beside"),
    ],
)
def test_an_error_names_who_brought_in_what_is_wrong(resolved, arguments, message):
    with pytest.raises(UserError) as caught:
        resolved(**{"name": "one-smart"} | arguments)
    assert message in str(caught.value)
