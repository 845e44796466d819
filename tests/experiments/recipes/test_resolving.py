import pytest

from bertrio.config import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import ABSENT, changes
from bertrio.experiments.recipes.resolving import check_apart, resolve
from bertrio.experiments.recipes.rows import load_recipes
from tests.experiments.recipes.test_rows import rows, write_recipes


@pytest.fixture
def base(root):
    return read_yaml(root / "params.yaml")


@pytest.fixture
def resolved(tmp_path):
    """Resolve a row of the example paper, optionally changed, and check that recipes stay unchanged."""

    def resolved(name, budget="paper", overrides=None, seed=None, changed=None):
        folder = write_recipes(tmp_path / "recipes", changed)
        recipes = load_recipes(folder)
        params = resolve(recipes, recipes.row(name), budget, overrides, seed)
        assert recipes == load_recipes(folder) and recipes.params == load_recipes(folder).params
        return params

    return resolved


def test_changes_are_the_values_that_differ():
    old = {"a": {"x": 1, "y": [1, 2]}, "first": {}, "gone": 0, "members": {"base": {}}, "same": {}}
    new = {"a": {"x": 1, "y": [2, 1]}, "first": {"qqp": 2}, "members": {"one": {}}, "same": {}}
    removed = {"gone": (0, ABSENT), "members.base": ({}, ABSENT)}
    added = {"first.qqp": (ABSENT, 2), "members.one": (ABSENT, {})}
    assert changes(old, new) == {"a.y": ([1, 2], [2, 1]), **removed, **added}


def test_paper_budget_changes_only_params_of_the_row(resolved, base):
    differing = {name: after for name, (_, after) in changes(base, resolved("one-smart")).items()}
    assert differing == {"finetune.lr": 1e-5, "smart.lambda": 1, "schedule.first.qqp": 2}


def test_budget_applies_after_the_row_also_in_members(resolved):
    params = resolved("one-five", "quick", changed=rows(five={"set": {"finetune": {"epochs": 10}}}))
    assert (params["finetune"]["epochs"], params["finetune"]["lr"]) == (2, 6e-05)
    assert params["data"]["split"]["keep"]["train"] == 0.1
    members = params["ensemble"]["members"]
    assert members["b"]["finetune"]["epochs"] == 2
    assert list(members) == ["a", "b"]  # without the member of params.yaml


def test_overrides_of_the_user_apply_last(resolved):
    params = resolved("one-plain", "quick", {"finetune.lr": 1e-3, "runtime.seed": 7, "smart": {"steps": 2}}, seed=3)
    assert (params["finetune"]["lr"], params["runtime"]["seed"], params["smart"]["steps"]) == (1e-3, 7, 2)
    assert "eta" in params["smart"]


@pytest.mark.parametrize(("seed", "seeds"), [(None, [1, 1, 2]), (3, [3, 2001, 2002])])
def test_seeds_of_members_follow_the_run(resolved, seed, seeds):
    params = resolved("one-five", seed=seed)
    members = params["ensemble"]["members"].values()
    assert [params["runtime"]["seed"], *[member["runtime"]["seed"] for member in members]] == seeds


def params_with_seeds(seed, **members):
    """Return params of a run with this seed and with seeds (or None) of its members."""
    blocks = {name: member and {"runtime": {"seed": member}} for name, member in members.items()}
    return {"runtime": {"seed": seed}, "ensemble": {"members": blocks}}


def test_runs_that_share_a_member_are_an_error():
    check_apart([params_with_seeds(1, a=1, b=1001), params_with_seeds(2, a=2001, b=2002)], "x")
    for second in (params_with_seeds(2, base=None, b=1002), params_with_seeds(3, a=2)):
        with pytest.raises(UserError, match="x: member .* with seed 2 is in two of the runs"):
            check_apart([params_with_seeds(1, base=None, b=2), second], "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"changed": rows(smart={"set": {"smart": {"lamda": 1}}})}, "smart.lamda: unknown param; did you mean smart."),
        ({"overrides": {"finetune.lr": "x"}}, "one.yaml: one-smart, budget paper, -S finetune.lr=x: finetune.lr: exp"),
        ({"budget": "quik"}, "quik: is not in"),
        ({"name": "one-quoted"}, "one-quoted: has no params"),
        ({"name": "one-five", "overrides": {"ensemble.members.b.schedule.tasks": ["qqp"]}}, "b: it predicts sst, as"),
    ],
)
def test_error_names_the_origin_of_a_param(resolved, arguments, message):
    with pytest.raises(UserError) as caught:
        resolved(**{"name": "one-smart"} | arguments)
    assert message in str(caught.value)
