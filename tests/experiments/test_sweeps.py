"""Tables of sweeps from params and scores, then from experiments of a repository."""

import shutil
from itertools import product

import pandas as pd
import pytest

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.measured import write_measured
from bertrio.experiments.recipes.params import ABSENT, set_param
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.sweeps import Run, draw, sweep, tabulate
from tests.experiments.planted import Planted
from tests.experiments.simulated import simulate


def sweep_run(seed=1, score=0.5, name="", **params):
    """Return a run; `params` have __ for dots."""
    scores = dict.fromkeys(("sst accuracy", "overall_normalized"), (score, score - 0.02, score + 0.02))
    texts = {param.replace("__", "."): str(value) for param, value in params.items()}
    return Run(str(name) or str([seed, *texts.values()]), {"runtime.seed": str(seed), **texts}, scores)


def test_families_share_all_but_the_swept_param():
    """Every run is in exactly one family, and all runs of a family agree in the other params."""
    grid = list(product([5, 0.1, 1], ["1e-5", "2e-5"], ["a", "b"], [1, 2]))
    runs = [sweep_run(seed, name=f"{p}/{lr}/{enc}/{seed}", p=p, lr=lr, encoder=enc) for p, lr, enc, seed in grid]
    table = tabulate([*runs, sweep_run(p=1, lr="3e-5", encoder="a")], ["p"], "overall_normalized")
    assert len(table) == 3 * 4
    for row in table.itertuples():
        lr, encoder = (part.split(": ")[1] for part in row.family.split(", "))
        assert row.runs == " ".join(f"{row.value}/{lr}/{encoder}/{seed}" for seed in (1, 2))


def test_values_are_sorted_and_the_last_equal_run_counts():
    runs = [sweep_run(p=value, name=value) for value in [10, "null", 9, 1e-05, "cls", 100]]
    table = tabulate([sweep_run(p=9, name="old"), *runs], ["p"], "sst")
    assert list(table["value"]) == list(map(str, table["runs"])) == ["1e-05", "9", "10", "100", "cls", "null"]


def test_params_that_change_together_have_one_value():
    one = sweep_run(encoder__dropout=0.1, tasks__sst__dropout=0.1)
    other = sweep_run(encoder__dropout=0.1, tasks__sst__dropout=0.3)
    encoder_only = sweep_run(encoder__dropout=0.1)
    table = tabulate([one, other, encoder_only], ["encoder.dropout", "tasks.*.dropout"], "sst")
    both = "encoder.dropout: 0.1, tasks.sst.dropout: 0.3"
    assert list(table["value"]) == ["0.1", "encoder.dropout: 0.1", both]
    runs = [sweep_run(mlm__rows__imdb=5, mlm__rows__sick=6), sweep_run(mlm__rows__imdb=5)]
    block = tabulate(runs, ["mlm.rows"], "sst")
    assert set(block["value"]) == {"mlm.rows.imdb: 5, mlm.rows.sick: 6", "mlm.rows.imdb: 5"}


def test_scores_are_means_over_seeds_with_intervals_of_rows():
    runs = [sweep_run(1, 0.5, p=1), sweep_run(2, 0.7, p=1), sweep_run(1, 0.8, p=2)]
    table = tabulate(runs, ["p"], "overall_normalized")
    columns = table[["seeds", "score", "low", "high", "least", "greatest"]].to_numpy()
    assert columns[0] == pytest.approx([2, 0.6, 0.58, 0.62, 0.5, 0.7])
    assert columns[1] == pytest.approx([1, 0.8, 0.78, 0.82, 0.8, 0.8])


def test_lines_may_lack_metrics(tmp_path):
    runs = [sweep_run(name=f"{p}{text[0]}", p=p, q=text) for p, text in product([1, 2], ["a" * 100, "b" * 100])]
    for run in runs[::2]:
        del run.scores["sst accuracy"]
    table = tabulate(runs, ["p"], "all")
    draw(table, tmp_path / "p.png", "p")
    assert len(table) == 6 and (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("runs", "param", "metric", "message"),
    [
        ([sweep_run(smart__lambda=1)], "smart.lamda", "sst", r"no run has this param; did you mean smart.lambda\?"),
        ([], "smart.lambda", "sst", "there are no finished runs"),
        ([sweep_run(p=1, lr=1), sweep_run(p=2, lr=2)], "p", "sst", "alone.* have 1; 2.*exp run --queue -S p=A,B,C"),
        ([sweep_run(p=1), sweep_run(p=2)], "p", "sts", "--metric sts: expected all, sst, overall_normalized"),
    ],
)
def test_sweep_errors(runs, param, metric, message):
    with pytest.raises(UserError, match=message):
        tabulate(runs, [param], metric)


def test_sweep_of_experiments(tmp_path, root, monkeypatch, capsys):
    """Sweep over SMART by lambda, dropout and seed, and over an option of a loss."""
    project = Planted(tmp_path, root)
    monkeypatch.chdir(tmp_path)

    def add_run(name, score, **params):
        settings = read_yaml(project.folder / "params.yaml")
        for param, value in params.items():
            set_param(settings, param.replace("__", "."), value)
        sst, sts = {"accuracy": score - 0.2, "macro_f1": 0.1}, {"pearson": score + 0.1}
        project.experiment(name, settings, sst=sst, sts=sts, overall_mean=score, overall_normalized=score + 0.05)

    for strength, dropout, seed in product([0, "5e+1"], [0.1, 0.3], [1, 2]):
        machine = {"data__path": f"/home/{seed}/course", "runtime__threads": seed, "checkpoints__minutes": seed}
        params = {"smart__lambda": strength, "encoder__dropout": dropout, "runtime__seed": seed, **machine}
        add_run(f"smart-{strength}-{dropout}-{seed}", 0.5 + dropout + 0.01 * seed, **params)
    for option in ({}, {"tasks__sst__loss_options__alpha": 1}):
        add_run(f"alpha-{len(option)}", 0.6, tasks__sst__loss="ordinal_log_loss", **option)

    table = sweep("smart.lambda", metric="all", out="out")
    assert list(table["family"].unique()) == ["encoder.dropout: 0.1", "encoder.dropout: 0.3"]
    assert set(table["metric"]) == {"overall_normalized", "sst accuracy", "sts pearson"}
    read = pd.read_csv(tmp_path / "out/smart.lambda.csv")
    assert list(read["value"].unique()) == [0, 50]
    row = read[(read["value"] == 50) & (read["metric"] == "sts pearson")].iloc[0]
    assert row["score"] == pytest.approx(0.5 + 0.1 + 0.015 + 0.1)
    assert row["runs"] == "smart-5e+1-0.1-1 smart-5e+1-0.1-2"
    assert (tmp_path / "out/smart.lambda.png").read_bytes().startswith(b"\x89PNG")
    assert "encoder.dropout: 0.3" in capsys.readouterr().out
    for param in ("tasks.sst.loss_options.alpha", "tasks.sst.loss_options"):
        table = sweep(param, metric="sst", out="out")
        assert list(table["value"]) == ["1", ABSENT] and set(table["family"]) == {""}


def test_sweep_of_measured_runs(tmp_path, root, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(root / "recipes", tmp_path / "recipes", ignore=shutil.ignore_patterns("measured"))
    shutil.copy(root / "params.yaml", tmp_path)
    depths = [point.run_as for point in load_recipes().paper("bertpp").sweeps["depth-epochs"].rows.values()]
    for row, seed in [
        *product(("smart-sst-lambda-1", "smart-sst-lambda-5", *depths), (1, 2)),
        ("strategies-smart-sst-lambda-1", 1),
        ("strategies-smart-sst-lambda-5", 1),
        ("trainer", 1),
        ("smart-gone", 1),
    ]:
        write_measured(simulate(row, seed))
    table = sweep("smart.lambda", out="out", measured=True)
    printed = capsys.readouterr()
    assert "left out recipes/measured/smart-gone" in printed.err and "trainer" not in printed.err
    assert "smart.lambda; all else as smart-sst-lambda-1-" in printed.out  # it differs in many params
    assert (tmp_path / "out/smart.lambda-measured.csv").exists()
    assert sorted(zip(table["value"], table["seeds"])) == [("1", 1), ("1", 2), ("5", 1), ("5", 2)]
    table = sweep("tasks.*.head_options.depth", out="out", measured=True)
    by_epochs = table.groupby("family")["value"].agg(list).to_dict()  # three depths of heads at once, a line for epochs
    assert by_epochs == {f"finetune.epochs: {epochs}": ["1", "2", "4"] for epochs in (1, 2, 4)}
