"""What pyproject.toml declares, against what the code imports."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from zipfile import ZipFile

import pytest

from bertrio.core.errors import PACKAGES, PIPELINE

OF_OTHERS = {"anyio", "dvc_data", "hydra", "markupsafe", "plotly", "pydantic_core", "starlette"}
NAMES = {"scikit_learn": "sklearn", "pyyaml": "yaml", "mlflow_skinny": "mlflow"}


def names_of(lines):
    return {NAMES.get(name, name) for name in (re.split(r">=|\[", line)[0].replace("-", "_") for line in lines)}


def test_what_the_code_imports_is_declared_and_prediction_alone_is_small(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    nodes = [node for path in (root / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - OF_OTHERS - {"bertrio"}
    extras = project["optional-dependencies"]
    small = names_of(project["dependencies"])
    assert imported <= small.union(*map(names_of, extras.values()))
    assert {*PACKAGES} <= small and {*PIPELINE} <= names_of(extras["pipeline"]) - small
    assert "dvc>=3.66" in extras["pipeline"] and project["requires-python"] == ">=3.11" and project["urls"]


def test_without_the_pipelines_packages_all_but_training_works_and_train_says_what_it_lacks(root):
    code = f"""import sys
sys.modules.update(dict.fromkeys({PIPELINE}))
import bertrio.inference.batch_predict, bertrio.inference.export.export, bertrio.inference.serve.app
from bertrio.cli.main import main
assert main(["completion", "bash"]) == 0
from bertrio import train"""
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    said = f"train: needs the package {', '.join(PIPELINE)}; install it with: pip install 'bertrio[pipeline]'"
    assert done.stderr.strip().endswith(said) and "_shtab_bertrio" in done.stdout


def test_a_wheel_says_who_made_it_holds_the_pipeline_and_leaves_nothing_beside_the_sources(root, tmp_path):
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
    with ZipFile(path) as wheel:
        names = wheel.namelist()
        [metadata] = [message_from_bytes(wheel.read(name)) for name in names if name.endswith("/METADATA")]
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "The bertrio authors" and metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier") and metadata.get_all("Project-URL")
    project = {"params.yaml", "dvc.yaml", "stages/finetune.py", "recipes/budgets.yaml", "templates/points.json"}
    assert {f"bertrio/project/{name}" for name in project} | {"bertrio/py.typed"} <= {*names}
