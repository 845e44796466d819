"""A fourth task by params alone, exactly as in docs/tutorial.md, through the real stages."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.utils.hydra import apply_overrides

from bertrio import Predictor
from bertrio.config import build_tasks, load_params, merged, read_yaml
from bertrio.data.inputs import check_inputs
from bertrio.experiments.compare import compare
from bertrio.experiments.report import write_report
from bertrio.experiments.revision import Revision
from tests.small_run import run_stages

SMALL = {
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"sample": {"train_rows": 160, "dev_rows": 40, "test_rows": 30}},
    "encoder": {"tiny": {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}},
    "finetune": {"epochs": 1, "max_steps": 12},
    "analyze": {"worst": 2, "rows": 20},
}
ROOT = Path(__file__).resolve().parent.parent
STAGES = ("check", "download", "split", "pretrain_mlm", "prefinetune", "finetune", "ensemble", "evaluate", "analyze")
TASKS = ["sst", "qqp", "sts", "nli"]
NAMES = ["entailment", "neutral", "contradiction"]


@pytest.fixture(scope="module")
def tutorial():
    return (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").partition("## A task of your own")[2]


def code_blocks(tutorial, language):
    """Return the fenced code blocks of one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", tutorial, re.S | re.M)
    return [text for name, text in fenced if name == language]


def tutorial_commands(tutorial):
    """Return the lines of all code blocks without a language."""
    return [line for block in code_blocks(tutorial, "") for line in block.splitlines()]


def add_to_tasks(params, block):
    """Return the text of params.yaml with a block added at the end of `tasks:`."""
    return params.replace("\nsharing:", f"\n{block}\nsharing:", 1)


def write_project(tutorial):
    """Write params.yaml with the tutorial's block, at a small size, and the tutorial's rows to the current folder."""
    Path("make_nli.py").write_text(code_blocks(tutorial, "python")[0])
    runpy.run_path("make_nli.py", run_name="__main__")
    text = add_to_tasks((ROOT / "params.yaml").read_text(), code_blocks(tutorial, "yaml")[0])
    Path("params.yaml").write_text(yaml.safe_dump(merged(yaml.safe_load(text), SMALL), sort_keys=False))


def apply_settings(folder, command):
    """Apply the -S options of a command to params.yaml with DVC's own parser."""
    settings = re.findall(r"-S (?:'([^']*)'|(\S+))", command)
    apply_overrides(folder / "params.yaml", [quoted or plain for quoted, plain in settings])


@pytest.fixture(scope="module")
def run(tmp_path_factory, tutorial):
    """A finished run of the four tasks under PCGrad and SMART."""
    folder = tmp_path_factory.mktemp("nli")
    [command] = [line for line in tutorial_commands(tutorial) if "pcgrad" in line and "smart" in line]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_project(tutorial)
        apply_settings(folder, command)
        run_stages(STAGES)
        write_report(out="report.html")
    return folder


def read(run, name):
    return json.loads((run / name).read_text())


def test_new_task_is_in_the_data_facts(run):
    data = read(run, "metrics/data.json")
    splits = data["tasks"]["nli"]
    assert [splits[name]["rows"] for name in ("train", "dev", "test")] == [420, 90, 90]
    assert set(splits["train"]["labels"]) == set(NAMES)
    assert data["origin"]["nli"] == {"files": {"train": "nli.tsv"}} and data["origin"]["seed"] == 0
    table = pd.read_parquet(run / "data/splits/nli/train.parquet")
    first = pd.read_csv(run / "nli.tsv", sep="\t").iloc[int(table["id"].iloc[0].rpartition("-")[2]) - 2]
    assert (first["premise"], NAMES.index(first["gold"])) == (table["text_a"].iloc[0], table["label"].iloc[0])


def test_new_task_is_in_metrics_and_predictions(run):
    metrics = read(run, "metrics/evaluation.json")
    assert metrics["overall_tasks"] == TASKS
    for split in ("dev", "test"):
        scores = metrics[split]
        assert list(scores["nli"]) == ["macro_f1", "accuracy", "balanced_accuracy", "ece", "brier"], "the chosen first"
        first = [next(iter(scores[task].values())) for task in TASKS]
        assert scores["overall_mean"] == pytest.approx(sum(first) / 4, abs=1e-5)
        assert set(metrics["intervals"][split]["nli"]) == set(scores["nli"])
    assert read(run, "metrics/calibration.json")["nli"]["rows"] == 45
    rows = pd.read_parquet(run / "predictions/ensemble.parquet").query("task == 'nli'")
    assert set(rows["split"]) == {"dev", "test"} and set(map(len, rows["probabilities"])) == {3}


def test_new_task_is_in_plots_and_analysis(run):
    assert {"loss_nli", "loss_smart_nli"} <= set(pd.read_csv(run / "plots/steps/base.csv").columns)
    for name in ("confusion/nli.csv", "reliability/nli.csv", "learning/score/nli.csv", "slices/nli.csv"):
        assert len(pd.read_csv(run / "plots" / name)), name
    labels = {f"{number} {name}" for number, name in enumerate(NAMES)}  # DVC sorts them by name
    assert set(pd.read_csv(run / "plots/confusion/nli.csv")["gold"]) == labels
    slices = read(run, "metrics/slices.json")["nli"]
    assert set(slices["label"]) == {f"label {name}" for name in NAMES}
    assert {"accuracy", "macro_f1", "n"} <= set(slices["all"]["all rows"])
    assert set(read(run, "metrics/robustness.json")) == set(read(run, "predictions/analysis/errors.json")) == set(TASKS)


def test_new_task_is_in_report_and_model_card(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "nli macro_f1" in page and "of sst, qqp, sts, nli" in page and "contradiction" in page
    card = (run / "models/README.md").read_text(encoding="utf-8")
    assert "one of 3 classes: entailment, neutral, contradiction" in card
    assert "| nli | files of the user's own | unknown | 420 | 90 | 90 |" in card
    assert "sst, qqp and sts trained on made-up sentences" in card
    assert "| sst, qqp, sts, nli | overall" in card.replace("\\_", "_")


def test_new_task_in_compare_and_predictor(run):
    comparison = compare([Revision.open("workspace", run)], [Revision.open("workspace", run)])
    assert (comparison["tasks"]["nli"]["metric"], comparison["tasks"]["nli"]["rows"]) == ("macro_f1", 90)
    assert set(comparison["overall"]) == {"overall_mean", "overall_normalized"}
    predictor = Predictor.load(run / "models")
    [answer] = predictor.predict("nli", [("a man is running", "a man is tired")])
    assert answer.label in (0, 1, 2) and len(answer.probabilities) == 3
    assert predictor.tasks["nli"].target.labels == tuple(NAMES)
    assert "nli.tsv" not in (run / "models/members/base/bertrio.json").read_text(), "paths stay private"


@pytest.fixture
def project(tutorial, tmp_path, monkeypatch):
    """The tutorial's params and rows, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_project(tutorial)
    base = read_yaml("params.yaml")

    def write(overrides):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(merged(base, overrides), sort_keys=False))

    return write


def test_tutorial_blocks_and_commands_are_valid(project, root, tutorial, tmp_path):
    experiments = [line for line in tutorial_commands(tutorial) if line.startswith("dvc exp run")]
    assert len(experiments) == 7
    for command in experiments:
        project({})
        apply_settings(tmp_path, command)
        load_params("params.yaml")
    text = add_to_tasks((root / "params.yaml").read_text(), "".join(code_blocks(tutorial, "yaml")[1:3]))
    (tmp_path / "params.yaml").write_text(text)
    params = load_params("params.yaml")
    assert params.source_of("cola") == "hub"
    assert params.same_rows == {"emotions": "emotions", "polite": "emotions"}
    own = params.tasks["polite"].data
    alike = own.model_copy(update={"train": f"./{own.train}", "columns": {"id": "id", **own.columns, "label": "other"}})
    params.tasks["more"] = params.tasks["polite"].model_copy(update={"data": alike})
    assert params.same_rows["more"] == "emotions", "other names of the same file and columns"


def inputs():
    check_inputs("params.yaml", "data/inputs")
    return {name: open(f"data/inputs/{name}.json").read() for name in ("source", "tasks")}


def test_data_digests_depend_on_file_and_block_not_on_loss(project):
    before = inputs()
    project({"tasks": {"nli": {"loss": "dual_objective", "metric": "accuracy", "batch_size": 8}}})
    assert inputs() == before
    project({"tasks": {"nli": {"data": {"split": {"fractions": [0.6, 0.2, 0.2]}}}}})
    assert inputs()["source"] == before["source"] and inputs()["tasks"] != before["tasks"]
    project({})
    with open("nli.tsv", "a") as file:
        file.write("a man is tall\ta man is small\tcontradiction\n")
    assert inputs()["source"] != before["source"]


@pytest.mark.parametrize("removed", ["sst", "qqp", "sts"])
def test_default_tasks_can_be_removed(root, tmp_path, removed):
    shutil.copy(root / "params.yaml", tmp_path)
    shutil.copy(root / "dvc.yaml", tmp_path)
    apply_settings(tmp_path, f"-S '~tasks.{removed}'" + (" -S schedule.until=shortest" if removed == "sst" else ""))
    assert removed not in build_tasks(load_params(tmp_path / "params.yaml"))
    for stage in Repo.init(str(tmp_path), no_scm=True).index.stages:
        for param in (dep for dep in stage.deps if isinstance(dep, ParamsDependency)):
            param.get_hash()  # raises if the param is missing, as DVC would after the stage has run
