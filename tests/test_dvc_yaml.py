"""dvc.yaml lists the code and params that each stage depends on; otherwise DVC keeps stale results."""

import ast
from pathlib import Path

import pytest
import yaml
from dvc_render.vega import VegaRenderer

from bertrio.config import Params
from bertrio.training import finetune, mlm, prefinetune

# Imported by all stages without effect on results: not listed in dvc.yaml.
NEUTRAL = {
    "core.console", "core.errors", "core.files", "core.interruption", "core.options", "core.stage",
    "core.streams", "config",
}  # fmt: skip
# A resumed run produces the same bytes, which other tests check.
NEUTRAL_IN_TRAINING = {"training.monitoring", "training.checkpoints"}
# Imported, but not run, by stages that only predict.
UNUSED_BY_PREDICTION = {
    "techniques", "core.distributed", "training.build", "training.objective", "training.optimizer", "inference",
}  # fmt: skip
ALLOWED = {
    "download": set(),
    "split": set(),
    # it trains on blocks of text, without tasks, regularizers or surgery
    "pretrain_mlm": NEUTRAL_IN_TRAINING | {"core.tasks", "techniques"},
    "prefinetune": NEUTRAL_IN_TRAINING | {"techniques", "training.build", "evaluation.ensembling", "inference"},
    "teach": {"core.distributed", "techniques", "evaluation.metrics"},  # imported, not run
    "finetune": NEUTRAL_IN_TRAINING  # it reads teacher predictions, and runs no predictor
    | {"evaluation.ensembling", "inference.predictor", "inference.trained_model"},
    "ensemble": NEUTRAL_IN_TRAINING | UNUSED_BY_PREDICTION,
    "evaluate": set(),
    "analyze": NEUTRAL_IN_TRAINING
    | UNUSED_BY_PREDICTION - {"inference"}
    | {"inference.predictor", "inference.teach", "data.sources"},
}


TRAINING = {"finetune": finetune, "prefinetune": prefinetune, "pretrain_mlm": mlm}
UNTRACKED = {  # params without effect on results, or tracked through a dependency
    # models/prefinetuned depends on the revision; data/inputs/sampling.json has the limits of rows
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
    """Map the name of each module with code, without `bertrio.`, to its file."""
    paths = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    return {name: path for name, path in paths.items() if len(ast.parse(path.read_text()).body) > 1}


@pytest.fixture(scope="module")
def stages(source) -> dict[str, dict]:
    listed = yaml.safe_load((source.parents[1] / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in listed.items()}


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules of bertrio that a file imports anywhere, or names in a string."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value.removeprefix("bertrio.")} & modules.keys() if "bertrio." in node.value else set()
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bertrio":
            package = node.module.removeprefix("bertrio").lstrip(".")
            for name in [package, *(f"{package}.{alias.name}".lstrip(".") for alias in node.names)]:
                names |= {name, f"{name}.__init__"} & modules.keys()
    return names


def reachable(script: Path, modules: dict[str, Path]) -> set[str]:
    """Return all modules of bertrio that a script imports, directly or not.

    Imports of `config` do not count: it reads the options of components without running them.
    """
    names: set[str] = set()
    new = imports_of(script, modules)
    while new:
        names |= new
        followed = [modules[name] for name in new if not covered(name, {"config"})]
        new = set().union(*(imports_of(path, modules) for path in followed)) - names
    return names - {"__init__"}


def covered(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("stage", ALLOWED)
def test_deps_are_the_code_that_a_stage_runs(stage, stages, source, modules):
    deps = stages[stage]["deps"]
    listed = {at.removeprefix("src/bertrio/").removesuffix(".py").replace("/", ".") for at in deps if "bertrio/" in at}
    imports = reachable(source.parents[1] / f"stages/{stage}.py", modules)
    missing = {name for name in imports if not covered(name, listed | NEUTRAL | ALLOWED[stage])}
    assert not missing, f"dvc.yaml: {stage} imports these, and does not list them"
    unused = {dep for dep in listed if not any(covered(name, {dep}) for name in imports)}
    assert not unused, f"dvc.yaml: {stage} lists these, and does not import them"


def read_params(reads: dict) -> set[str]:
    """Return every param that a stage reads as `group.name`, and `tasks` as a whole."""
    fields = {group: Params.model_fields[group].annotation for group in reads if group != "tasks"}
    named = {f"{group}.{name}" for group, kind in fields.items() for name in kind.model_fields if reads[group] is True}
    named |= {f"{group}.{name}" for group, names in reads.items() if names is not True for name in names}
    return named | ({"tasks"} & reads.keys())


@pytest.mark.parametrize("stage", TRAINING)
def test_training_stage_tracks_every_param_that_it_reads(stage, stages):
    """DVC would keep the model of a member when an untracked param changes."""
    tracked, read = set(stages[stage]["params"]), read_params(TRAINING[stage].STAGE_PARAMS)
    within = lambda one, other: f"{one}.".startswith(f"{other}.")  # noqa: E731
    seen = {name for name in read for param in tracked if within(name, param) or within(param, name)}
    assert read - seen == UNTRACKED[stage]
    assert stage != "finetune" or "ensemble.members.${key}" in tracked


def test_commands_contain_no_params(stages):
    assert {name: stage["cmd"] for name, stage in stages.items()} == {n: f"python stages/{n}.py" for n in stages}


def test_no_metric_is_cached_no_output_persists_and_training_is_reused(stages):
    for name, stage in stages.items():
        outs = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])]
        assert not any("persist" in options for out in outs if isinstance(out, dict) for options in out.values()), name
        assert all(options["cache"] is False for metric in stage.get("metrics", []) for options in metric.values())
        assert name not in TRAINING or all(isinstance(out, str) for out in stage["outs"]), "no run cache"


def test_plots_have_titles_in_words_and_curves_have_points(source, stages):
    """A line chart does not show the single point of a run of one epoch."""
    root = source.parents[1]
    listed = yaml.safe_load((root / "dvc.yaml").read_text())["plots"]
    listed += [plot for stage in stages.values() for plot in stage.get("plots", [])]
    described = {name: options for plot in listed if isinstance(plot, dict) for name, options in plot.items()}
    for name, options in described.items():
        rows = [{options["x"]: 1, options["y"]: 1, "rev": "a"}]
        properties = {**options, "title": name, "template_dir": str(root / ".dvc/plots")}
        content = VegaRenderer(rows, name, **properties).get_filled_template()
        title = content["title"]["text"]["expr"]
        assert " " in title.split("'")[1] and name in title, "expected words, and the name of the task or member"
        assert options["template"] != "points" or content["mark"]["point"], name
        assert options["template"] != "slices" or content["facet"]["column"]["field"] == "metric"
    assert len(described) == 9


def test_every_stage_is_tested(stages):
    assert set(ALLOWED) == set(stages) - {"check"}  # check runs every time


def test_slurm_script_makes_all_inputs_of_finetune(source, stages):
    lines = (source.parents[1] / "docs/slurm/nodes.sh").read_text().splitlines()
    repro, checkout = (next(line for line in lines if words in line) for words in ("dvc repro p", "dvc checkout -"))
    deps = set(stages["finetune"]["deps"])
    needed = {name for name, stage in stages.items() if deps.intersection(map(str, stage.get("outs", ())))}
    assert {"prefinetune", "teach"} <= needed and "teach" in repro.split()
    assert needed <= {word.strip("'") for word in checkout.split()}
