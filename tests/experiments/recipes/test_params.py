"""Dotted params, and their overrides as DVC's parser reads them."""

import subprocess

import pytest
from dvc.utils.hydra import to_hydra_overrides
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import (
    ABSENT,
    changes,
    dvc_overrides,
    leaves,
    parse_settings,
    preset_options,
    scale,
    set_param,
    value_text,
)


@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [
        (3, 0.2, 1),
        (70, 1.1, 77),  # 77.00000000000001 in floats, and must not become 78
        (1e-5, 6, 6e-05),  # 6.000000000000001e-05 in floats
        ("auto", 2, "auto"),
        (True, 2, True),
    ],
)
def test_integers_are_rounded_up_floats_keep_their_short_form_and_members_are_scaled_too(value, factor, expected):
    params = {"tasks": {"sst": {"epochs": value}, "qqp": {}}, "lr": value}
    params["ensemble"] = {"members": {"a": {"tasks": {"sst": {"epochs": value}}}, "b": None}}
    scale(params, {"tasks.*.epochs": factor, "mlm.rows.*": 9})
    assert params["ensemble"]["members"] == {"a": {"tasks": {"sst": {"epochs": expected}}}, "b": None}
    assert (params["tasks"], params["lr"]) == ({"sst": {"epochs": expected}, "qqp": {}}, value)
    assert type(params["tasks"]["sst"]["epochs"]) is type(expected)


def test_settings_are_read_as_dvc_does():
    texts = ["lr=2e-05", "threads=null", "revision='86e8312'", "day=2020-99-99", "a.b=[1, 'x=2', c:d, no]"]
    texts += ["+data.extra={train: more.tsv}", "++x=1", "tasks.*.dropout=0.5"]
    values = {"lr": 2e-05, "threads": None, "revision": "86e8312", "day": "2020-99-99", "a.b": [1, "x=2", "c:d", "no"]}
    values |= {"data.extra": {"train": "more.tsv"}, "x": 1, "tasks.*.dropout": 0.5}
    assert parse_settings(texts) == values
    read = to_hydra_overrides([text.replace("*", "sst") for text in texts])
    assert [override.value() for override in read] == list(values.values())


DEEP = "[" * 60 + "]" * 60


@pytest.mark.parametrize(
    "text",
    ["finetune.lr", "=3", "finetune..lr=3", "a=[1", "+++a=1", "~a", "a=1,2", "a=range(1,3)", "a=86e8312", f"a={DEEP}"],
)
def test_a_text_that_is_no_setting_is_an_error_that_shows_it(text):
    with pytest.raises(UserError, match="^-S ") as caught:
        parse_settings([text])
    assert text[:100] in str(caught.value)


def test_a_block_merges_and_a_star_sets_every_key():
    params = {"smart": {"lambda": 0, "steps": 1}, "members": {"base": None}, "tasks": {"sst": {"x": 1}, "qqp": {}}}
    for name, value in {"smart": {"lambda": 1}, "members.base.runtime.seed": 2, "tasks.*.x": 3}.items():
        set_param(params, name, value)
    assert params == {
        "smart": {"lambda": 1, "steps": 1}, "members": {"base": {"runtime": {"seed": 2}}},
        "tasks": {"sst": {"x": 3}, "qqp": {"x": 3}},
    }  # fmt: skip
    with pytest.raises(UserError, match="smart.lambda.x: unknown param; smart.lambda is 1"):
        set_param(params, "smart.lambda.x", 2)


def test_changes_are_the_values_that_differ():
    base = {"a": {"x": 1, "y": [1, 2]}, "first": {}, "gone": 0, "members": {"base": {}}, "same": {}}
    here = {"a": {"x": 1, "y": [2, 1]}, "first": {"qqp": 2}, "members": {"one": {}}, "same": {}}
    missing_here = {"gone": (0, ABSENT), "members.base": ({}, ABSENT)}
    missing_in_base = {"first.qqp": (ABSENT, 2), "members.one": (ABSENT, {})}
    assert changes(base, here) == {"a.y": ([1, 2], [2, 1]), **missing_here, **missing_in_base}


def test_params_have_one_text():
    params = {"a": {"b": 2e-05, "c": None, "d": {}, "e": [True, 2e-05]}, "hash": "12e456", "size": 1e5}
    texts = {"a.b": "2e-05", "a.c": "null", "a.d": "{}", "a.e": "[true, 2e-05]", "hash": "12e456", "size": "100000"}
    assert leaves(params) == texts
    assert value_text({"train": "a.tsv", "n": [1, 0.5]}) == "{train: a.tsv, n: [1, 0.5]}"


VALUES = [
    "plain", "", " with spaces ", "it's", '"quoted"', "back\\slash", "ends with\\", "\\'", "two\\\\'", "two\nlines",
    "a,b", "a=b", "[a]", "{a: b}", "choice(a,b)", "1", "2e-05", "null", "true", "~", "#", "*", "a: b", "ümlaut 漢",
    "${runtime.seed}", "/absolute/path with space/all-MiniLM-L6-v2", 0, -1, 10**12, -0.25, 2e-05, 1e-300, 1e22,
    0.1 + 0.2, True, None, [], {}, [1, 2.5, None, True, "x"], [[1], [2, 3]], [{"a": 1}], {"a": {"b": None, "c-d": [1]}},
]  # fmt: skip


def composed(before: dict, after: dict) -> dict:
    """Return `before` with the overrides applied by Hydra, as DVC calls it."""
    config = OmegaConf.create(before)
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config(to_hydra_overrides(list(dvc_overrides(before, after))), config)
    return OmegaConf.to_object(config)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_dvc_composes_every_value(value):
    after = {"changed": value, "listed": [value, value], "block": {"inner": {"new": value}}}
    for before in ({"changed": 1, "listed": []}, {"changed": None, "block": {}}, {"changed": [3]}):
        assert composed(before, after) == after


WHOLE = [value for value in VALUES if not isinstance(value, str) or not set(value) & set(" \n$")]  # to a shell


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_preset_options_come_back_from_a_shell(value):
    overrides = {"new": value, "block.listed": [value, {"a": value, "b": {"c": "d:e,f"}}]}
    command = f"printf '%s\\n' $(cat <<'END'\n{' '.join(preset_options(overrides))}\nEND\n)"
    words = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[::2] == ["-S", "-S"] and parse_settings(words[1::2]) == overrides


@pytest.mark.parametrize("text", ["a: b", "a, b", "two\nlines"])
def test_a_preset_refuses_text_that_a_shell_would_split(text):
    with pytest.raises(UserError, match="data.path: a preset can't hold"):
        list(preset_options({"data.path": text}))


def test_blocks_are_changed_key_by_key_lose_what_is_not_named_and_need_keys_that_the_grammar_has():
    before = {"members": {"base": {}, "second": {"seed": 2}}, "columns": {"my text": "a"}, "same": {"a": [1]}}
    after = {"members": {"second": {"seed": 3}, "third": {"lr": 1}}, "columns": {"my text": "a"}, "same": {"a": [1]}}
    assert composed(before, after) == after
    with pytest.raises(UserError, match="columns.my text: dvc exp run can't set a param of this name"):
        list(dvc_overrides(before, {"columns": {"my text": "c"}}))
