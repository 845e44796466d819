"""The whole DVC pipeline as a user runs it, in a copy of the project at a small size."""

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

from bertrio.config import merged, read_yaml
from tests.small_bert import save_bert
from tests.toy_project import Clone, copy_code
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


class Project(Clone):
    """A git and DVC repository with a copy of the project."""

    def __init__(self, folder: Path, warm: WarmPython) -> None:
        self._environment = warm.environment() | {"COLUMNS": "200"}
        for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
            shutil.copy(ROOT / name, folder / name)
        copy_code(ROOT, folder)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        super().__init__(folder)
        self.write_params({})
        self.run("dvc", "init", "-q")
        self.run("dvc", "config", "core.analytics", "false")
        self.commit()

    def write_params(self, overrides: dict) -> None:
        params = merged(merged(read_yaml(ROOT / "params.yaml"), SMALL), overrides)
        (self.folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    def run(self, *command: str, must_fail: bool = False, folder: Path | None = None) -> str:
        """Run a command here, or in `folder`, and return its output."""
        cwd = folder or self.folder
        result = subprocess.run(command, cwd=cwd, env=self._environment, capture_output=True, text=True)
        output = result.stdout + result.stderr
        assert (result.returncode != 0) == must_fail, output
        return output

    def changed_stages(self, *targets: str) -> list[str]:
        """Return the stages that repro would run, after running check, which writes digests of external inputs."""
        self.run("python", "stages/check.py")
        return stages_run(self.run("dvc", "repro", "--dry", *targets))

    def json(self, name: str) -> dict:
        return json.loads((self.folder / name).read_text())


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


@pytest.fixture(scope="module")
def project(tmp_path_factory, warm):
    project = Project(tmp_path_factory.mktemp("project"), warm)
    project.first_output = project.run("dvc", "repro")
    project.commit()
    return project


@pytest.fixture(autouse=True)
def restore_workspace(request):
    """Restore params.yaml and metrics after each test; other outputs stay as the test left them."""
    yield
    if "project" in request.fixturenames:
        request.getfixturevalue("project").run("git", "checkout", "--", ".")


def test_repro_runs_all_stages_and_writes_all_outputs(project):
    assert stages_run(project.first_output) == list(STAGES)
    evaluation = project.json("metrics/evaluation.json")
    for split in ("dev", "test"):
        assert set(evaluation[split]) == {"sst", "qqp", "sts", "overall_mean", "overall_normalized"}
        assert "f1" in evaluation[split]["qqp"]
        assert set(evaluation[split]["sts"]) == {"pearson", "spearman", "rmse"}
    assert evaluation["selected_on"] == {"rows": "dev", "by": "overall_normalized"}
    timing = project.json("metrics/timing.json")
    assert {"download", "split", "finetune-base", "ensemble", "evaluate", "analyze"} <= set(timing)
    assert {"seconds", "peak_memory_mb", "rows_per_second"} <= set(timing["finetune-base"])
    assert project.json("metrics/mlm.json") == {"enabled": False}
    for name in ("sst", "para", "sts"):
        submission = project.folder / f"predictions/submission/{name}-test-output.csv"
        assert len(submission.read_text().splitlines()) == 31
    assert project.json("metrics/slices.json")["qqp"]["all"]["all rows"]["n"] == 40
    assert "order_swapped" in project.json("metrics/robustness.json")["qqp"]
    assert (project.folder / "models/README.md").exists()
    project.run("python", "-m", "bertrio.cli.main", "report")
    page = (project.folder / "report.html").read_text()
    assert "is not there" not in page.replace("metrics/challenges.json is not there", "")
    assert "float32" in page.split("By stage", 1)[1]


def test_second_repro_runs_only_check(project):
    assert stages_run(project.run("dvc", "repro")) == ["check"]


def test_invalid_param_stops_repro(project):
    project.write_params({"finetune": {"lrr": 1}})
    output = project.run("dvc", "repro", must_fail=True)
    assert "unknown param; did you mean finetune.lr?" in output and "Traceback" not in output


def test_scripts_produce_the_same_bytes_as_dvc(project, tmp_path):
    names = (
        "predictions/ensemble.parquet", "metrics/evaluation.json", "metrics/data.json", "metrics/robustness.json",
        "plots/history/base.csv", "plots/steps/base.csv", "plots/slices/sts.csv", "predictions/analysis/errors.json",
        "models/members/base/encoder/model.safetensors",
    )  # fmt: skip
    by_dvc = {name: (project.folder / name).read_bytes() for name in names}
    shutil.copy(project.folder / "params.yaml", tmp_path)
    copy_code(project.folder, tmp_path)
    for stage in STAGES:
        script, _, member = stage.partition("@")
        project.run("python", f"stages/{script}.py", *(["--member", member] if member else []), folder=tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == by_dvc


def test_copy_imports_its_own_code(project, tmp_path):
    """Scripts of a copy import its code, not that of an installed bertrio."""
    copy_code(project.folder, tmp_path)
    with open(tmp_path / "src/bertrio/core/stage.py", "a") as file:
        file.write('\nraise SystemExit("the code of the copy")\n')
    for script in sorted((tmp_path / "stages").glob("*.py")):
        output = project.run("python", str(script), "--member", "base", folder=tmp_path, must_fail=True)
        assert output.strip() == "the code of the copy", script.name


def test_experiment_in_a_copy_runs_only_stages_that_read_the_param(project):
    output = project.run("dvc", "exp", "run", "--temp", "-n", "slower", "-S", "finetune.lr=1e-6")
    assert stages_run(output) == ["check", "finetune@base", "ensemble", "evaluate", "analyze"]
    assert project.run("git", "status", "--porcelain").strip() == ""
    assert "1e-06" in project.run("dvc", "params", "diff", "HEAD", "slower")
    assert "dev.overall_normalized" in project.run("dvc", "metrics", "diff", "HEAD", "slower")


def test_new_combining_rule_does_not_retrain(project):
    project.write_params({"ensemble": {"combine": "mean"}})
    stages = project.changed_stages()
    assert "ensemble" in stages and "finetune@base" not in stages


def test_changed_challenge_file_does_not_retrain(project, tmp_path):
    hard = tmp_path / "hard.csv"
    hard.write_text("text,label\na good film,3\nnot a good film,1\n")
    project.write_params({"evaluate": {"challenges": {"hard": {"task": "sst", "path": str(hard)}}}})
    stages = stages_run(project.run("dvc", "repro"))
    assert "finetune@base" not in stages and "analyze" in stages
    assert project.json("metrics/challenges.json")["hard"]["n"] == 2
    with open(hard, "a") as file:
        file.write("a film,2\n")
    assert project.changed_stages() == ["check", "analyze"]


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
    assert project.changed_stages("finetune") == ["check", "finetune@second"]
    project.write_params(before)
    assert stages_run(project.run("dvc", "repro", "evaluate")) == ["check", "ensemble", "evaluate"]
    assert set(project.json("metrics/evaluation.json")["best_epoch"]) == {"base"}


def test_teacher_predicts_once_for_all_students(project, tmp_path):
    teacher, bare = tmp_path / "teacher", tmp_path / "bare.csv"
    shutil.copytree(project.folder / "models", teacher)
    bare.write_text("text\n" + "".join(f"a film of {number} plots\n" for number in range(30)))
    unlabelled = {"bare": {"task": "sst", "path": str(bare), "share": 0.2}}
    distill = {"weight": 1, "teacher": str(teacher)}
    project.write_params({"data": {"unlabelled": unlabelled}, "distill": distill})
    stages = stages_run(project.run("dvc", "repro", "finetune"))
    assert {"download", "split", "teach", "finetune@base"} <= set(stages)
    predicted = pd.read_parquet(project.folder / "data/teacher/sst.parquet")
    assert len(predicted) == 190 and predicted["label"].isna().sum() == 30
    assert project.json("metrics/data.json")["tasks"]["sst"]["train"]["rows"] == 160
    unlabelled["bare"]["share"] = 0.3
    distill |= {"weight": 2, "temperature": 4, "tasks": ["sst"]}
    project.write_params({"data": {"unlabelled": unlabelled}, "distill": distill})
    assert "teach" not in stages_run(project.run("dvc", "repro", "teach"))
    assert "finetune@base" in project.changed_stages("finetune")
    (teacher / "members/base/bertrio.json").write_text((teacher / "members/base/bertrio.json").read_text() + "\n")
    assert "teach" in project.changed_stages("finetune")


def test_external_inputs_are_tracked(project, tmp_path):
    rows, encoder = tmp_path / "rows.csv", tmp_path / "encoder"
    rows.write_text("text_a,text_b,label\na film,a play,1\n")
    save_bert(encoder)
    extra = {"qqp": {"train": str(rows)}}
    project.write_params({"data": {"extra_train": extra}, "encoder": {"name": str(encoder)}})
    project.run("dvc", "repro", "split", "pretrain_mlm")
    assert project.changed_stages("split", "pretrain_mlm") == ["check"]
    with open(rows, "a") as file:
        file.write("a film,the film,1\n")
    assert project.changed_stages("split", "pretrain_mlm") == ["check", "download"]
    project.run("dvc", "repro", "split")
    assert project.json("metrics/data.json")["tasks"]["qqp"]["train"]["rows"] == 162
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.2}))
    stages = project.changed_stages("pretrain_mlm")
    assert "download" not in stages and "pretrain_mlm" in stages
