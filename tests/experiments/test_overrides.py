import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import (
    ABSENT,
    changes,
    is_number,
    layered,
    leaves,
    multiplied,
    parse_settings,
    put,
    with_numbers,
)


def test_blocks_merge_and_all_else_is_replaced_but_members_are_replaced_whole():
    base = {"a": {"x": 1, "y": [1, 2]}, "ensemble": {"members": {"base": {}}, "combine": "vote"}}
    top = {"a": {"y": [3]}, "ensemble": {"members": {"one": {}, "two": None}}}
    assert layered(base, top) == {
        "a": {"x": 1, "y": [3]},
        "ensemble": {"members": {"one": {}, "two": None}, "combine": "vote"},
    }


def test_layering_leaves_both_as_they_were():
    base, top = {"a": {"x": [1]}}, {"a": {"y": [2]}}
    result = layered(base, top)
    result["a"]["x"].append(3)
    result["a"]["y"].append(3)
    assert (base, top) == ({"a": {"x": [1]}}, {"a": {"y": [2]}})


@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [
        (10, 0.2, 2),
        (3, 0.2, 1),
        (1, 0.2, 1),
        (0, 0.2, 0),
        (11, 0.2, 3),
        (10000, 0.1, 1000),
        (30, 0.7, 21),  # 21.0 exactly, where floats say 20.999999999999996
        (35, 0.6, 21),
        (70, 1.1, 77),  # 77.00000000000001 in floats, and must not become 78
        (1e-5, 6, 6e-05),  # 6.000000000000001e-05 in floats
        (3e-5, 6, 1.8e-4),
    ],
)
def test_whole_numbers_are_rounded_up_and_others_keep_their_short_form(value, factor, expected):
    found = multiplied({"a": value}, {"a": factor})["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_a_star_is_any_one_key_and_members_are_multiplied_too():
    raw = {
        "tasks": {"sst": {"epochs": 10}, "qqp": {"epochs": None}, "sts": {}},
        "schedule": {"first": {"qqp": 10}},
        "finetune": {"epochs": 10, "one_pass": "auto", "train_metrics": True},
        "ensemble": {"members": {"a": {"finetune": {"epochs": 5}, "tasks": {"sts": {"epochs": 20}}}, "b": None}},
    }
    factors = {"tasks.*.epochs": 0.2, "schedule.first.*": 0.2, "finetune.*": 0.2, "mlm.rows.*": 0.1}
    assert multiplied(raw, factors) == {
        "tasks": {"sst": {"epochs": 2}, "qqp": {"epochs": None}, "sts": {}},
        "schedule": {"first": {"qqp": 2}},
        "finetune": {"epochs": 2, "one_pass": "auto", "train_metrics": True},
        "ensemble": {"members": {"a": {"finetune": {"epochs": 1}, "tasks": {"sts": {"epochs": 4}}}, "b": None}},
    }
    assert raw["finetune"]["epochs"] == 10


def test_settings_are_numbers_words_lists_and_blocks():
    given = ["finetune.lr=2e-05", "smart.lambda=0.5", "data.source=cs224n", "runtime.threads=null", "a.b=[1, x=2]"]
    assert parse_settings(given) == {
        "finetune.lr": 2e-05,
        "smart.lambda": 0.5,
        "data.source": "cs224n",
        "runtime.threads": None,
        "a.b": [1, "x=2"],
    }


def test_a_param_that_is_new_may_have_a_plus_as_for_dvc():
    assert parse_settings(["+data.more.qqp={train: more.tsv}"]) == {"data.more.qqp": {"train": "more.tsv"}}
    with pytest.raises(UserError, match=r"a\.b is given twice"):
        parse_settings(["a.b=1", "+a.b=2"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "{train:../x.tsv,columns:{text_a:q1,label:y}}",
            {"train": "../x.tsv", "columns": {"text_a": "q1", "label": "y"}},
        ),
        ("{c: 1, d:2, e: [{f:x}], g:[a, 'b:c']}", {"c": 1, "d": 2, "e": [{"f": "x"}], "g": ["a", "b:c"]}),
        ("{1:2, labels:{1:2,0:1}}", {1: 2, "labels": {1: 2, 0: 1}}),
        ("{b:'x: y', c:'x, y', delimiter:','}", {"b": "x: y", "c": "x, y", "delimiter": ","}),
        ("{'b:c': null, d:null, e}", {"b:c": None, "d": None, "e": None}),
        ("{url:https://x.y/z, at:12:30x}", {"url": "https://x.y/z", "at": "12:30x"}),
        ("https://x.y/z", "https://x.y/z"),
        ("[a:b, {c:d}]", ["a:b", {"c": "d"}]),
        ("{what:it's, who:they}", {"what": "it's", "who": "they"}),
    ],
)
def test_blocks_may_be_without_spaces_as_for_dvc(text, value):
    assert parse_settings([f"a={text}"]) == {"a": value}


def test_a_hash_of_a_commit_stays_a_text():
    assert parse_settings(["encoder.revision=86e8312"]) == {"encoder.revision": "86e8312"}


@pytest.mark.parametrize("text", ["finetune.lr", "=3", "finetune..lr=3", ".lr=3", "a=[1", "++a=1", "~a=1"])
def test_what_is_no_setting_is_an_error_that_shows_it(text):
    with pytest.raises(UserError, match="^-S ") as caught:
        parse_settings([text])
    assert text in str(caught.value)


def test_a_param_is_set_once():
    with pytest.raises(UserError, match="finetune.lr is given twice"):
        parse_settings(["finetune.lr=1", "finetune.lr=2"])


def test_put_sets_a_leaf_merges_a_block_and_makes_the_way_to_it():
    raw = {"smart": {"lambda": 0, "steps": 1}, "ensemble": {"members": {"base": None}}}
    put(raw, "smart", {"lambda": 1})
    put(raw, "ensemble.members.base.runtime.seed", 2)
    assert raw == {"smart": {"lambda": 1, "steps": 1}, "ensemble": {"members": {"base": {"runtime": {"seed": 2}}}}}


def test_put_sets_every_key_that_a_star_stands_for():
    raw = {"tasks": {"sst": {"dropout": 0.1}, "qqp": {"dropout": 0.2, "epochs": 1}}}
    put(raw, "tasks.*.dropout", 0.3)
    assert raw == {"tasks": {"sst": {"dropout": 0.3}, "qqp": {"dropout": 0.3, "epochs": 1}}}
    with pytest.raises(UserError, match=r"first.\*: unknown param; first is {}"):
        put({"first": {}}, "first.*", 1)


def test_put_does_not_go_through_a_number():
    with pytest.raises(UserError, match="finetune.lr.x: unknown param; finetune.lr is 1"):
        put({"finetune": {"lr": 1}}, "finetune.lr.x", 2)


def test_changes_are_the_leaves_that_differ():
    base = {"a": {"x": 1, "y": [1, 2]}, "first": {}, "gone": 0, "members": {"base": {}}, "same": {}}
    here = {"a": {"x": 1, "y": [2, 1]}, "first": {"qqp": 2}, "members": {"one": {}}, "same": {}}
    assert changes(base, here) == {
        "a.y": ([1, 2], [2, 1]),
        "gone": (0, ABSENT),
        "members.base": ({}, ABSENT),
        "first.qqp": (ABSENT, 2),
        "members.one": (ABSENT, {}),
    }
    assert changes(here, here) == {}


def test_texts_with_a_signed_exponent_are_numbers():
    assert with_numbers({"a": ["2e-05", "1.5E+3", "12e3", "auto"]}) == {"a": [2e-05, 1500.0, "12e3", "auto"]}


def test_params_are_told_alike_however_yaml_read_them():
    assert leaves({"a": {"b": "2e-05", "c": None, "d": {}, "e": [True, 2e-05]}}) == {
        "a.b": "2e-05",
        "a.c": "null",
        "a.d": "{}",
        "a.e": "[true, 2e-05]",
    }
    assert leaves({"hash": "12e456", "other": "12e45", "inf": "inf", "size": 1e5, "name": "007"}) == {
        "hash": "12e456",
        "other": "12e45",
        "inf": "inf",
        "size": "100000",
        "name": "007",
    }
    assert leaves({}) == {}
    assert not any(map(is_number, ("12e456", "nan", "inf", None, True, float("inf"))))
