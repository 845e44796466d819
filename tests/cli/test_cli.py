import subprocess
import sys

import pytest
import yaml

from bertrio.cli.main import main
from bertrio.core.files import write_json


def test_metrics_prints_the_result(tmp_path, capsys):
    chosen = {"rows": "dev", "by": "overall_normalized"}
    limits = {"dev": {"sst": {"accuracy": [0.4, 0.625]}, "overall_mean": [0.55, 0.65]}}
    dev = {"sst": {"accuracy": 0.5}, "overall_mean": 0.6}
    write_json(tmp_path / "e.json", {"dev": dev, "intervals": limits, "selected_on": chosen, "overall_tasks": ["sst"]})
    assert main(["metrics", "--file", str(tmp_path / "e.json")]) == 0
    printed = capsys.readouterr().out
    assert "sst accuracy" in printed and "0.500 [0.400, 0.625]" in printed and "0.600 [0.550, 0.650]" in printed


def test_check_says_that_all_is_well_or_what_is_not(root, tmp_path, monkeypatch, capsys):
    assert main(["check", "--params", str(root / "params.yaml")]) == 0
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["ensemble"]["members"]["base"] = {"tracking": {"to": ["wandb"]}}
    monkeypatch.setattr("bertrio.training.monitoring.find_spec", lambda name: None)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    assert main(["check", "--params", str(tmp_path / "params.yaml")]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.startswith("error: ") and "tracking.to of member base: wandb is not installed" in printed


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["metrics", "--help"]])
def test_help_needs_nothing_heavy(arguments):
    code = f"import sys; from bertrio.cli.main import main\ntry: main({arguments})\nexcept SystemExit: pass\n"
    code += "sys.exit(bool({'torch', 'transformers', 'dvc', 'pandas', 'pydantic', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--out", "folder"],
        ["report", "--out", "file/page.html"],
        ["stepwise", "--candidates", "ema", "--out", "file"],
        ["search", "finetune.lr=1e-5,1e-4", "--out", "file/inside"],
    ],
    ids=" ".join,
)
def test_a_place_that_can_not_be_written_to_is_named(root, tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "params.yaml").write_text((root / "params.yaml").read_text())
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert f"{arguments[-1]}: can't be written (" in printed and "name another place" in printed
    assert (tmp_path / "file").read_text() == "kept"
