"""Who may import whom: the rooms of the house, from the ground up. Imports run downward only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FLOORS = [  # a module may import from lower floors, and from its own room
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
METHOD_ROOMS = {"techniques", "model.heads", "model.lora", "model.pooling"}  # they get plain values, never params
LIGHT = {"cli.main", "core.tasks", "data.table", "evaluation.evaluate", "evaluation.ensembling"}  # import no torch


def modules(root: Path) -> dict[str, set[str]]:
    """Every module of bertrio and what it imports from bertrio, wherever in the file the import stands."""
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


def floor(module: str) -> tuple[int, str]:
    """The floor and the room of a module; a room named with a dot is more specific than its parent."""
    rooms = [(number, room) for number, rooms in enumerate(FLOORS) for room in rooms]
    return max((at for at in rooms if module == at[1] or module.startswith(at[1] + ".")), key=lambda at: len(at[1]))


def test_imports_run_downward_only(root):
    for module, imports in modules(root).items():
        upper, room = floor(module)  # every module has one
        for imported in imports:
            lower, other = floor(imported)
            assert lower < upper or room == other, f"{module} imports {imported}"


def test_method_rooms_know_neither_params_nor_each_other(root):
    for module, imports in modules(root).items():
        if floor(module)[1] in METHOD_ROOMS:
            same_room = {name for name in imports if floor(name)[1] == floor(module)[1]}
            assert imports - same_room <= {"core.errors", "core.tasks", "core.options"}, module


@pytest.mark.parametrize("module", sorted(LIGHT))
def test_what_must_start_fast_imports_no_torch(root, module):
    code = f"import sys; sys.path.insert(0, 'src'); import bertrio.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_stages_hold_no_logic(root):
    for path in (root / "stages").glob("*.py"):
        tree = ast.parse(path.read_text())
        kinds = [type(node).__name__ for node in ast.walk(tree)]
        assert not {"For", "While", "Try", "ClassDef", "ListComp"} & set(kinds), path.name
        assert len(path.read_text().splitlines()) < 50, path.name
