"""The whole DAG as a user runs it: a copy of the project at a small size, DVC and all."""

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

from bertrio.config import merged, read_yaml
from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.heavy
SMALL = {
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"sample": {"train_rows": 160, "dev_rows": 40, "test_rows": 30}},
    "encoder": {"tiny": {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}},
    "mlm": {"rows": {"imdb": 30, "multinli": 30, "sick": 30}, "block_size": 32, "max_steps": 20},
    "finetune": {"epochs": 2},
}
STAGES = (
    "check", "download", "split", "pretrain_mlm", "prefinetune", "teach", "finetune@base", "ensemble", "evaluate",
    "analyze",
)  # fmt: skip


class Project:
    """A git and DVC repository in a folder of its own."""

    def __init__(self, folder: Path, warm: WarmPython) -> None:
        self.folder = folder
        who = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self._environment = warm.environment() | who | {"COLUMNS": "200"}
        for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
            shutil.copy(ROOT / name, folder / name)
        copy_code(ROOT, folder)
        self.write_params({})
        self.run("git", "init", "-q")
        self.run("dvc", "init", "-q")
        self.run("dvc", "config", "core.analytics", "false")
        self.commit()

    def write_params(self, overrides: dict) -> None:
        params = merged(merged(read_yaml(ROOT / "params.yaml"), SMALL), overrides)
        (self.folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    def run(self, *command: str, fails: bool = False, folder: Path | None = None) -> str:
        """Runs a command there, or in a folder; returns what it printed."""
        where = folder or self.folder
        done = subprocess.run(command, cwd=where, env=self._environment, capture_output=True, text=True)
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, output
        return output

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", "state")

    def stages_that_would_run(self, *targets: str) -> list[str]:
        """Runs check, which writes what other stages look at beside params, and asks what else has changed."""
        self.run("dvc", "repro", "check")
        return stages_run(self.run("dvc", "repro", "--dry", *targets))

    def json(self, name: str) -> dict:
        return json.loads((self.folder / name).read_text())

    def bytes(self, *names: str) -> dict[str, bytes]:
        return {name: (self.folder / name).read_bytes() for name in names}


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


def copy_code(root: Path, folder: Path) -> None:
    for name in ("stages", "src"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


@pytest.fixture(scope="module")
def project(tmp_path_factory, warm):
    made = Project(tmp_path_factory.mktemp("project"), warm)
    made.first_output = made.run("dvc", "repro")
    made.commit()
    return made


@pytest.fixture(autouse=True)
def as_committed(request):
    """After each test params.yaml and metrics are what they were; outs stay what the test has left."""
    yield
    if "project" in request.fixturenames:
        request.getfixturevalue("project").run("git", "checkout", "--", ".")


def test_repro_runs_the_chain_and_writes_all_that_is_promised(project):
    assert stages_run(project.first_output) == list(STAGES)
    evaluation = project.json("metrics/evaluation.json")
    for split in ("dev", "test"):
        assert set(evaluation[split]) == {"sst", "qqp", "sts", "overall_mean", "overall_normalized"}
        assert "f1" in evaluation[split]["qqp"]
        assert set(evaluation[split]["sts"]) == {"pearson", "spearman", "rmse"}
    assert evaluation["selected_on"] == {"rows": "dev", "by": "overall_normalized"}
    assert evaluation["best_epoch"]["base"] in (1, 2)
    timing = project.json("metrics/timing.json")
    assert {"download", "split", "finetune-base", "ensemble", "evaluate", "analyze"} <= set(timing)
    assert {"seconds", "peak_memory_mb", "rows_per_second"} <= set(timing["finetune-base"])
    assert project.json("metrics/mlm.json") == {"enabled": False}
    for name in ("sst", "para", "sts"):
        lines = (project.folder / f"predictions/submission/{name}-test-output.csv").read_text().splitlines()
        assert len(lines) == 31
    assert list(pd.read_csv(project.folder / "plots/history/base.csv")["epoch"]) == [1, 2]
    assert (project.folder / "models/members/base/encoder/model.safetensors").exists()
    assert set(project.json("predictions/analysis/errors.json")) == {"sst", "qqp", "sts"}
    assert project.json("metrics/slices.json")["qqp"]["all"]["all rows"]["n"] == 40
    assert "order_swapped" in project.json("metrics/robustness.json")["qqp"]
    assert (project.folder / "models/README.md").exists()
    project.run("python", "-m", "bertrio.cli.main", "report")
    page = (project.folder / "report.html").read_text()
    assert "is not there" not in page.replace("metrics/challenges.json is not there", "")
    assert "float32" in page.split("By stage", 1)[1]


def test_repro_again_only_checks(project):
    assert stages_run(project.run("dvc", "repro")) == ["check"]


def test_a_mistake_in_params_stops_repro_though_no_stage_reads_it(project):
    project.write_params({"finetune": {"lrr": 1}})
    output = project.run("dvc", "repro", fails=True)
    assert "unknown param; did you mean finetune.lr?" in output and "Traceback" not in output


def test_the_scripts_alone_give_the_same_bytes_as_dvc(project, tmp_path):
    names = (
        "predictions/ensemble.parquet", "metrics/evaluation.json", "metrics/data.json", "metrics/robustness.json",
        "plots/history/base.csv", "plots/steps/base.csv", "plots/slices/sts.csv", "predictions/analysis/errors.json",
        "models/members/base/encoder/model.safetensors",
    )  # fmt: skip
    by_dvc = project.bytes(*names)
    shutil.copy(project.folder / "params.yaml", tmp_path)
    copy_code(project.folder, tmp_path)
    for stage in STAGES:
        script, _, member = stage.partition("@")
        project.run("python", f"stages/{script}.py", *(["--member", member] if member else []), folder=tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == by_dvc


def test_a_copy_runs_its_own_code(project, tmp_path):
    """An installed bertrio, such as that of an editable install, stands back."""
    copy_code(project.folder, tmp_path)
    with open(tmp_path / "src/bertrio/core/stage.py", "a") as file:
        file.write('\nraise SystemExit("the code of the copy")\n')
    for script in sorted((tmp_path / "stages").glob("*.py")):
        output = project.run("python", str(script), "--member", "base", folder=tmp_path, fails=True)
        assert output.strip() == "the code of the copy", script.name


def test_an_experiment_runs_only_the_stages_that_read_the_param(project):
    output = project.run("dvc", "exp", "run", "-n", "slower", "-S", "finetune.lr=1e-6")
    assert stages_run(output) == ["check", "finetune@base", "ensemble", "evaluate", "analyze"]
    assert "1e-06" in (project.folder / "params.yaml").read_text()
    assert "finetune.lr" in project.run("dvc", "params", "diff")
    assert "dev.overall_normalized" in project.run("dvc", "metrics", "diff")
    assert "slower" in project.run("dvc", "exp", "show", "--csv")
    project.run("git", "checkout", "--", ".")
    assert "finetune@base" not in stages_run(project.run("dvc", "repro")), "an old state comes back from the cache"


def test_an_experiment_in_a_copy_leaves_the_workspace_alone(project):
    output = project.run("dvc", "exp", "run", "--temp", "-n", "aside", "-S", "finetune.epochs=1", "evaluate")
    assert "finetune@base" in stages_run(output)
    assert project.run("git", "status", "--porcelain").strip() == ""
    assert "aside" in project.run("dvc", "exp", "list")


def test_a_combining_rule_runs_no_training(project):
    project.write_params({"ensemble": {"combine": "mean"}})
    ran = project.stages_that_would_run()
    assert "ensemble" in ran and "finetune@base" not in ran


def test_a_changed_challenge_file_runs_the_analysis_and_no_training(project, tmp_path):
    hard = tmp_path / "hard.csv"
    hard.write_text("text,label\na good film,3\nnot a good film,1\n")
    project.write_params({"evaluate": {"challenges": {"hard": {"task": "sst", "path": str(hard)}}}})
    ran = stages_run(project.run("dvc", "repro"))
    assert "finetune@base" not in ran and "analyze" in ran
    assert project.json("metrics/challenges.json")["hard"]["n"] == 2
    with open(hard, "a") as file:
        file.write("a film,2\n")
    assert project.stages_that_would_run() == ["check", "analyze"]


def test_optional_stages_and_members(project):
    members = {"base": {}, "second": {"runtime": {"seed": 2}, "tasks": {"sst": {"dropout": 0.3}}}}
    before = {"mlm": {"enabled": True}, "prefinetune": {"epochs": 1}}
    project.write_params({**before, "ensemble": {"members": members}})
    output = project.run("dvc", "repro", "evaluate")
    assert {"pretrain_mlm", "prefinetune", "finetune@base", "finetune@second", "ensemble"} <= set(stages_run(output))
    perplexity = project.json("metrics/mlm.json")["perplexity"]
    assert perplexity["after"] < perplexity["before"]
    assert set(project.json("metrics/prefinetune.json")["dev"]) == {"qqp"}
    assert set(project.json("metrics/evaluation.json")["best_epoch"]) == {"base", "second"}
    members["second"]["finetune"] = {"lr": 1e-6}
    project.write_params({**before, "ensemble": {"members": members}})
    assert project.stages_that_would_run("finetune") == ["check", "finetune@second"]
    project.write_params(before)
    assert stages_run(project.run("dvc", "repro", "evaluate")) == ["check", "ensemble", "evaluate"]
    assert set(project.json("metrics/evaluation.json")["best_epoch"]) == {"base"}


def test_a_teacher_predicts_once_for_all_students(project, tmp_path):
    teacher, bare = tmp_path / "teacher", tmp_path / "bare.csv"
    project.run("dvc", "repro", "ensemble")
    shutil.copytree(project.folder / "models", teacher)
    bare.write_text("text\n" + "".join(f"a film of {number} plots\n" for number in range(30)))
    unlabelled = {"bare": {"task": "sst", "path": str(bare), "share": 0.2}}
    distill = {"weight": 1, "teacher": str(teacher)}
    project.write_params({"data": {"unlabelled": unlabelled}, "distill": distill})
    ran = stages_run(project.run("dvc", "repro", "finetune"))
    assert {"download", "split", "teach", "finetune@base"} <= set(ran)
    taught = pd.read_parquet(project.folder / "data/teacher/sst.parquet")
    assert len(taught) == 190 and taught["label"].isna().sum() == 30
    assert project.json("metrics/data.json")["tasks"]["sst"]["train"]["rows"] == 160
    unlabelled["bare"]["share"] = 0.3
    project.write_params(
        {"data": {"unlabelled": unlabelled}, "distill": {**distill, "weight": 2, "temperature": 4, "tasks": ["sst"]}}
    )
    ran = stages_run(project.run("dvc", "repro", "evaluate"))
    assert "teach" not in ran and "finetune@base" in ran
    (teacher / "members/base/bertrio.json").write_text((teacher / "members/base/bertrio.json").read_text() + "\n")
    assert "teach" in project.stages_that_would_run("finetune")


def test_what_lies_outside_is_watched(project, tmp_path):
    from transformers import BertConfig, BertModel, BertTokenizerFast

    rows, encoder = tmp_path / "rows.csv", tmp_path / "encoder"
    rows.write_text("text_a,text_b,label\na film,a play,1\n")
    vocab = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "play"])}
    BertTokenizerFast(vocab=vocab).save_pretrained(encoder)
    config = BertConfig(vocab_size=7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(encoder)
    extra = {"qqp": {"train": str(rows)}}
    project.write_params({"data": {"extra_train": extra}, "encoder": {"name": str(encoder)}})
    project.run("dvc", "repro", "split", "pretrain_mlm")
    assert project.stages_that_would_run("split", "pretrain_mlm") == ["check"]
    with open(rows, "a") as file:
        file.write("a film,the film,1\n")
    assert project.stages_that_would_run("split", "pretrain_mlm") == ["check", "download"]
    project.run("dvc", "repro", "split")
    assert project.json("metrics/data.json")["tasks"]["qqp"]["train"]["rows"] == 162
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.2}))
    ran = project.stages_that_would_run("pretrain_mlm")
    assert "download" not in ran and "pretrain_mlm" in ran
