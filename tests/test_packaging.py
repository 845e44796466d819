"""Dependencies of pyproject.toml against the imports of the code, and the wheel."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from zipfile import ZipFile

import pytest

from bertrio.core.errors import PACKAGES, PIPELINE

TRANSITIVE = {"anyio", "dvc_data", "hydra", "markupsafe", "plotly", "pydantic_core", "starlette"}
NAMES = {"scikit_learn": "sklearn", "pyyaml": "yaml", "mlflow_skinny": "mlflow", "ruamel.yaml": "ruamel"}


def package_names(lines):
    return {NAMES.get(name, name) for name in (re.split(r">=|\[", line)[0].replace("-", "_") for line in lines)}


def test_imports_are_declared_dependencies(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    nodes = [node for path in (root / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - TRANSITIVE - {"bertrio"}
    extras = project["optional-dependencies"]
    small = package_names(project["dependencies"])
    assert imported <= small.union(*map(package_names, extras.values()))
    assert {*PACKAGES} <= small and {*PIPELINE} <= package_names(extras["pipeline"]) - small
    assert "dvc>=3.66" in extras["pipeline"] and project["requires-python"] == ">=3.11" and project["urls"]


def test_prediction_works_without_the_extra_pipeline(root):
    code = f"""import sys
sys.modules.update(dict.fromkeys({PIPELINE}))
import bertrio.inference.batch_predict, bertrio.inference.export.export, bertrio.inference.serve.app
from bertrio.cli.main import main
assert main(["completion", "bash"]) == 0
from bertrio import train"""
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": str(root / "src")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    message = f"train: needs the package {', '.join(PIPELINE)}; install it with: pip install 'bertrio[pipeline]'"
    assert result.stderr.strip().endswith(message) and "_shtab_bertrio" in result.stdout


def test_wheel_contains_the_pipeline_and_the_license(root, tmp_path):
    pytest.importorskip("hatchling", reason="hatchling, of the extra dev, builds the wheel")
    for name in ("src", "stages", "recipes", ".dvc/plots"):
        shutil.copytree(root / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "params.yaml", "dvc.yaml"):
        shutil.copy(root / name, tmp_path / "tree")
    before = sorted((tmp_path / "tree").rglob("*"))
    command = [sys.executable, "-B", "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "out"]
    subprocess.run(command, cwd=tmp_path / "tree", check=True, capture_output=True)
    assert sorted((tmp_path / "tree").rglob("*")) == before
    [path] = (tmp_path / "out").iterdir()
    names = ZipFile(path).namelist()
    project = {"params.yaml", "dvc.yaml", "stages/finetune.py", "recipes/budgets.yaml", "templates/points.json"}
    assert {f"bertrio/project/{name}" for name in project} | {"bertrio/py.typed"} <= {*names}
    assert any(name.endswith("/LICENSE") for name in names)
