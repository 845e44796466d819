"""A fourth task by params alone, word for word as docs/tutorial.md has it, through the real stages."""

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
from bertrio.core.errors import UserError
from bertrio.data.inputs import check_inputs
from bertrio.experiments.compare import compare
from bertrio.experiments.report import write_report
from bertrio.experiments.revision import Revision

SMALL = {
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"sample": {"train_rows": 160, "dev_rows": 40, "test_rows": 30}},
    "encoder": {"tiny": {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}},
    "finetune": {"epochs": 1, "max_steps": 12},
    "analyze": {"worst": 2, "rows": 20},
}
ROOT = Path(__file__).resolve().parent.parent
TASKS = ["sst", "qqp", "sts", "nli"]
NAMES = ["entailment", "neutral", "contradiction"]


@pytest.fixture(scope="module")
def document():
    return (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").partition("## A task of your own")[2]


def blocks(document, language):
    """What stands between the fences of code, of one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", document, re.S | re.M)
    return [text for name, text in fenced if name == language]


def commands(document):
    """The lines that a reader types, by their first words."""
    return [line for block in blocks(document, "") for line in block.splitlines()]


def add_to_tasks(params, block):
    """The text of params.yaml with a block put at the end of `tasks:`, as a reader's editor would."""
    return params.replace("\nsharing:", f"\n{block}\nsharing:", 1)


def make(document):
    """params.yaml with the document's block, at a small size, and the document's rows, in the current folder."""
    Path("make_nli.py").write_text(blocks(document, "python")[0])
    runpy.run_path("make_nli.py", run_name="__main__")
    text = add_to_tasks((ROOT / "params.yaml").read_text(), blocks(document, "yaml")[0])
    Path("params.yaml").write_text(yaml.safe_dump(merged(yaml.safe_load(text), SMALL), sort_keys=False))


def with_settings(folder, command):
    """What `dvc exp run` does to params.yaml, by DVC's own parser."""
    settings = re.findall(r"-S (?:'([^']*)'|(\S+))", command)
    apply_overrides(folder / "params.yaml", [quoted or plain for quoted, plain in settings])


@pytest.fixture(scope="module")
def run(tmp_path_factory, document):
    """A finished run of the four tasks under PCGrad and SMART."""
    folder = tmp_path_factory.mktemp("nli")
    [both] = [line for line in commands(document) if "pcgrad" in line and "smart" in line]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make(document)
        with_settings(folder, both)
        all_stages(folder, patch)
    return folder


def all_stages(folder, patch):
    """Runs the pipeline in the current folder, which holds params.yaml, and writes the report."""
    patch.setenv("BERTRIO_CHECKPOINTS", str(folder / "checkpoints"))
    names = ("check", "download", "split", "pretrain_mlm", "prefinetune", "finetune", "ensemble", "evaluate", "analyze")
    for name in names:
        main = runpy.run_path(str(ROOT / "stages" / f"{name}.py"))["main"]
        main("base") if name == "finetune" else main()
    write_report(out="report.html")


def read(run, name):
    return json.loads((run / name).read_text())


def test_it_trains_with_the_others(run):
    steps = pd.read_csv(run / "plots/steps/base.csv")
    assert {"loss_nli", "loss_smart_nli"} <= set(steps.columns)
    assert (run / "plots/history/base.csv").read_text().count("train_loss_nli") == 1


def test_it_stands_in_the_data_with_the_names_of_its_classes(run):
    data = read(run, "metrics/data.json")
    splits = data["tasks"]["nli"]
    assert [splits[name]["rows"] for name in ("train", "dev", "test")] == [420, 90, 90]
    assert set(splits["train"]["labels"]) == set(NAMES)
    assert data["origin"]["nli"] == {"files": {"train": "nli.tsv"}} and data["origin"]["seed"] == 0
    assert "bag_of_words" in data["simple_baselines"]["nli"]
    table = pd.read_parquet(run / "data/splits/nli/train.parquet")
    first = pd.read_csv(run / "nli.tsv", sep="\t").iloc[int(table["id"].iloc[0].rpartition("-")[2]) - 2]
    assert (first["premise"], NAMES.index(first["gold"])) == (table["text_a"].iloc[0], table["label"].iloc[0])


def test_it_stands_in_metrics_calibration_and_predictions(run):
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


def test_it_stands_in_plots_slices_and_robustness(run):
    for name in ("confusion/nli.csv", "reliability/nli.csv", "learning/score/nli.csv", "slices/nli.csv"):
        assert len(pd.read_csv(run / "plots" / name)), name
    in_order = {f"{number} {name}" for number, name in enumerate(NAMES)}  # DVC sorts them by name
    assert set(pd.read_csv(run / "plots/confusion/nli.csv")["gold"]) == in_order
    slices = read(run, "metrics/slices.json")["nli"]
    assert set(slices["label"]) == {f"label {name}" for name in NAMES}
    assert {"accuracy", "macro_f1", "n"} <= set(slices["all"]["all rows"])
    assert read(run, "metrics/robustness.json")["nli"]["model"] == "base"
    assert set(read(run, "predictions/analysis/errors.json")) == set(TASKS)


def test_it_stands_in_the_report_and_the_model_card(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "nli macro_f1" in page and "of sst, qqp, sts, nli" in page and "contradiction" in page
    card = (run / "models/README.md").read_text(encoding="utf-8")
    assert "one of 3 classes: entailment, neutral, contradiction" in card
    assert "| nli | files of the user's own | unknown | 420 | 90 | 90 |" in card
    assert "sst, qqp and sts trained on made-up sentences" in card
    assert "| sst, qqp, sts, nli | overall" in card.replace("\\_", "_")


def test_it_is_compared_with_other_runs_and_answers_like_the_others(run):
    comparison = compare([Revision.open("workspace", run)], [Revision.open("workspace", run)])
    assert (comparison["tasks"]["nli"]["metric"], comparison["tasks"]["nli"]["rows"]) == ("macro_f1", 90)
    assert set(comparison["overall"]) == {"overall_mean", "overall_normalized"}
    predictor = Predictor.load(run / "models")
    [answer] = predictor.predict("nli", [("a man is running", "a man is tired")])
    assert answer.label in (0, 1, 2) and len(answer.probabilities) == 3
    assert predictor.tasks["nli"].target.labels == tuple(NAMES)
    assert "nli.tsv" not in (run / "models/members/base/bertrio.json").read_text(), "paths stay private"


@pytest.fixture
def project(document, tmp_path, monkeypatch):
    """The document's params and rows, in the current folder."""
    monkeypatch.chdir(tmp_path)
    make(document)
    base = read_yaml("params.yaml")

    def write(overrides):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(merged(base, overrides), sort_keys=False))

    return write


def test_the_other_block_and_all_commands_of_the_document_are_understood(project, root, document, tmp_path):
    tried = [line for line in commands(document) if line.startswith("dvc exp run")]
    assert len(tried) == 7
    for command in tried:
        project({})
        with_settings(tmp_path, command)
        load_params("params.yaml")
    text = add_to_tasks((root / "params.yaml").read_text(), "".join(blocks(document, "yaml")[1:3]))
    (tmp_path / "params.yaml").write_text(text)
    params = load_params("params.yaml")
    assert params.source_of("cola") == "hub"
    assert params.same_rows == {"emotions": "emotions", "polite": "emotions"}


def inputs():
    check_inputs("params.yaml", "data/inputs")
    return {name: open(f"data/inputs/{name}.json").read() for name in ("source", "tasks")}


def test_a_changed_file_and_a_changed_block_are_noticed_and_a_new_loss_is_not(project):
    before = inputs()
    project({"tasks": {"nli": {"loss": "dual_objective", "metric": "accuracy", "batch_size": 8}}})
    assert inputs() == before
    project({"tasks": {"nli": {"data": {"split": {"fractions": [0.6, 0.2, 0.2]}}}}})
    assert inputs()["source"] == before["source"] and inputs()["tasks"] != before["tasks"]
    project({"tasks": {"nli": {"labels": ["neutral", "entailment", "contradiction"]}}})
    assert inputs()["tasks"] != before["tasks"]
    project({})
    with open("nli.tsv", "a") as file:
        file.write("a man is tall\ta man is small\tcontradiction\n")
    assert inputs()["source"] != before["source"]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"data": {"train": None}}, r"tasks\.nli\.data: expected either train .* or hub"),
        ({"metric": "f1"}, r"tasks\.nli: metric: found 'f1', expected one of accuracy, macro_f1, balanced_accuracy"),
        ({"data": {"train": "nil.tsv"}}, r"tasks\.nli\.data\.train: there is no file or folder nil\.tsv"),
    ],
)
def test_a_mistake_in_the_block_is_told_with_its_place_before_any_work(project, block, message):
    project({"tasks": {"nli": block}})
    with pytest.raises(UserError, match=message):
        check_inputs("params.yaml", "data/inputs")


@pytest.mark.parametrize("gone", ["sst", "qqp", "sts"])
def test_each_of_the_three_can_be_taken_away(root, tmp_path, gone):
    shutil.copy(root / "params.yaml", tmp_path)
    shutil.copy(root / "dvc.yaml", tmp_path)
    with_settings(tmp_path, f"-S '~tasks.{gone}'" + (" -S schedule.until=shortest" if gone == "sst" else ""))
    assert gone not in build_tasks(load_params(tmp_path / "params.yaml"))
    for stage in Repo.init(str(tmp_path), no_scm=True).index.stages:
        for param in (dep for dep in stage.deps if isinstance(dep, ParamsDependency)):
            param.get_hash()  # an error where DVC would find a param missing after the stage has run


def test_a_run_without_one_of_the_three_says_what_it_covers(root, document, tmp_path, monkeypatch):
    small = merged(read_yaml(root / "params.yaml"), merged(SMALL, {"finetune": {"max_steps": 4}}))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    [command] = [line for line in commands(document) if "~tasks.sst" in line]
    with_settings(tmp_path, command)
    monkeypatch.chdir(tmp_path)
    all_stages(tmp_path, monkeypatch)
    metrics = read(tmp_path, "metrics/evaluation.json")
    assert metrics["overall_tasks"] == ["qqp", "sts"] and "overall_mean" in metrics["dev"]
    submission = {path.name.partition("-")[0] for path in (tmp_path / "predictions/submission").iterdir()}
    assert submission == {"para", "sts"}
    assert "of qqp, sts" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "| qqp, sts | overall" in (tmp_path / "models/README.md").read_text().replace("\\_", "_")
