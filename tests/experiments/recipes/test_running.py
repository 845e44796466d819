"""Rows run as DVC experiments, in a project whose one stage copies results instead of training."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.core.files import write_json, write_text
from bertrio.experiments.dvc_experiments import queued, run_experiment
from bertrio.experiments.recipes import running
from bertrio.experiments.recipes.measured import FOLDER as MEASURED
from bertrio.experiments.recipes.measured import load_measured
from bertrio.experiments.recipes.running import collect, experiment_name, run_rows
from bertrio.experiments.revision import Revision, find_experiments
from tests.experiments.conftest import tables, write_run
from tests.toy_project import toy_project
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
STAGE = """
import json, os, shutil, sys, time
from pathlib import Path
import yaml

params = yaml.safe_load(open("params.yaml"))
if params["finetune"]["epochs"] == 99:
    sys.exit("this run was made to fail")
if params["finetune"]["epochs"] == 77 and not Path(os.environ["GO_ON"]).exists():
    Path(os.environ["STARTED"]).write_text(str(os.getpid()))
    time.sleep(60)
shutil.copytree("made", ".", dirs_exist_ok=True)
"""
METRICS = [{f"metrics/{name}.json": {"cache": False}} for name in ("evaluation", "timing", "data")]
PYTHON = sys.executable
PLOTS = [{"plots/history/base.csv": {"cache": False}}]


@pytest.fixture(scope="module")
def repository(tmp_path_factory, warm):
    """A committed project with recipes, whose one stage copies the folder `made`; the working directory.

    DVC runs in forks of a Python that has imported it.
    """
    folder = tmp_path_factory.mktemp("repository")
    params = (Path(__file__).parents[3] / "params.yaml").read_text()
    made = {"deps": ["made"], "outs": ["predictions"], "metrics": METRICS, "plots": PLOTS}
    project = toy_project(folder, STAGE, params, warm.python, **made)
    shutil.copytree(Path(__file__).parent / "toy", folder / "recipes")
    (folder / ".gitignore").write_text("/predictions\n")
    write_run(folder / "made", tables())
    shutil.rmtree(folder / "made/data")
    (folder / "made/params.yaml").unlink()
    scores = {"sst": {"accuracy": 0.5}, "overall_normalized": 0.6}
    write_json(folder / "made/metrics/evaluation.json", {"dev": scores, "intervals": {}})
    write_json(folder / "made/metrics/timing.json", {"finetune-base": {"seconds": 3.0, "peak_memory_mb": 5.0}})
    write_json(folder / "made/metrics/data.json", {"tasks": {"sst": {"dev": {"rows": 200}}}})
    write_text(folder / "made/plots/history/base.csv", "epoch,step,dev_overall_normalized\n1,10,0.6\n")
    project.commit()
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.python)
        yield project


def settings_of(name: str) -> dict:
    return Revision.open(name).settings()


@pytest.fixture
def edit_file(repository):
    """Replace texts in a file of the repository for one test."""

    def edit_file(name: str, *pairs: tuple[str, str]) -> None:
        text = repository.git("show", f"HEAD:{name}")
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        Path(name).write_text(text)

    yield edit_file
    repository.git("checkout", "-q", "--", "params.yaml", "recipes/toy.yaml")


@pytest.fixture(scope="module")
def finished(repository):
    """The experiments of two rows, run after one that failed."""
    with pytest.raises(UserError, match=r"1 of 3 runs failed.*\n  toy-failing-quick-s1: dvc exp run ended"):
        run_rows(["toy-failing", "toy-table1"], "quick")
    return ["toy-base-quick-s1", "toy-smart-quick-s1"]


@pytest.fixture
def no_runs(monkeypatch):
    """Make starting DVC raise TypeError."""
    monkeypatch.setattr("bertrio.experiments.dvc_experiments._run", None)


def test_rows_become_measured_experiments(repository, finished):
    assert set(finished) == find_experiments().keys()  # without the failed run
    default = read_yaml("params.yaml")
    finetune = default["finetune"] | {"epochs": 10, "lr": 6e-5}
    smart = default["smart"] | {"lambda": 5, "tasks": ["sst"]}
    assert settings_of("toy-smart-quick-s1") == default | {"finetune": finetune, "smart": smart}
    assert repository.git("status", "--porcelain").split() == ["??", "recipes/measured/"]
    assert not Path("predictions").exists()
    measured = {run.name: run for run in load_measured()}
    assert set(finished) <= measured.keys()
    run = measured["toy-smart-quick-s1"]
    assert (run.row, run.budget, run.seed, run.overrides) == ("toy-smart", "quick", 1, {})
    assert run.metrics["dev"]["overall_normalized"] == 0.6
    assert repository.git("rev-parse", "HEAD").startswith(run.commit)


def test_existing_run_is_skipped(repository, finished, no_runs, capsys):
    same = {"runtime.threads": 1, "checkpoints.minutes": 1}  # machine params do not define a run
    assert run_rows(["toy-base", "toy-smart"], "quick", overrides=same) == finished
    assert "toy-smart-quick-s1: already run" in capsys.readouterr().err


def test_edited_params_yaml_is_an_error_except_for_paths(repository, finished, edit_file, monkeypatch):
    monkeypatch.setattr(running, "run_experiment", lambda *_: None)
    edit_file("params.yaml", ("  path:  ", "  path: elsewhere  "), ("  seed: 1 ", "  seed: 7 "))
    assert run_rows(["toy-base"], "quick") == ["toy-base-quick-s1"]
    edit_file("params.yaml", ("  whole_word: false ", "  whole_word: true "))  # off by default, set by rows
    with pytest.raises(UserError, match="changed since.*\n  mlm.whole_word: committed false, found true"):
        run_rows(["toy-base"], "quick")


def test_other_run_of_the_same_name_is_an_error(repository, finished, no_runs, edit_file):
    settings = settings_of("toy-base-quick-s1")
    other = settings | {"finetune": settings["finetune"] | {"lr": 1e-3}}
    with pytest.raises(UserError, match="toy-base-quick-s1: .*other params.*dvc exp remove toy-base-quick-s1") as error:
        run_experiment("toy-base-quick-s1", other)
    assert "finetune.lr: there 6e-05, asked for 0.001" in str(error.value)
    settings["finetune"]["newer"] = 0
    edit_file("params.yaml", ("\nfinetune:\n", "\nfinetune:\n  newer: 0\n"))
    run_experiment("toy-base-quick-s1", settings)


def test_stopped_run_is_cleaned_up_and_runs_again(repository, tmp_path, monkeypatch):
    started, go_on = tmp_path / "started", tmp_path / "go_on"
    monkeypatch.setenv("STARTED", str(started))
    monkeypatch.setenv("GO_ON", str(go_on))
    monkeypatch.setenv("PYTHONPATH", str(Path(running.__file__).parents[3]))
    options = {"budget": "paper", "overrides": {"finetune.epochs": 77}}
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # as in background jobs of a shell
    code = f"from bertrio.experiments.recipes.running import run_rows\nrun_rows(['toy-base'], **{options})"
    process = subprocess.Popen([PYTHON, "-c", f"{ignore}\n{code}"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: started.exists() and started.read_text(), 60)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert "stopped; the same command goes on from toy-base-paper-s1-" in errors
    assert not Path(f"/proc/{started.read_text()}").exists()
    name = experiment_name("toy-base", "paper", 1, {"finetune.epochs": 77})
    assert name not in find_experiments()
    assert not list(Path(".dvc/tmp/exps/standalone").glob("tmp*"))  # DVC's copy of the repository
    go_on.write_text("")
    assert run_rows(["toy-base"], **options) == [name]
    assert settings_of(name)["finetune"]["epochs"] == 77


def test_queue_gets_each_run_once(repository, capsys):
    for skipped in (0, 2):
        names = run_rows(["toy-base"], "paper", seeds=2, queue=True)
        assert names == ["toy-base-paper-s1", "toy-base-paper-s2"]
        assert capsys.readouterr().err.count(": already in the queue") == skipped
        assert queued() == set(names)
    assert not set(names) & find_experiments().keys()


def add_refs(repository, name: str, **targets: str) -> None:
    """Add experiments under other names for the commit of an experiment, or for another commit."""
    [ref] = repository.git("for-each-ref", "--format=%(refname)", f"refs/exps/*/*/{name}").split()
    for other, target in targets.items():
        repository.git("update-ref", ref.replace(name, other), target or ref)


def test_collect_measures_only_experiments_of_rows(repository, finished):
    other = "toy-base-quick-s9-abcdef"
    settings = settings_of("toy-base-quick-s1")
    settings["data"]["sample"]["seed"] = 7
    run_experiment(other, settings)
    others = ("mine", "toy-gone-quick-s1", "toy-base-longest-s1", "toy-table1-quick-s1")
    add_refs(repository, other, **dict.fromkeys(others, ""))
    commit = repository.git("rev-parse", "--short=7", "HEAD").strip()
    repository.git("commit", "-q", "--allow-empty", "-m", "later")  # collect includes experiments of earlier commits
    first, second = (Path(MEASURED, f"{name}.json") for name in ("toy-base-quick-s1", other))
    before = first.read_bytes()
    first.unlink()
    assert collect() == [first, second]
    content = json.loads(second.read_bytes())
    assert (content["seed"], content["overrides"], content["commit"]) == (1, {"data.sample.seed": 7}, commit)
    write_json(first, json.loads(before) | {"version": "0.0.1"})
    assert collect() == []  # the same figures
    write_json(first, json.loads(before) | {"seconds": 1.0})
    assert collect() == [first]
    assert first.read_bytes() == before


def test_run_of_a_changed_row_has_overrides(repository, finished, edit_file):
    path = Path(MEASURED, "toy-smart-quick-s1.json")
    for now, overrides in ((10, {"smart.lambda": 5}), (5, {})):
        edit_file("recipes/toy.yaml", ("lambda: 5", f"lambda: {now}"))
        path.unlink()
        collect(["toy-smart-quick-s1"])
        assert json.loads(path.read_text())["overrides"] == overrides


def test_experiment_names_ignore_machine_params(tmp_path):
    assert experiment_name("toy-base", "quick", 1, {}) == "toy-base-quick-s1"
    here = {"data.path": str(tmp_path / "cs224n"), "data.source": "cs224n", "runtime.threads": 2}
    there = {"data.source": "cs224n", "data.path": "/elsewhere/cs224n", "runtime.device": "cuda"}
    name = experiment_name("toy-base", "quick", 1, here)
    assert name == experiment_name("toy-base", "quick", 1, there)
    assert len(name) == len("toy-base-quick-s1-123456")
    others = [here | {"data.source": "files"}, here | {"finetune.lr": 3e-5}, here | {"runtime.precision": "bf16"}]
    assert len({name, *[experiment_name("toy-base", "quick", 1, other) for other in others]}) == 4


@pytest.mark.parametrize(("error", "seeds", "param"), [("unknown", 1, "finetune.lrr"), ("3 seeds", 3, "runtime.seed")])
def test_invalid_params_and_seeds_are_errors_before_any_run(repository, no_runs, error, seeds, param):
    with pytest.raises(UserError, match=error):
        run_rows(["toy-base"], seeds=seeds, overrides={param: 1})


def test_unreadable_experiment_does_not_stop_collect(repository, finished):
    add_refs(repository, "toy-base-quick-s1", **{"toy-base-quick-s0": "HEAD"})  # a commit without results
    path = Path(MEASURED, "toy-smart-quick-s1.json")
    path.unlink()
    with pytest.raises(UserError, match="1 of .* can't be collected:\n  toy-base-quick-s0: .*evaluation.json"):
        collect()
    assert path.exists()
