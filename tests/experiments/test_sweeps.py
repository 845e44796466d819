"""Families of runs as a function of params and figures; then the experiments of a repository."""

import shutil
from itertools import product

import pandas as pd
import pytest

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.measured import write_measured
from bertrio.experiments.recipes.params import set_param
from bertrio.experiments.sweeps import ABSENT, Figure, Run, Swept, families, sweep, tabulate
from tests.experiments.planted import Planted
from tests.experiments.simulated import simulate


def made(value, seed=1, score=0.5, name="", **others):
    """A run; `others` are its other params."""
    figures = {
        "sst accuracy": Figure(score - 0.1, score - 0.12, score - 0.08),
        "overall": Figure(score, score - 0.02, score + 0.02),
    }
    named = {param.replace("_", "."): str(of) for param, of in others.items()}
    has = () if value == ABSENT else ("p", "smart.lambda")
    return Run(name or f"{value}-{seed}-{'-'.join(named.values())}", str(value), str(seed), named, figures, has)


def test_families_share_all_but_the_param_and_are_never_mixed():
    """Every run with two values beside it is in exactly one family, with none that differs in another param."""
    runs = [made(*of[:2], lr=of[2], encoder=of[3]) for of in product([5, 0.1, 1], [1, 2], ["1e-5", "2e-5"], ["a", "b"])]
    alone = made(1, lr="3e-5", encoder="a")
    found = families(Swept(("smart.lambda",)), [*runs, alone])
    assert sorted(family.title for family in found) == [
        f"encoder: {encoder}, lr: {lr}" for encoder in "ab" for lr in ("1e-5", "2e-5")
    ]
    placed = [run for family in found for of in family.points.values() for run in of]
    assert len(placed) == len(runs) and alone not in placed
    for family in found:
        assert list(family.points) == ["0.1", "1", "5"]
        assert len({tuple(run.others.items()) for of in family.points.values() for run in of}) == 1
        for value, of in family.points.items():
            assert [run.seed for run in of] == ["1", "2"] and {run.value for run in of} == {value}


def test_of_runs_with_the_same_params_and_seed_the_last_counts():
    found = families(Swept(("p",)), [made(1, name="old", score=0.1), made(2), made(1, name="new", score=0.9)])
    assert [run.name for run in found[0].points["1"]] == ["new"]


def test_numbers_stand_in_their_order_and_before_words():
    values = [10, "null", 9, 1e-05, "cls", 100]
    assert list(families(Swept(("p",)), [made(value) for value in values])[0].points) == [
        "1e-05",
        "9",
        "10",
        "100",
        "cls",
        "null",
    ]


def test_params_that_move_together_have_one_value_and_others_are_told_apart():
    dropouts = {"encoder.dropout": "0.1", "tasks.sst.dropout": "0.1", "tasks.qqp.dropout": "0.1"}
    several = Swept(("encoder.dropout", "tasks.*.dropout"))
    assert all(map(several.takes, dropouts)) and not several.takes("tasks.sst.dropouts")
    assert several.value({**dropouts, "runtime.seed": "1"}) == "0.1" and several.value({}) == ABSENT
    assert "tasks.qqp.dropout: 0.3" in several.value({**dropouts, "tasks.qqp.dropout": "0.3"})
    lacking = {"encoder.dropout": "0.1", "tasks.sst.dropout": "0.1", "tasks.qqp.loss": "bce"}
    assert several.value(lacking) == "encoder.dropout: 0.1, tasks.sst.dropout: 0.1"
    assert several.stem == "encoder.dropout+tasks.all.dropout"
    block = Swept(("mlm.rows",))
    assert block.value({"mlm.rows.imdb": "5", "mlm.rows.sick": "5"}) == "imdb: 5, sick: 5"
    assert block.inside("mlm") and not block.inside("mlm.rows") and not block.inside("mlm.rows.imdb")
    assert Swept(("tasks.*.loss_options.alpha",)).inside("tasks.sst.loss_options")


def test_figures_are_means_over_seeds_with_the_interval_of_rows():
    table = tabulate(families(Swept(("p",)), [made(1, 1, 0.5), made(1, 2, 0.7), made(2, 1, 0.8)]), "overall")
    first, second = table.to_dict("records")
    assert [first[name] for name in ("seeds", "score", "low", "high", "least", "greatest")] == pytest.approx(
        [2, 0.6, 0.58, 0.62, 0.5, 0.7]
    )
    assert second["seeds"] == 1 and second["least"] == second["greatest"] == second["score"]


def test_nothing_to_draw_says_what_to_do():
    with pytest.raises(UserError, match=r"no run has this param; did you mean smart.lambda\?"):
        families(Swept(("smart.lamda",)), [made(ABSENT, smart_lambda=1)])
    with pytest.raises(UserError, match="there are no finished runs"):
        families(Swept(("smart.lambda",)), [])
    with pytest.raises(UserError, match="no two runs differ in this alone; those that there are have 1; 2") as error:
        families(Swept(("smart.lambda",)), [made(1, lr=1), made(2, lr=2)])
    assert "dvc exp run --queue -S smart.lambda=A,B,C" in str(error.value)


@pytest.fixture
def planted(tmp_path, root):
    """A project with experiments: SMART by lambda, dropout and seed; and a loss with an option."""
    project = Planted(tmp_path, root)

    def plant(name, score, **params):
        settings = read_yaml(project.folder / "params.yaml")
        for param, value in params.items():
            set_param(settings, param.replace("__", "."), value)
        sst, sts = {"accuracy": score - 0.2, "macro_f1": 0.1}, {"pearson": score + 0.1}
        project.experiment(name, settings, sst=sst, sts=sts, overall_mean=score, overall_normalized=score + 0.05)

    for strength, dropout, seed in product([0, 0.1, 5.0, "5e+1"], [0.1, 0.3], [1, 2]):
        place = {"data__path": f"/home/{seed}/course", "runtime__threads": seed, "checkpoints__minutes": seed}
        score = 0.5 + dropout + 0.001 * float(strength) + 0.01 * seed
        plant(
            f"smart-{strength}-{dropout}-{seed}", score, smart__lambda=strength, encoder__dropout=dropout,
            runtime__seed=seed, **place,
        )  # fmt: skip
    for alpha in (None, 1, 2):
        option = {} if alpha is None else {"tasks__sst__loss_options__alpha": alpha}
        plant(f"alpha-{alpha}", 0.6, tasks__sst__loss="ordinal_log_loss", **option)
    plant("alone", 0.4, finetune__lr=1.0)
    old = read_yaml(project.folder / "params.yaml")
    project.experiment("old", old, with_intervals=False, sst={"accuracy": 0.1}, overall_mean=0.1)
    return project


def test_a_sweep_of_experiments(planted, capsys):
    found = sweep("smart.lambda", metric="all", out=planted.folder / "out", root=planted.folder)
    assert [family.title for family in found] == ["encoder.dropout: 0.1", "encoder.dropout: 0.3"]
    table = pd.read_csv(planted.folder / "out/smart.lambda.csv")
    assert list(dict.fromkeys(table["metric"])) == ["overall_normalized", "sst accuracy", "sts pearson"]
    assert list(dict.fromkeys(table["value"])) == [0, 0.1, 5, 50]
    row = table[(table["value"] == 50) & (table["metric"] == "sts pearson")].iloc[0]
    assert row["score"] == pytest.approx(0.5 + 0.1 + 0.05 + 0.015 + 0.1)
    assert row["runs"] == "smart-5e+1-0.1-1 smart-5e+1-0.1-2"
    assert (planted.folder / "out/smart.lambda.png").read_bytes().startswith(b"\x89PNG")
    told, said = capsys.readouterr()
    assert "smart.lambda, where encoder.dropout: 0.3" in told and "4 more runs" in told
    assert "old: left out, its metrics/evaluation.json has no intervals of dev" in said


def test_a_param_that_is_not_set_is_a_value_too(planted):
    (family,) = sweep("tasks.sst.loss_options.alpha", metric="sst", out=planted.folder / "out", root=planted.folder)
    assert list(family.points) == ["1", "2", ABSENT]
    (family,) = sweep("tasks.sst.loss_options", metric="sst", out=planted.folder / "out", root=planted.folder)
    assert list(family.points) == ["alpha: 1", "alpha: 2", "{}"]


def test_a_sweep_of_params_that_move_together(planted):
    (family,) = sweep("encoder.dropout", "smart.lambda", out=planted.folder / "out", root=planted.folder)
    assert {"encoder.dropout: 0.1, smart.lambda: 5", "encoder.dropout: 0.3, smart.lambda: 0"} < family.points.keys()
    assert (planted.folder / "out/encoder.dropout+smart.lambda.png").exists()


def test_of_several_params_each_must_be_one_and_what_is_wrong_is_named(planted):
    with pytest.raises(UserError, match=r"^smart.lamda: no run has this param; did you mean smart.lambda\?"):
        sweep("encoder.dropout", "smart.lamda", out=planted.folder / "out", root=planted.folder)
    with pytest.raises(
        UserError, match="no two runs differ in this alone.*Make some: dvc exp run with -S for each value"
    ):
        sweep("bregman.mu", "r_drop.alpha", out=planted.folder / "out", root=planted.folder)


def test_a_sweep_of_measured_runs_reads_them_by_their_rows(tmp_path, root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    (tmp_path / "recipes/measured").mkdir(parents=True)
    for path in (root / "recipes").glob("*.yaml"):
        shutil.copy(path, tmp_path / "recipes")
    shutil.copy(root / "params.yaml", tmp_path)
    for row in ("smart-sst-lambda-1", "smart-sst-lambda-5"):
        for seed in (1, 2):
            write_measured(simulate(row, seed), tmp_path / "recipes/measured")
    write_measured(simulate("smart-gone", 1), tmp_path / "recipes/measured")
    (family,) = sweep("smart.lambda", "smart.lambda", out=tmp_path / "out", root=tmp_path, measured=True)
    assert "left out recipes/measured/smart-gone" in capsys.readouterr().err
    assert (tmp_path / "out/smart.lambda-measured.csv").exists()
    assert {value: [run.seed for run in runs] for value, runs in family.points.items()} == {
        "1": ["1", "2"],
        "5": ["1", "2"],
    }
