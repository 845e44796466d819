import sys

import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.space import parse_space, values_at

optuna = pytest.importorskip("optuna", reason="needs the extra search")


def test_a_space_in_words():
    space = parse_space(["a.lr=log:1e-5:1e-4", "a.b=uniform:0:0.5", "a.n=int:1:4", "a.t=[sst, qqp],[sts],null,5e-1"])
    assert space["a.lr"] == optuna.distributions.FloatDistribution(1e-5, 1e-4, log=True)
    assert space["a.b"] == optuna.distributions.FloatDistribution(0, 0.5)
    assert space["a.n"] == optuna.distributions.IntDistribution(1, 4)
    point = {"a.lr": 1.23456e-5, "a.b": 0.499999, "a.n": 3}
    assert values_at(point) == {"a.lr": 1.235e-5, "a.b": 0.5, "a.n": 3}
    assert [values_at({"a.t": choice})["a.t"] for choice in space["a.t"].choices] == [
        ["sst", "qqp"],
        ["sts"],
        None,
        0.5,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "expected a dotted param and its values"),
        ("a..b=1,2", "expected a dotted param"),
        ("a.lr=1e-5", "found one value.*-S sets a param to one value"),
        ("a.lr=1,1.0", "a value is given twice"),
        ("a.lr=[1,2", "not valid YAML"),
        ("a.lr=log:0:1", "expected numbers above 0"),
        ("a.lr=log:1e-3:1e-5", "found 1e-3 to 1e-5, expected a number and a greater one"),
        ("a.lr=uniform:0", "expected two numbers, as in uniform:"),
        ("a.lr=uniform:0:inf", "expected a number and a greater one"),
        ("a.n=int:1:2.5", "expected two whole numbers, as in int:"),
    ],
)
def test_a_space_that_can_not_be_parsed_is_an_error(text, message):
    with pytest.raises(UserError, match=message):
        parse_space([text])


def test_a_param_twice_is_an_error():
    with pytest.raises(UserError, match="a.lr is given twice"):
        parse_space(["a.lr=1,2", "a.lr=3,4"])


def test_without_optuna_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs the package optuna; .*pip install 'bertrio\[search\]'"):
        parse_space(["a.lr=1,2"])
