"""Dotted params, and overrides as DVC parses them."""

import subprocess

import pytest
from dvc.utils.hydra import to_hydra_overrides
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import dvc_overrides, parse_settings, preset_options, scale, set_param


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
def test_scale_rounds_integers_up_and_includes_members(value, factor, expected):
    params = {"tasks": {"sst": {"epochs": value}, "qqp": {}}, "lr": value}
    params["ensemble"] = {"members": {"a": {"tasks": {"sst": {"epochs": value}}}, "b": None}}
    scale(params, {"tasks.*.epochs": factor, "mlm.rows.*": 9})
    assert params["ensemble"]["members"] == {"a": {"tasks": {"sst": {"epochs": expected}}}, "b": None}
    assert (params["tasks"], params["lr"]) == ({"sst": {"epochs": expected}, "qqp": {}}, value)
    assert type(params["tasks"]["sst"]["epochs"]) is type(expected)


def test_settings_are_parsed_as_by_dvc():
    texts = ["lr=2e-05", "threads=null", "revision='86e8312'", "day=2020-99-99", "a.b=[1, 'x=2', c:d, no]"]
    texts += ["+data.extra={train: more.tsv}", "++x=1", "tasks.*.dropout=0.5"]
    values = {"lr": 2e-05, "threads": None, "revision": "86e8312", "day": "2020-99-99", "a.b": [1, "x=2", "c:d", "no"]}
    values |= {"data.extra": {"train": "more.tsv"}, "x": 1, "tasks.*.dropout": 0.5}
    assert parse_settings(texts) == values
    parsed = to_hydra_overrides([text.replace("*", "sst") for text in texts])
    assert [override.value() for override in parsed] == list(values.values())


DEEP = "[" * 1000 + "]" * 1000


@pytest.mark.parametrize(
    "text",
    ["finetune.lr", "=3", "finetune..lr=3", "a=[1", "+++a=1", "~a", "a=1,2", "a=range(1,3)", "a=86e8312", f"a={DEEP}"],
)
def test_invalid_setting_is_an_error(text):
    with pytest.raises(UserError, match="^-S ") as caught:
        parse_settings([text])
    assert text[:100] in str(caught.value)


def test_set_param_merges_blocks_and_expands_stars():
    params = {"smart": {"lambda": 0, "steps": 1}, "members": {"base": None}, "tasks": {"sst": {"x": 1}, "qqp": {}}}
    for name, value in {"smart": {"lambda": 1}, "members.base.runtime.seed": 2, "tasks.*.x": 3}.items():
        set_param(params, name, value)
    assert params == {
        "smart": {"lambda": 1, "steps": 1}, "members": {"base": {"runtime": {"seed": 2}}},
        "tasks": {"sst": {"x": 3}, "qqp": {"x": 3}},
    }  # fmt: skip
    with pytest.raises(UserError, match="smart.lambda.x: unknown param; smart.lambda is 1"):
        set_param(params, "smart.lambda.x", 2)


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


SHELL_SAFE = [value for value in VALUES if not isinstance(value, str) or not set(value) & set(" \n$")]


@pytest.mark.parametrize("value", SHELL_SAFE, ids=repr)
def test_preset_options_survive_a_shell(value):
    overrides = {"new": value, "block.listed": [value, {"a": value, "b": {"c": "d:e,f"}}]}
    command = f"printf '%s\\n' $(cat <<'END'\n{' '.join(preset_options(overrides))}\nEND\n)"
    words = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[::2] == ["-S", "-S"] and parse_settings(words[1::2]) == overrides


@pytest.mark.parametrize("text", ["a: b", "a, b", "two\nlines"])
def test_preset_with_text_that_a_shell_splits_is_an_error(text):
    with pytest.raises(UserError, match="data.path: a preset can't hold"):
        list(preset_options({"data.path": text}))


def test_overrides_change_blocks_key_by_key():
    before = {"members": {"base": {}, "second": {"seed": 2}}, "columns": {"my text": "a"}, "same": {"a": [1]}}
    after = {"members": {"second": {"seed": 3}, "third": {"lr": 1}}, "columns": {"my text": "a"}, "same": {"a": [1]}}
    assert composed(before, after) == after
    with pytest.raises(UserError, match="columns.my text: dvc exp run can't set a param of this name"):
        list(dvc_overrides(before, {"columns": {"my text": "c"}}))
