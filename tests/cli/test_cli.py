import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from dvc.repo import Repo

from bertrio.cli.main import _parser, main
from bertrio.core.files import write_json

EVALUATION = {
    "dev": {"sst": {"accuracy": 0.5}, "overall_mean": 0.6},
    "intervals": {"dev": {"sst": {"accuracy": [0.4, 0.625]}, "overall_mean": [0.55, 0.65]}},
    "selected_on": {"rows": "dev", "by": "overall_normalized"},
    "overall_tasks": ["sst"],
}


def test_check_reports_success_or_the_error(root, tmp_path, monkeypatch, capsys):
    assert main(["check", "--params", str(root / "params.yaml")]) == 0
    assert "all local files" in capsys.readouterr().out  # hub ids are not looked up
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["ensemble"]["members"]["base"] = {"tracking": {"to": ["wandb"]}}
    monkeypatch.setattr("bertrio.core.errors.find_spec", lambda name: None if name == "wandb" else name)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    assert main(["check", "--params", str(tmp_path / "params.yaml")]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.startswith("error: ") and "tracking.to of member base: needs the package wandb" in printed
    assert "pip install 'bertrio[wandb]'" in printed


@pytest.mark.parametrize("content", ["[]", '{"selected_on": 3}', '{"selected_on": {}, "dev": {"sst": []}}'])
def test_malformed_metrics_file_is_an_error(tmp_path, capsys, content):
    (tmp_path / "e.json").write_text(content)
    assert main(["metrics", "--file", str(tmp_path / "e.json")]) == 2
    assert re.search("e.json: found (no selected_on|another shape)", capsys.readouterr().err)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("bertrio recipes >/dev/full", 2, "standard output: can't be written (No space left on device)"),
        ("bertrio recipes >&-", 2, "standard output: can't be written (Bad file descriptor)"),
        ("bertrio recipes | head -1; exit ${PIPESTATUS[0]}", 141, "Learning"),
        ("bertrio recipes show smart-concat --brief 2>&- <&-", 0, "smart-concat"),
        ("bertrio recipes none 2>/dev/full", 2, ""),
        ("PYTHONIOENCODING=ascii bertrio recipes", 0, "\\u03bb"),
    ],
)
def test_standard_streams_may_be_closed_full_or_not_utf8(root, shell, code, words):
    script = f'bertrio() {{ "{sys.executable}" -m bertrio.cli.main "$@"; }}; {shell}'
    environment = {"PATH": os.defpath, "PYTHONPATH": str(root / "src"), "PYTHONUTF8": "1"}
    result = subprocess.run(["bash", "-c", script], cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == code and words in result.stdout + result.stderr
    assert not re.search("Traceback|Exception ignored", result.stderr)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["metrics", "--help"]])
def test_help_imports_no_heavy_package(arguments):
    code = f"import sys; from bertrio.cli.main import main\ntry: main({arguments})\nexcept SystemExit: pass\n"
    code += "sys.exit(bool({'torch', 'transformers', 'dvc', 'pandas', 'pydantic', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("command", ["compare a b", "check", "metrics", "recipes list"])
def test_missing_extra_pipeline_error_says_what_to_install(monkeypatch, capsys, command):
    monkeypatch.setattr("bertrio.core.errors.find_spec", lambda name: None if name in ("dvc", "torchjd") else name)
    assert main(command.split()) == 2
    needed = "needs the package dvc, torchjd; install it with: pip install 'bertrio[pipeline]'"
    assert capsys.readouterr().err == f"error: {command.split()[0]}: {needed}\n"


def test_init_creates_a_complete_repository(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "bertrio", "init", "new"]
    assert subprocess.run(command, env={"PYTHONPATH": str(root / "src")}, capture_output=True).returncode == 0
    new = tmp_path / "new"
    assert (new / "params.yaml").read_bytes() == (root / "params.yaml").read_bytes()
    stages, new_stages = (yaml.safe_load((folder / "dvc.yaml").read_text())["stages"] for folder in (root, new))
    for name in stages:
        stage, new_stage = (listed[name].get("do", listed[name]) for listed in (stages, new_stages))
        deps = [path for path in stage.get("deps", []) if not path.startswith("src/")]
        assert set(new_stage.get("deps", [])) == {*deps, "requirements.txt"} if deps else name == "check"
        assert new_stage["cmd"] == stage["cmd"] and (new / stage["cmd"].split()[1]).exists()
    templates = re.findall(r"template: (templates/\S+?\.json)", (new / "dvc.yaml").read_text())
    assert templates and all((new / name).exists() for name in templates)
    monkeypatch.chdir(new)
    assert main(["check"]) == 0 and main(["recipes", "show", "smart-concat", "--brief"]) == 0
    assert main(["init", "."]) == 2
    assert "there is params.yaml, dvc.yaml, stages, recipes, templates, requirements.txt" in capsys.readouterr().err


def run_help(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    printed = capsys.readouterr()
    return stopped.value.code, printed.out + printed.err


def test_help_has_a_description_and_a_valid_example(capsys):
    commands = re.findall(r"(?m)^ {4}([a-z]+)(?= |$)", run_help(capsys, "--help")[1])
    actions = re.findall(r"(?m)^ {4}([a-z]+)(?= |$)", run_help(capsys, "recipes", "--help")[1])
    assert {"predict", "completion"} <= {*commands} and {"list", "show"} <= {*actions}
    for path in [[name] for name in commands] + [["recipes", name] for name in actions]:
        code, text = run_help(capsys, *path, "--help")
        example = text.split("example:\n  bertrio ")[1].split(">")[0].split()
        assert code == 0 and re.search(r"\n\n[A-Z][^\n]*.*\.\n\n", text) and example[: len(path)] == path
        assert _parser().parse_args(example).run is not None


@pytest.mark.parametrize("words", ["metrcs: metrics", "recipes shwo: show", "export --format onx: onnx"])
def test_unknown_command_or_choice_gets_a_suggestion(capsys, words):
    command, suggestion = words.split(": ")
    code, text = run_help(capsys, *command.split())
    assert code == 2 and f"did you mean {suggestion}?" in text


def test_shell_completion(capsys):
    assert main(["completion", "zsh"]) == 0 and "#compdef bertrio" in capsys.readouterr().out
    assert main(["completion", "bash"]) == 0
    words = 'COMP_WORDS=({}); COMP_CWORD={}; _shtab_bertrio; echo "${{COMPREPLY[@]}}"\n'
    script = capsys.readouterr().out + words.format("bertrio rec", 1) + words.format("bertrio recipes show --b", 3)
    completed = subprocess.run(["bash"], input=script, capture_output=True, text=True)
    assert completed.stdout.splitlines() == ["recipes", "--budget --brief"]


def test_commands_in_a_subfolder_find_the_repository(root, tmp_path, monkeypatch, capsys):
    write_json(tmp_path / "metrics/evaluation.json", EVALUATION)
    write_json(tmp_path / "a/b/metrics/evaluation.json", {**EVALUATION, "dev": {"sst": {"accuracy": 0.25}}})
    (tmp_path / "dvc.yaml").touch()
    for arguments, score in (([], "0.500 [0.400, 0.625]"), (["--file", "metrics/evaluation.json"], "0.250")):
        monkeypatch.chdir(tmp_path / "a/b")
        assert main(["metrics", "--all", *arguments]) == 0 and score in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "a")
    assert main(["check", "--params", "none.yaml"]) == 2
    assert "a/none.yaml: can't be read (No such file or directory); run this in the repo" in capsys.readouterr().err
    (tmp_path / "params.yaml").write_text((root / "params.yaml").read_text())
    assert main(["check"]) == 0


@pytest.mark.parametrize("path", ["folder", "file/page.html", "file", "file/inside"])
def test_unwritable_output_is_an_error(root, tmp_path, monkeypatch, capsys, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "params.yaml").write_text((root / "params.yaml").read_text())
    commands = {"file": "stepwise --candidates ema", "file/inside": "search finetune.lr=1e-5,1e-4"}
    assert main([*commands.get(path, "report").split(), "--out", path]) == 2
    printed = capsys.readouterr().err
    assert f"{path}: can't be written (" in printed and "name another place" in printed
    assert (tmp_path / "file").read_text() == "old"


def test_commands_that_need_commits_fail_without_git(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "recipes", tmp_path / "recipes", ignore=shutil.ignore_patterns("measured"))
    Repo.init(str(tmp_path), no_scm=True).close()
    search, stepwise = "search finetune.lr=1e-5,1e-4 --trials 1", "stepwise --candidates ema"
    commands = ["sweep finetune.lr", search, stepwise, "recipes collect", "recipes run smart-concat", "runs"]
    for command in (*commands, "report HEAD", "report --baseline HEAD", "compare HEAD workspace"):
        assert main(command.split()) == 2, command
        assert "is no git clone with dvc.yaml" in capsys.readouterr().err, command
