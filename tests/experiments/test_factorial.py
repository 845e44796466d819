"""Effects of techniques: published examples and planted effects."""

import shutil

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.factorial import effects, factorial
from bertrio.experiments.recipes.measured import write_measured
from bertrio.experiments.recipes.rows import Sweep, load_recipes
from tests.experiments.simulated import run

FOUR = pd.DataFrame({"a": [-1, 1, -1, 1], "b": [-1, -1, 1, 1]})


def test_effects_equal_montgomerys_replicated_example():
    levels = pd.concat([FOUR] * 3)  # concentration and catalyst, section 6.2
    table = effects(levels, np.array([28, 36, 18, 31, 25, 32, 19, 30, 27, 32, 23, 29])).set_index("term")
    assert table["effect"].to_dict() == pytest.approx({"a": 8.333, "b": -5.0, "a x b": 1.667}, abs=1e-3)
    half_width = 2.306 * np.sqrt(31.333 / 8 / 3)  # t with 8 degrees; the error's sum of squares is 31.333
    assert np.allclose(table["high"] - table["effect"], half_width, atol=1e-3)


def test_single_runs_use_lenths_pseudo_standard_error():
    table = effects(FOUR, np.array([0, 10, 2, 14])).set_index("term")  # effects 11, 3 and 1: their median is 3
    assert table["effect"].to_dict() == pytest.approx({"a": 11, "b": 3, "a x b": 1})
    assert np.allclose(table["high"] - table["effect"], 12.706 * 1.5 * 3, atol=1e-2)  # t with one degree


def test_fewer_than_five_factors_are_an_error():
    factors = {name: {"finetune.lr": 1e-5} for name in "abcd"}
    with pytest.raises(ValueError, match="expected five factors or more"):
        Sweep(title="a", on="b", factors=factors)


def test_planted_effects_are_found_and_missing_points_named(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(root / "recipes", "recipes", ignore=shutil.ignore_patterns("measured"))
    rows = load_recipes().paper("future").sweeps["factorial"].rows.values()
    for row in rows:
        on = row.title.split(", ")
        sst = 0.3 + 0.1 * ("smart" in on) + 0.04 * ("smart" in on and "cross" in on)
        for seed, noise in ((1, 0.01), (2, -0.01)):
            result = run(row.run_as, seed, sst + noise, 0.5, 0.5, name=f"{row.run_as}-s{seed}")
            write_measured(result)
    table = factorial("future-factorial", out="out")
    sst = table[table["metric"] == "sst"].set_index("term")["effect"]
    assert list(sst[["smart", "cross", "cross x smart", "surgery"]]) == pytest.approx([0.12, 0.02, 0.02, 0], abs=1e-9)
    assert sst.abs().nlargest(3).index.tolist()[0] == "smart" and len(sst) == 15
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"future-factorial.csv", "future-factorial.png"}
    assert "+0.120 [+0.1" in capsys.readouterr().out
    for path in (tmp_path / "recipes/measured").glob("factorial-smart-surgery-s*"):
        path.unlink()
    with pytest.raises(UserError, match="1 of 16 points are not measured, such as factorial-smart-surgery; bertrio"):
        factorial("future-factorial", out="out")
