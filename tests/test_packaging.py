"""What pyproject.toml declares, against what the code imports."""

import ast
import re
import subprocess
import sys
import tomllib

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
