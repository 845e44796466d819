"""Whether dvc.yaml lists, for every stage, the code that its results depend on. Else it keeps old results."""

import ast
from pathlib import Path

import pytest
import yaml

from bertrio.config import Params
from bertrio.config.loading import MEMBER_GROUPS
from bertrio.training import mlm, prefinetune

# Shared by all stages, without a say in results: dvc.yaml lists none of it.
NO_SAY = {
    "core.console",
    "core.errors",
    "core.files",
    "core.interruption",
    "config",
    "core.options",
    "core.stage",
}
# What stops training and lets it go on: to the same bytes, which other tests hold.
NO_SAY_IN_TRAINING = {
    "training.callbacks", "training.checkpoints",
}  # fmt: skip
# Of training, what those stages import and do not run that only predict.
UNUSED_BY_PREDICTION = {
    "techniques", "core.distributed", "techniques.losses", "techniques.regularizers",
    "techniques.schedules", "training.build",
    "training.objective", "training.optimizer", "inference.predictor",
    "inference.trained_model",
}  # fmt: skip
ALLOWED = {
    "download": set(),
    "split": set(),
    # its batches are of blocks, not of rows, and it has no task, regularizer or surgery
    "pretrain_mlm": NO_SAY_IN_TRAINING
    | {"data.tokens", "core.tasks", "techniques", "techniques.regularizers", "techniques.gradients"}
    | {"techniques.weighting", "techniques.losses"},
    "prefinetune": NO_SAY_IN_TRAINING
    | {"techniques", "techniques.gradients", "techniques.regularizers", "techniques.schedules", "training.build"}
    | {"evaluation.ensembling", "inference.predictor", "inference.trained_model"},
    "finetune": NO_SAY_IN_TRAINING,
    "ensemble": NO_SAY_IN_TRAINING | UNUSED_BY_PREDICTION,
    "evaluate": set(),
    "analyze": NO_SAY_IN_TRAINING | UNUSED_BY_PREDICTION | {"data.sources"},
}


READS = {"finetune": dict.fromkeys(MEMBER_GROUPS, True), "prefinetune": prefinetune.READS, "pretrain_mlm": mlm.READS}
TOLD_OTHERWISE = {  # params that have no say in a stage's results, or come to it in a file that it depends on
    "finetune": {"encoder.revision"},  # models/prefinetuned is of it
    "prefinetune": {"encoder.revision", "runtime.processes", "tasks"},  # data/inputs/prefinetune.json has the one task
    "pretrain_mlm": {"runtime.processes"},
}


@pytest.fixture(scope="module")
def source() -> Path:
    return Path(__file__).resolve().parent.parent / "src" / "bertrio"


@pytest.fixture(scope="module")
def modules(source) -> dict[str, Path]:
    """The file of every module that has code, by its name without `bertrio.`."""
    found = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    return {name: path for name, path in found.items() if len(ast.parse(path.read_text()).body) > 1}


@pytest.fixture(scope="module")
def stages(source) -> dict[str, dict]:
    found = yaml.safe_load((source.parents[1] / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in found.items()}


def imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of bertrio that a file imports, wherever in it the import stands, or names in a text."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.removeprefix("bertrio.")} & modules.keys() if "bertrio." in node.value else set()
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bertrio":
            package = node.module.removeprefix("bertrio").lstrip(".")
            for name in [package, *(f"{package}.{alias.name}".lstrip(".") for alias in node.names)]:
                found |= {name, f"{name}.__init__"} & modules.keys()
    return found


def reached(script: Path, modules: dict[str, Path]) -> set[str]:
    """All modules of bertrio that a script imports, itself or through others.

    What `config` imports does not count: it reads the options that components declare, and runs none of them.
    """
    found: set[str] = set()
    new = imported(script, modules)
    while new:
        found |= new
        new = set().union(*(imported(modules[name], modules) for name in new if not covered(name, {"config"}))) - found
    return found - {"__init__"}


def covered(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("stage", ALLOWED)
def test_a_stage_lists_the_code_that_it_runs_and_no_other(stage, stages, source, modules):
    deps = stages[stage]["deps"]
    own = {dep.removeprefix("src/bertrio/").removesuffix(".py").replace("/", ".") for dep in deps if "bertrio/" in dep}
    imports = reached(source.parents[1] / f"stages/{stage}.py", modules)
    missing = {name for name in imports if not covered(name, own | NO_SAY | ALLOWED[stage])}
    assert not missing, f"dvc.yaml: {stage} imports these, and does not list them"
    unused = {dep for dep in own if not any(covered(name, {dep}) for name in imports)}
    assert not unused, f"dvc.yaml: {stage} lists these, and does not import them"


def names_of(reads: dict) -> set[str]:
    """Every param of the groups that a stage reads, as `group.name`; tasks have names of their own."""
    fields = {group: Params.model_fields[group].annotation for group in reads if group != "tasks"}
    named = {f"{group}.{name}" for group, of in fields.items() for name in of.model_fields if reads[group] is True}
    named |= {f"{group}.{name}" for group, of in reads.items() if of is not True for name in of}
    return named | ({"tasks"} & reads.keys())


@pytest.mark.parametrize("stage", READS)
def test_a_training_stage_tracks_every_param_that_it_reads(stage, stages):
    """What is not tracked is left as it was: a member would keep its model, and be filed under another param."""
    tracked = set(stages[stage]["params"])
    untracked = {
        name
        for name in names_of(READS[stage])
        if not any(name == own or name.startswith(f"{own}.") or own.startswith(f"{name}.") for own in tracked)
    }
    assert untracked == TOLD_OTHERWISE[stage]
    assert stage != "finetune" or "ensemble.members.${key}" in tracked


def test_metrics_are_committed_and_nothing_that_a_stage_writes_outlives_its_next_run(stages):
    for name, stage in stages.items():
        outs = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])]
        assert not any("persist" in options for out in outs if isinstance(out, dict) for options in out.values()), name
        assert all(options["cache"] is False for metric in stage.get("metrics", []) for options in metric.values())


def test_every_stage_is_looked_at(stages):
    assert set(ALLOWED) == set(stages) - {"check"}  # which runs every time
