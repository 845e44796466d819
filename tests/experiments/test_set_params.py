"""Params as DVC is told of them, and what DVC's own parser makes of that."""

from pathlib import Path

import pytest
import yaml
from dvc.utils.hydra import apply_overrides

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import with_numbers
from bertrio.experiments.recipes.rows import load_recipes, resolve
from bertrio.experiments.recipes.set_params import checked_overrides, set_params

TEXTS = [
    "plain", "", " with spaces ", "it's", '"quoted"', "back\\slash", "ends with\\", "\\'", "two\\\\'", "two\nlines",
    "a,b", "a=b", "[a]", "{a: b}", "choice(a,b)", "1", "2e-05", "null", "true", "~", "#", "*", "a: b", "ümlaut 漢",
    "${runtime.seed}", "/absolute/path with space/all-MiniLM-L6-v2", "refs/convert/parquet",
]  # fmt: skip


def written(before: dict, after: dict, folder: Path) -> dict:
    """What DVC makes of `before` when told to make `after`, read as the params are."""
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(before, sort_keys=False))
    apply_overrides(path, list(set_params(before, after)))
    return with_numbers(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("text", TEXTS)
def test_dvc_writes_texts_as_they_are(text, tmp_path):
    after = {"changed": text, "listed": [text, text], "block": {"inner": {"text": text}}}
    assert written({"changed": 1, "listed": []}, after, tmp_path) == with_numbers(after)


@pytest.mark.parametrize(
    "value",
    [0, -1, 10**12, 0.5, -0.25, 2e-05, 1e-300, 1e22, 0.1 + 0.2, True, False, None, [], {}, [1, 2.5, None, True, "x"],
     [[1], [2, 3]], [{"a": 1}], {"a": {}}, {"a": {"b": None, "c-d": [1]}}],
)  # fmt: skip
def test_dvc_writes_every_kind_of_value(value, tmp_path):
    for before in (1, None, "text", [3], {"other": 1}):
        if not (isinstance(before, dict) and isinstance(value, dict)):  # blocks merge, as the next test has it
            assert written({"a": before}, {"a": value}, tmp_path) == {"a": value}
    assert written({"a": {}}, {"a": {"new": value}}, tmp_path) == {"a": {"new": value}}
    assert written({}, {"new": value}, tmp_path) == {"new": value}


def test_blocks_are_changed_key_by_key_and_lose_what_is_not_named(tmp_path):
    before = {"members": {"base": {}, "second": {"runtime": {"seed": 2}}}, "options": {"depth": 1}, "same": {"a": [1]}}
    after = {"members": {"second": {"runtime": {"seed": 3}}, "third": {"lr": 1}}, "options": {}, "same": {"a": [1]}}
    assert written(before, after, tmp_path) == after
    assert list(set_params(before, after)) == [
        "~members.base",
        "members.second.runtime.seed=3",
        "+members.third={lr:1}",
        "~options.depth",
    ]
    assert list(set_params(after, after)) == []


def test_comments_and_order_of_what_stays_are_kept(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("a: 1   # one\nb: {c: 1.0e-5, d: x}   # two\n")
    apply_overrides(path, list(set_params(yaml.safe_load(path.read_text()), {"a": 2, "b": {"c": 1.0e-5, "d": "x"}})))
    assert path.read_text() == "a: 2   # one\nb: {c: 1.0e-5, d: x}   # two\n"


def test_a_key_that_the_grammar_can_not_write_is_an_error_only_where_it_changes():
    before = {"columns": {"my text": "a", "other": "b"}}
    assert list(set_params(before, {"columns": {"my text": "a", "other": "c"}})) == ["columns.other='c'"]
    with pytest.raises(UserError, match="columns.my text: dvc exp run can't set a param with this key"):
        list(set_params(before, {"columns": {"my text": "c", "other": "b"}}))


def test_dvc_writes_the_params_of_every_row(root, tmp_path):
    from dvc.utils.hydra import to_hydra_overrides
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import OmegaConf

    recipes = load_recipes(root / "recipes")
    base = with_numbers(yaml.safe_load((root / "params.yaml").read_text()))
    rows = [row for paper in recipes.papers.values() for row in paper.rows if not row.literature]
    for row in rows:
        wanted = resolve(recipes, row, "quick", {}, seed=2, base=base)
        config = OmegaConf.create(base)  # what apply_overrides does, without reading params.yaml a hundred times
        OmegaConf.set_struct(config, True)
        ConfigLoaderImpl._apply_overrides_to_config(to_hydra_overrides(list(set_params(base, wanted))), config)
        assert OmegaConf.to_object(config) == wanted, row.name
    members = [row for row in rows if "members" in row.overrides.get("ensemble", {})]
    assert members  # the block that is replaced is among what was tried


def test_what_dvc_would_write_otherwise_is_an_error_before_it_does(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("a: 1\n")
    assert checked_overrides(path, {"a": "no more"}) == ["a='no more'"]
    with pytest.raises(UserError, match="DVC can't set these params:\n  a: wanted yes, but DVC would write true"):
        checked_overrides(path, {"a": "yes"})  # which YAML 1.2 leaves without quotes, and YAML 1.1 reads as true
    assert path.read_text() == "a: 1\n"
