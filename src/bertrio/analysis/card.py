"""Model card: the saved models, their training data, their metrics and their limits.

The template card.md has the layout of model cards on the Hugging Face hub (Mitchell et al. 2019, "Model Cards for Model
Reporting"): YAML front matter with the known fields, then Markdown. Unknown facts are marked "unknown".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertrio.analysis import figures
from bertrio.config import Params
from bertrio.config.reading import flatten, yaml_text
from bertrio.core.files import write_text
from bertrio.core.tasks import Task
from bertrio.evaluation.evaluate import read_result
from bertrio.evaluation.metrics import LOWER_IS_BETTER
from bertrio.techniques.regularizers import REGULARIZERS


def write_card(
    params: Params, tasks: Mapping[str, Task], metrics: str | Path = "metrics", path: str | Path = "models/README.md"
) -> None:
    """Write the model card of a finished run.

    Args:
        params: the base params.
        tasks: all tasks, by name.
        metrics: folder with data.json and evaluation.json; calibration.json, slices.json, robustness.json and
            challenges.json are optional. The card has no timings, so the same run gives the same card.
        path: path of the card.

    Raises:
        UserError: if data.json or evaluation.json is missing, or a file is damaged.
    """
    from markupsafe import Markup

    data, evaluation = (read_result(Path(metrics) / f"{name}.json") for name in ("data", "evaluation"))
    optional = {name: Path(metrics) / f"{name}.json" for name in ("slices", "calibration", "robustness", "challenges")}
    environment = figures.environment(
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escaped(value))
    )
    environment.filters["format_cell"] = lambda value: (
        Markup(str(value)) if isinstance(value, figures.Figure) else figures.format_cell(value)
    )
    sources, extra = {name: params.source_of(name) for name in tasks}, data.get("extra_train", {})
    methods = [name for name in REGULARIZERS if getattr(params, name).weight]
    surgery = params.surgery.method
    text = environment.get_template("card.md").render(
        {name: read_result(path) if path.exists() else {} for name, path in optional.items()},
        front=Markup(_front_matter(params, tasks, data, evaluation)),
        params=params,
        members=list(params.ensemble.members),
        changes={name: flatten(block) for name, block in params.ensemble.members.items() if block},
        tasks=tasks,
        base_model=_base_model(params),
        local_name=Path(params.encoder.name).name,
        data=data,
        sources=sources,
        extra=extra,
        unlicensed=[name for name, source in sources.items() if source != "sample" or name in extra],
        overlaps=[
            (name, split, facts)
            for name in tasks
            for split, facts in data["tasks"].get(name, {}).items()
            if facts.get("rows_sharing_a_sentence_with_train")
        ],
        methods=methods if surgery == "none" else [*methods, f"surgery {surgery}"],
        evaluation=evaluation,
        figures=figures,
        lower_is_better=LOWER_IS_BETTER,
    )
    write_text(path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def escaped(text: object) -> str:
    """Return a text as one line of Markdown that renders literally: without markup, links, HTML or table cells."""
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]!|~$^])", r"\\\1", line)
    line = re.sub(r"(?i)\b(https?|ftp|mailto):", r"\1&#58;", line)  # renderers turn bare addresses into links
    return re.sub(r"(?i)\bwww\.", "www&#46;", line).replace("@", "&#64;")


def _front_matter(params: Params, tasks: Mapping[str, Task], data: Mapping[str, Any], evaluation: Any) -> str:
    """Return the YAML front matter with the known fields only."""
    sources = {name: params.source_of(name) for name in tasks}
    hub = [data["origin"][name]["id"] for name, source in sources.items() if source == "hub"]
    made_here = {*sources.values(), params.encoder.name} == {"sample", "tiny"} and not data.get("extra_train")
    known = {
        "license": "apache-2.0" if made_here and not params.mlm.enabled else "unknown",
        "language": "en" if {*sources.values()} <= {"sample", "cs224n"} else None,
        "library_name": "bertrio",
        "tags": ["bert", "multi-task-learning", *dict.fromkeys(map(_hub_task, tasks.values()))],
        "base_model": _base_model(params),
        "datasets": list(dict.fromkeys(hub)) or None,
        "metrics": list(dict.fromkeys(task.target.metrics[0] for task in tasks.values())),
        "model-index": [{"name": "bertrio", "results": _model_index(params, tasks, data, evaluation)}],
    }
    text = yaml_text({key: value for key, value in known.items() if value})
    return f"---\n{text}---"


def _hub_task(task: Task) -> str:
    """Return the hub's name for the type of a task."""
    return "text-classification" if task.target.discrete or task.kind == "single" else "sentence-similarity"


def _base_model(params: Params) -> str | None:
    """Return the encoder's id on the hub; None for `tiny` and for local folders."""
    name = params.encoder.name
    is_id = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and name != "tiny" and not name.startswith(".")
    return name if is_id and not Path(name).expanduser().is_dir() else None


def _model_index(params: Params, tasks: Mapping[str, Task], data: Any, evaluation: Any) -> list[dict[str, Any]]:
    results = []
    for split in figures.evaluated_splits(evaluation):
        for name, task in tasks.items():
            source = params.source_of(name)
            origin = data["origin"].get(name, {}) if source == "hub" else {}
            dataset = {"name": f"{name} ({source})", "type": origin.get("id", f"{source}-{name}"), "split": split}
            pairs = (("config", "config"), ("revision", "commit"))
            dataset |= {key: origin[field] for key, field in pairs if field in origin}
            values = evaluation[split].get(name, {})
            entries = [{"type": metric, "value": value, "name": metric} for metric, value in values.items()]
            if entries:
                task_type = {"type": _hub_task(task), "name": name}
                results.append({"task": task_type, "dataset": dataset, "metrics": entries})
    return results
