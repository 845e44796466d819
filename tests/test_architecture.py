"""Layers of packages, from the lowest up: imports run downward only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LAYERS = [  # a module may import from lower layers, and from its own package
    {"core", "core.errors"},
    {"core.files", "core.streams", "core.tasks", "core.interruption", "core.gender"},
    {"core.console"},
    {"core.distributed", "core.options"},
    {"techniques", "model.heads", "model.lora", "model.pooling", "model.names", "core.runtime", "core.stage"},
    {"config"},  # params are put together from the options that components declare
    {"model", "evaluation"},
    {"data"},
    {"inference.trained_model"},
    {"inference.predictor"},
    {"inference.teach"},
    {"training", "inference.export"},
    {"analysis", "inference"},
    {"experiments", "inference.mining"},
    {"pipeline"},
    {"cli"},
]
METHOD_PACKAGES = {"techniques", "model.heads", "model.lora", "model.pooling"}  # take plain values, never params
LIGHT = {  # start without torch
    "cli.main", "core.tasks", "data.table", "evaluation.evaluate", "evaluation.ensembling",
    "experiments.compare", "experiments.recipes.show", "experiments.report", "experiments.runs",
}  # fmt: skip


def modules(root: Path) -> dict[str, set[str]]:
    """Return the modules of bertrio that each one imports, anywhere in its file."""
    source = root / "src" / "bertrio"
    graph = {}
    for path in source.rglob("*.py"):
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        if name in ("__init__", "__main__", ""):
            continue
        imports = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertrio."):
                imports.add(node.module.removeprefix("bertrio."))
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{name}: relative import"
        graph[name] = imports
    return graph


def layer(module: str) -> tuple[int, str]:
    """Return number and name of the longest matching entry of LAYERS."""
    entries = [(number, package) for number, packages in enumerate(LAYERS) for package in packages]
    return max((entry for entry in entries if f"{module}.".startswith(f"{entry[1]}.")), key=lambda entry: len(entry[1]))


def test_imports_run_downward_only(root):
    for module, imports in modules(root).items():
        upper, package = layer(module)  # every module has one
        for imported in imports:
            lower, other = layer(imported)
            assert lower < upper or package == other, f"{module} imports {imported}"


def test_method_packages_import_neither_params_nor_each_other(root):
    for module, imports in modules(root).items():
        if layer(module)[1] in METHOD_PACKAGES:
            same_package = {name for name in imports if layer(name)[1] == layer(module)[1]}
            assert imports - same_package <= {"core.errors", "core.tasks", "core.options"}, module


@pytest.mark.parametrize("module", sorted(LIGHT))
def test_light_modules_do_not_import_torch(root, module):
    code = f"import sys; sys.path.insert(0, 'src'); import bertrio.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_stages_hold_no_logic(root):
    for path in (root / "stages").glob("*.py"):
        tree = ast.parse(path.read_text())
        kinds = [type(node).__name__ for node in ast.walk(tree)]
        assert not {"For", "While", "Try", "ClassDef", "ListComp"} & set(kinds), path.name
        assert len(path.read_text().splitlines()) < 50, path.name
