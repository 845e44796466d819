"""Whether dvc.yaml lists, for every stage, the code that its results depend on. Else it keeps old results."""

import ast
from pathlib import Path

import pytest
import yaml
from dvc_render.vega import VegaRenderer

from bertrio.config import Params
from bertrio.training import finetune, mlm, prefinetune

# Shared by all stages, without effect on results: not listed in dvc.yaml.
NEUTRAL = {
    "core.console", "core.errors", "core.files", "core.interruption", "core.options", "core.stage",
    "core.streams", "config",
}  # fmt: skip
# Stopping and resuming training gives the same bytes, which other tests check.
NEUTRAL_IN_TRAINING = {"training.monitoring", "training.checkpoints"}
# Imported by stages that only predict, and not run there.
UNUSED_BY_PREDICTION = {
    "techniques", "core.distributed", "training.build", "training.objective", "training.optimizer", "inference",
}  # fmt: skip
ALLOWED = {
    "download": set(),
    "split": set(),
    # its batches are of blocks, not of rows, and it has no task, regularizer or surgery
    "pretrain_mlm": NEUTRAL_IN_TRAINING | {"core.tasks", "techniques"},
    "prefinetune": NEUTRAL_IN_TRAINING | {"techniques", "training.build", "evaluation.ensembling", "inference"},
    "teach": {"core.distributed", "techniques", "evaluation.metrics"},  # of which no function runs there
    "finetune": NEUTRAL_IN_TRAINING  # it reads what a teacher has predicted, and predicts nothing by it
    | {"evaluation.ensembling", "inference.predictor", "inference.trained_model"},
    "ensemble": NEUTRAL_IN_TRAINING | UNUSED_BY_PREDICTION,
    "evaluate": set(),
    "analyze": NEUTRAL_IN_TRAINING
    | UNUSED_BY_PREDICTION - {"inference"}
    | {"inference.predictor", "inference.teach", "data.sources"},
}


READS = {"finetune": finetune.READS, "prefinetune": prefinetune.READS, "pretrain_mlm": mlm.READS}
UNTRACKED = {  # params without effect on a stage's results, or that reach it through a file that it depends on
    # models/prefinetuned is of the revision; data/inputs/sampling.json has limits of rows
    "finetune": {"encoder.revision", "data.extra_train", "data.unlabelled"},
    # data/inputs/prefinetune.json has the one task
    "prefinetune": {"encoder.revision", "runtime.processes", "tasks", "data.extra_train"},
    "pretrain_mlm": {"runtime.processes"},
}


@pytest.fixture(scope="module")
def source() -> Path:
    return Path(__file__).resolve().parent.parent / "src" / "bertrio"


@pytest.fixture(scope="module")
def modules(source) -> dict[str, Path]:
    """The file of every module that has code, by its name without `bertrio.`."""
    paths = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    return {name: path for name, path in paths.items() if len(ast.parse(path.read_text()).body) > 1}


@pytest.fixture(scope="module")
def stages(source) -> dict[str, dict]:
    listed = yaml.safe_load((source.parents[1] / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in listed.items()}


def imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of bertrio that a file imports, wherever in it the import stands, or names in a text."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value.removeprefix("bertrio.")} & modules.keys() if "bertrio." in node.value else set()
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bertrio":
            package = node.module.removeprefix("bertrio").lstrip(".")
            for name in [package, *(f"{package}.{alias.name}".lstrip(".") for alias in node.names)]:
                names |= {name, f"{name}.__init__"} & modules.keys()
    return names


def reached(script: Path, modules: dict[str, Path]) -> set[str]:
    """All modules of bertrio that a script imports, itself or through others.

    What `config` imports does not count: it reads the options that components declare, and runs none of them.
    """
    names: set[str] = set()
    new = imported(script, modules)
    while new:
        names |= new
        new = set().union(*(imported(modules[name], modules) for name in new if not covered(name, {"config"}))) - names
    return names - {"__init__"}


def covered(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("stage", ALLOWED)
def test_a_stage_lists_the_code_that_it_runs_and_no_other(stage, stages, source, modules):
    deps = stages[stage]["deps"]
    listed = {at.removeprefix("src/bertrio/").removesuffix(".py").replace("/", ".") for at in deps if "bertrio/" in at}
    imports = reached(source.parents[1] / f"stages/{stage}.py", modules)
    missing = {name for name in imports if not covered(name, listed | NEUTRAL | ALLOWED[stage])}
    assert not missing, f"dvc.yaml: {stage} imports these, and does not list them"
    unused = {dep for dep in listed if not any(covered(name, {dep}) for name in imports)}
    assert not unused, f"dvc.yaml: {stage} lists these, and does not import them"


def names_of(reads: dict) -> set[str]:
    """Every param of the groups that a stage reads, as `group.name`; tasks have names of their own."""
    fields = {group: Params.model_fields[group].annotation for group in reads if group != "tasks"}
    named = {f"{group}.{name}" for group, kind in fields.items() for name in kind.model_fields if reads[group] is True}
    named |= {f"{group}.{name}" for group, names in reads.items() if names is not True for name in names}
    return named | ({"tasks"} & reads.keys())


@pytest.mark.parametrize("stage", READS)
def test_a_training_stage_tracks_every_param_that_it_reads(stage, stages):
    """What is not tracked is left as it was: a member would keep its model, and be filed under another param."""
    tracked = set(stages[stage]["params"])
    within = lambda one, other: f"{one}.".startswith(f"{other}.")  # noqa: E731
    seen = {name for name in names_of(READS[stage]) for param in tracked if within(name, param) or within(param, name)}
    assert names_of(READS[stage]) - seen == UNTRACKED[stage]
    assert stage != "finetune" or "ensemble.members.${key}" in tracked


def test_no_command_holds_a_param_which_a_shell_would_read(stages):
    assert {name: stage["cmd"] for name, stage in stages.items()} == {n: f"python stages/{n}.py" for n in stages}


def test_metrics_are_committed_and_nothing_that_a_stage_writes_outlives_its_next_run(stages):
    for name, stage in stages.items():
        outs = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])]
        assert not any("persist" in options for out in outs if isinstance(out, dict) for options in out.values()), name
        assert all(options["cache"] is False for metric in stage.get("metrics", []) for options in metric.values())


def test_plots_have_titles_in_words_and_curves_have_points(source, stages):
    """A run of one epoch has one point, which a line alone does not show."""
    root = source.parents[1]
    listed = yaml.safe_load((root / "dvc.yaml").read_text())["plots"]
    listed += [plot for stage in stages.values() for plot in stage.get("plots", [])]
    described = {name: options for plot in listed if isinstance(plot, dict) for name, options in plot.items()}
    for name, options in described.items():
        rows = [{options["x"]: 1, options["y"]: 1, "rev": "a"}]
        properties = {**options, "title": name, "template_dir": str(root / ".dvc/plots")}
        content = VegaRenderer(rows, name, **properties).get_filled_template()
        title = content["title"]["text"]["expr"]
        assert " " in title.split("'")[1] and name in title, "words, then which task or member it is of"
        assert options["template"] != "points" or content["mark"]["point"], name
        assert options["template"] != "slices" or content["facet"]["column"]["field"] == "metric"
    assert len(described) == 9


def test_every_stage_is_looked_at(stages):
    assert set(ALLOWED) == set(stages) - {"check"}  # which runs every time


def test_the_slurm_script_makes_all_that_finetune_reads(source, stages):
    lines = (source.parents[1] / "docs/slurm/nodes.sh").read_text().splitlines()
    made, taken = (
        next(line for line in lines if words in line).split() for words in ("dvc repro p", "dvc checkout --force")
    )
    makers = {
        name
        for name, stage in stages.items()
        if any(out in stages["finetune"]["deps"] for out in stage.get("outs", ()))
    }
    assert {"prefinetune", "teach"} <= makers and "teach" in made
    assert makers <= {word.strip("'") for word in taken}
