"""Dotted params, and what DVC's parser of overrides makes of them."""

import pytest
import yaml
from dvc.utils.hydra import apply_overrides, to_hydra_overrides
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import (
    ABSENT,
    changes,
    dvc_overrides,
    flatten,
    is_number,
    leaves,
    parse_settings,
    scale,
    set_param,
    value_text,
    with_numbers,
)
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import load_recipes


def test_nested_blocks_are_short_for_dotted_params():
    block = {"a": {"x": 1, "y": [1, 2], "none": {}}, "ensemble": {"members": {"one": {"a": 1}}}}
    flat = {"a.x": 1, "a.y": [1, 2], "a.none": {}}
    assert flatten(block) == flat | {"ensemble.members.one.a": 1}
    assert flatten(block, whole="ensemble.members") == flat | {"ensemble.members": {"one": {"a": 1}}}


@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [
        (3, 0.2, 1),
        (0, 0.2, 0),
        (11, 0.2, 3),
        (30, 0.7, 21),  # 21.0 exactly, where floats say 20.999999999999996
        (70, 1.1, 77),  # 77.00000000000001 in floats, and must not become 78
        (1e-5, 6, 6e-05),  # 6.000000000000001e-05 in floats
    ],
)
def test_integers_are_rounded_up_and_floats_keep_their_short_form(value, factor, expected):
    params = {"a": value}
    scale(params, {"a": factor})
    assert params == {"a": expected} and type(params["a"]) is type(expected)


def test_a_star_is_any_one_key_and_members_are_scaled_too():
    params = {
        "tasks": {"sst": {"epochs": 10}, "qqp": {"epochs": None}, "sts": {}},
        "schedule": {"first": {"qqp": 10}},
        "finetune": {"epochs": 10, "one_pass": "auto", "train_metrics": True},
        "ensemble": {"members": {"a": {"finetune": {"epochs": 5}, "tasks": {"sts": {"epochs": 20}}}, "b": None}},
    }
    scale(params, {"tasks.*.epochs": 0.2, "schedule.first.*": 0.2, "finetune.*": 0.2, "mlm.rows.*": 0.1})
    assert params == {
        "tasks": {"sst": {"epochs": 2}, "qqp": {"epochs": None}, "sts": {}},
        "schedule": {"first": {"qqp": 2}},
        "finetune": {"epochs": 2, "one_pass": "auto", "train_metrics": True},
        "ensemble": {"members": {"a": {"finetune": {"epochs": 1}, "tasks": {"sts": {"epochs": 4}}}, "b": None}},
    }


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("finetune.lr=2e-05", "finetune.lr", 2e-05),
        ("data.source=cs224n", "data.source", "cs224n"),
        ("runtime.threads=null", "runtime.threads", None),
        ("encoder.revision=86e8312", "encoder.revision", "86e8312"),  # a git hash, not a number
        ("a.b=[1, x=2, c:d]", "a.b", [1, "x=2", "c:d"]),
        ("+data.extra={train: more.tsv}", "data.extra", {"train": "more.tsv"}),
        ("a={train:../x.tsv,columns:{text_a:q1}}", "a", {"train": "../x.tsv", "columns": {"text_a": "q1"}}),
        ("a={1:2, e: [{f:x}], url:https://x.y/z}", "a", {1: 2, "e": [{"f": "x"}], "url": "https://x.y/z"}),
        ("a=https://x.y/z", "a", "https://x.y/z"),
    ],
)
def test_settings_are_yaml_or_spelled_as_for_dvc(text, name, value):
    assert parse_settings([text]) == {name: value}


@pytest.mark.parametrize("text", ["finetune.lr", "=3", "finetune..lr=3", ".lr=3", "a=[1", "++a=1", "~a=1"])
def test_a_text_that_is_no_setting_is_an_error_that_shows_it(text):
    with pytest.raises(UserError, match="^-S ") as caught:
        parse_settings([text])
    assert text in str(caught.value)
    with pytest.raises(UserError, match=r"a\.b is given twice"):
        parse_settings(["a.b=1", "+a.b=2"])


def test_a_block_merges_and_a_star_sets_every_key():
    params = {"smart": {"lambda": 0, "steps": 1}, "members": {"base": None}, "tasks": {"sst": {"x": 1}, "qqp": {}}}
    set_param(params, "smart", {"lambda": 1})
    set_param(params, "members.base.runtime.seed", 2)
    set_param(params, "tasks.*.x", 3)
    assert params == {
        "smart": {"lambda": 1, "steps": 1},
        "members": {"base": {"runtime": {"seed": 2}}},
        "tasks": {"sst": {"x": 3}, "qqp": {"x": 3}},
    }


@pytest.mark.parametrize("name", ["finetune.lr.x", "first.*"])
def test_a_name_that_leads_through_no_block_is_an_error(name):
    with pytest.raises(UserError, match=rf"{name[:8]}.*: unknown param; .* has no params in it"):
        set_param({"finetune": {"lr": 1}, "first": {}}, name, 2)


def test_changes_are_the_values_that_differ():
    base = {"a": {"x": 1, "y": [1, 2]}, "first": {}, "gone": 0, "members": {"base": {}}, "same": {}}
    here = {"a": {"x": 1, "y": [2, 1]}, "first": {"qqp": 2}, "members": {"one": {}}, "same": {}}
    assert changes(base, here) == {
        "a.y": ([1, 2], [2, 1]),
        "gone": (0, ABSENT),
        "members.base": ({}, ABSENT),
        "first.qqp": (ABSENT, 2),
        "members.one": (ABSENT, {}),
    }


def test_params_have_one_text_however_yaml_read_them():
    params = {"a": {"b": "2e-05", "c": None, "d": {}, "e": [True, 2e-05]}, "hash": "12e456", "size": 1e5, "name": "007"}
    assert leaves(params) == {
        "a.b": "2e-05", "a.c": "null", "a.d": "{}", "a.e": "[true, 2e-05]",
        "hash": "12e456", "size": "100000", "name": "007",
    }  # fmt: skip
    assert value_text({"train": "a.tsv", "n": [1, 0.5]}) == "{train: a.tsv, n: [1, 0.5]}"
    assert not any(map(is_number, ("12e456", "nan", "inf", None, True, float("inf"))))


TEXTS = [
    "plain", "", " with spaces ", "it's", '"quoted"', "back\\slash", "ends with\\", "\\'", "two\\\\'", "two\nlines",
    "a,b", "a=b", "[a]", "{a: b}", "choice(a,b)", "1", "2e-05", "null", "true", "~", "#", "*", "a: b", "ümlaut 漢",
    "${runtime.seed}", "/absolute/path with space/all-MiniLM-L6-v2", "refs/convert/parquet",
]  # fmt: skip
VALUES = [
    0, -1, 10**12, -0.25, 2e-05, 1e-300, 1e22, 0.1 + 0.2, True, None, [], {}, [1, 2.5, None, True, "x"],
    [[1], [2, 3]], [{"a": 1}], {"a": {}}, {"a": {"b": None, "c-d": [1]}},
]  # fmt: skip


def composed(before: dict, after: dict) -> dict:
    """Return what Hydra, as DVC calls it, makes of `before`."""
    config = OmegaConf.create(before)
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config(to_hydra_overrides(list(dvc_overrides(before, after))), config)
    return OmegaConf.to_object(config)


@pytest.mark.parametrize("value", [*TEXTS, *VALUES], ids=repr)
def test_dvc_composes_every_value(value):
    after = {"changed": value, "listed": [value, value], "block": {"inner": {"new": value}}}
    for before in ({"changed": 1, "listed": []}, {"changed": None, "block": {}}, {"changed": [3]}):
        assert composed(before, after) == after


def test_dvc_writes_them_and_keeps_comments_and_order(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("a: 1   # one\nb: {c: 1.0e-5, d: x}   # two\n")
    apply_overrides(path, list(dvc_overrides(yaml.safe_load(path.read_text()), {"a": 2, "b": {"c": 1e-5, "d": "x y"}})))
    assert path.read_text() == "a: 2   # one\nb: {c: 1.0e-5, d: x y} # two\n"


def test_blocks_are_changed_key_by_key_and_lose_what_is_not_named():
    before = {"members": {"base": {}, "second": {"runtime": {"seed": 2}}}, "options": {"depth": 1}, "same": {"a": [1]}}
    after = {"members": {"second": {"runtime": {"seed": 3}}, "third": {"lr": 1}}, "options": {}, "same": {"a": [1]}}
    assert composed(before, after) == after
    assert list(dvc_overrides(before, after)) == [
        "~members.base",
        "++members.second.runtime.seed=3",
        "++members.third={lr: 1}",
        "~options.depth",
    ]


def test_a_key_that_the_grammar_can_not_write_is_an_error_only_where_it_changes():
    before = {"columns": {"my text": "a", "other": "b"}}
    assert list(dvc_overrides(before, {"columns": {"my text": "a", "other": "c"}})) == ["++columns.other='c'"]
    with pytest.raises(UserError, match="columns.my text: dvc exp run can't set a param of this name"):
        list(dvc_overrides(before, {"columns": {"my text": "c", "other": "b"}}))


def test_dvc_composes_the_params_of_every_kind_of_row(root):
    recipes, base = load_recipes(root / "recipes"), with_numbers(yaml.safe_load((root / "params.yaml").read_text()))
    for name in ("best-ensemble", "smart-ensemble", "losses-e8", "bertpp-model-h", "beyond-finetuned-single-task"):
        wanted = resolve(recipes, recipes.row(name), "quick", {}, seed=2, base=base)
        assert composed(base, wanted) == wanted, name
