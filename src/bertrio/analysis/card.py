"""The model card: what the saved models are, what they were trained on, how good they are, and where they fail.

The layout, in card.md, is that of model cards on the Hugging Face hub (Mitchell et al. 2019, "Model Cards for Model
Reporting"): YAML front matter with the fields that are known, then Markdown. What is not known is said to be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from bertrio.analysis import figures
from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_text
from bertrio.core.tasks import Task
from bertrio.evaluation.evaluate import how_chosen
from bertrio.techniques.regularizers import REGULARIZERS

if TYPE_CHECKING:
    from bertrio.config import Params

UNKNOWN = "unknown"
ORIGINS = {  # the course's files, as their handout names them; licences are for whoever publishes to look up
    "sst": "Stanford Sentiment Treebank (Socher et al. 2013)",
    "qqp": "Quora Question Pairs",
    "sts": "STS benchmark (Cer et al. 2017)",
    "cfimdb": "CFIMDB, film reviews",
}


def write_card(
    params: Params, tasks: Mapping[str, Task], metrics: str | Path = "metrics", path: str | Path = "models/README.md"
) -> None:
    """Write the card of the models of a finished run.

    Args:
        params: the base params.
        tasks: all tasks, by name.
        metrics: a folder with data.json and evaluation.json, and what there is of calibration, slices, robustness
            and challenges.json. Costs are no part of the card, so that the same run has the same one.
        path: the Markdown file.

    Raises:
        UserError: if data.json or evaluation.json is missing, or a file is damaged.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    data, evaluation = (_read(Path(metrics) / f"{name}.json") for name in ("data", "evaluation"))
    optional = ("slices", "calibration", "robustness", "challenges")
    paths = {name: Path(metrics) / f"{name}.json" for name in optional}
    slices, calibration, robustness, challenges = (_read(paths[n]) if paths[n].exists() else {} for n in optional)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escaped(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["shown"] = lambda value: (
        Markup(str(value)) if isinstance(value, figures.Figure) else figures.shown(value)
    )
    members, rows = params.ensemble.members, _data_rows(params, tasks, data)
    text = environment.get_template("card.md").render(
        front=Markup(_front_matter(params, tasks, data, evaluation)),
        names=_several(list(tasks)),
        encoder=_encoder(params),
        ensemble=f"An ensemble of {len(members)} members ({', '.join(members)}), combined by {params.ensemble.combine}."
        if len(members) > 1
        else "One model.",
        tasks=_task_rows(params, tasks),
        sources=", ".join(dict.fromkeys(params.source_of(name) for name in tasks)),
        licences=_licences(params, rows),
        data=rows,
        corpora=", ".join(
            f"{name} ({facts.get('rows', UNKNOWN):,} texts, licence {UNKNOWN})"
            for name, facts in data.get("corpora", {}).items()
        ),
        overlaps=_overlaps(tasks, data),
        training=_training(params, evaluation),
        metrics=figures.metrics(evaluation),
        slices=figures.slices(slices, evaluation) if slices else None,
        calibration=figures.records(calibration, "task") if calibration else None,
        robustness=figures.robustness(robustness) if robustness else None,
        challenges=figures.challenges(challenges) if challenges else None,
        asked={
            "robustness": figures.model_caption(figures.asked_models(robustness, {}), list(members)),
            "challenges": figures.model_caption(figures.asked_models({}, challenges), list(members)),
        },
        limits=_limits(params, tasks, evaluation, slices),
    )
    write_text(path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def escaped(text: object) -> str:
    """A text as Markdown that shows it as it is: on one line, without markup, links, HTML or table cells of its own."""
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]!|~$^])", r"\\\1", line)
    line = re.sub(r"(?i)\b(https?|ftp|mailto):", r"\1&#58;", line)  # bare addresses become links by themselves
    return re.sub(r"(?i)\bwww\.", "www&#46;", line).replace("@", "&#64;")


def _front_matter(params: Params, tasks: Mapping[str, Task], data: Mapping[str, Any], evaluation: Any) -> str:
    """Only what is known: a field that is absent says as much as one that is wrong, and does less harm."""
    sources = {name: params.source_of(name) for name in tasks}
    hub = [data["origin"][name]["id"] for name, source in sources.items() if source == "hub"]
    known = {
        "language": "en" if {*sources.values()} <= {"sample", "cs224n"} else None,
        "library_name": "bertrio",
        "tags": ["bert", "multi-task-learning", *dict.fromkeys(map(_hub_task, tasks.values()))],
        "base_model": _base_model(params),
        "datasets": list(dict.fromkeys(hub)) or None,
        "metrics": list(dict.fromkeys(task.target.metrics[0] for task in tasks.values())),
        "model-index": [{"name": "bertrio", "results": _model_index(params, tasks, data, evaluation)}],
    }
    text = yaml.safe_dump({key: value for key, value in known.items() if value}, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---"


def _hub_task(task: Task) -> str:
    """The hub's word for what a task is."""
    return "text-classification" if task.target.discrete or task.kind == "single" else "sentence-similarity"


def _base_model(params: Params) -> str | None:
    """The encoder's id on the hub, if it is one: `tiny` is made here, and a local folder has no id."""
    name = params.encoder.name
    is_id = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and name != "tiny" and not name.startswith(".")
    return name if is_id and not Path(name).expanduser().is_dir() else None


def _model_index(params: Params, tasks: Mapping[str, Task], data: Any, evaluation: Any) -> list[dict[str, Any]]:
    results = []
    for split in figures.splits_of(evaluation):
        for name, task in tasks.items():
            source = params.source_of(name)
            origin = data["origin"].get(name, {}) if source == "hub" else {}
            dataset = {"name": f"{name} ({source})", "type": origin.get("id", f"{source}-{name}"), "split": split}
            pairs = (("config", "config"), ("revision", "commit"))
            dataset |= {key: origin[field] for key, field in pairs if field in origin}
            values = evaluation[split].get(name, {})
            listed = [{"type": metric, "value": value, "name": metric} for metric, value in values.items()]
            if listed:
                task_type = {"type": _hub_task(task), "name": name}
                results.append({"task": task_type, "dataset": dataset, "metrics": listed})
    return results


def _encoder(params: Params) -> str:
    encoder, base = params.encoder, _base_model(params)
    if encoder.name == "tiny":
        return f"a BERT of {encoder.tiny.layers} layers of width {encoder.tiny.hidden_size}, from random weights"
    if base is None:
        return f"{Path(encoder.name).name}, from a local folder"
    return f"{base}{f', revision {encoder.revision}' if encoder.revision else ''}, from the Hugging Face hub"


def _task_rows(params: Params, tasks: Mapping[str, Task]) -> pd.DataFrame:
    rows = []
    for name, task in tasks.items():
        block, target = params.tasks[name], task.target
        labels = f": {', '.join(target.labels)}" if target.labels else ""
        answers = {
            "binary": f"{target.name_of(1)} (1) or {target.name_of(0)} (0)" if labels else "yes (1) or no (0)",
            "score": f"a score from {block.range[0]:g} to {block.range[1]:g}" if block.range else "",
            "classes": f"one of {target.size} classes{labels}",
            "ordered": f"one of {target.size} ordered classes{labels}",
        }
        text = "a sentence" if task.kind == "single" else "two sentences"
        rows.append([name, text, answers[block.target], target.metrics[0]])
    return pd.DataFrame(rows, columns=["task", "text", "answer", "measured by"])


def _data_rows(params: Params, tasks: Mapping[str, Task], data: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for name in tasks:
        origin, licence = _origin(params.source_of(name), name, data.get("origin") or {})
        if more := data.get("extra_train", {}).get(name):
            origin, licence = f"{origin}; for train also {more}, a file of the user's own", UNKNOWN
        splits = data["tasks"].get(name, {})
        counts = [splits.get(split, {}).get("rows", UNKNOWN) for split in ("train", "dev", "test")]
        rows.append([name, origin, licence, *counts])
    return pd.DataFrame(rows, columns=["task", "data", "licence", "train", "dev", "test"], dtype=object)


def _origin(source: str, name: str, origin: Mapping[str, Any]) -> tuple[str, str]:
    """Where a task's rows come from, and their licence."""
    if source == "sample":
        return f"sentences made up by bertrio's own grammars, seed {origin.get('seed', UNKNOWN)}", "no text of others"
    if source == "cs224n":
        return f"{ORIGINS.get(name, UNKNOWN)}, as handed out by Stanford's CS 224N", UNKNOWN
    if source == "hub":
        facts = origin.get(name, {})
        named = [facts.get("id", UNKNOWN), *[f"{key} {facts[key]}" for key in ("config", "commit") if key in facts]]
        return ", ".join(named), f"{UNKNOWN}; see the data set's card on the hub"
    return "files of the user's own", UNKNOWN


def _licences(params: Params, rows: pd.DataFrame) -> str:
    notes = []
    if rows["licence"].str.startswith(UNKNOWN).any():
        notes.append("Licences that are unknown here must be looked up before the model is passed on.")
    if params.encoder.name != "tiny":
        notes.append("So must that of the encoder." if notes else f"The licence of the encoder is {UNKNOWN} here.")
    return " ".join(notes)


def _overlaps(tasks: Mapping[str, Task], data: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{facts['rows_sharing_a_sentence_with_train']:,} of {facts['rows']:,} rows of {name} {split}"
        for name in tasks
        for split, facts in data["tasks"].get(name, {}).items()
        if facts.get("rows_sharing_a_sentence_with_train")
    )


def _training(params: Params, evaluation: Mapping[str, Any]) -> str:
    finetune = params.finetune
    rate = finetune.lr * params.encoder.lr_factor  # as `training.build` has it
    length = f"{finetune.max_steps} steps at most" if finetune.max_steps else f"{finetune.epochs} epochs"
    methods = {
        **{name: getattr(params, name).weight for name in REGULARIZERS},
        f"surgery {params.surgery.method}": params.surgery.method != "none",
    }
    used = ", ".join(name for name, on in methods.items() if on)
    best = ", ".join(f"{name}: {epoch}" for name, epoch in evaluation.get("best_epoch", {}).items())
    chosen = how_chosen(evaluation["selected_on"]) if evaluation.get("selected_on") else None
    return (
        f"{length.capitalize()}, learning rate {rate:g}, schedule {params.schedule.name}, loss weighting "
        f"{params.weighting.method}, seed {params.runtime.seed}."
        + (f" With {used}." if used else "")
        + (" Masked-language-model training first." if params.mlm.enabled else "")
        + (f" Epochs that were kept: {best}." if best else "")
        + (f" They were {chosen}." if chosen else "")
    )


def _limits(params: Params, tasks: Mapping[str, Task], evaluation: Mapping[str, Any], slices: Any) -> list[str]:
    limits = []
    made_up = [name for name in tasks if params.source_of(name) == "sample"]
    if made_up:
        what = "Trained" if len(made_up) == len(tasks) else f"{_several(made_up)} trained"
        limits.append(f"{what} on made-up sentences of a few grammars: of no use for real text.")
    if "dev" in evaluation.get("selected_on", {}).get("rows", "").split(", "):
        limits.append("Epochs were chosen on dev, so its figures are a little too good.")
    unmeasured = [split for split in ("dev", "test") if split not in evaluation]
    if unmeasured:
        limits.append(f"Not measured on {' and '.join(unmeasured)}, which has no labels here.")
    if len(params.ensemble.members) == 1:
        limits.append("One seed: another gives other figures, by how much was not measured here.")
    limits.append(f"Texts are cut after {params.encoder.max_length} tokens.")
    limits += [figures.weakest(name, families) for name, families in slices.items()]
    limits.append("Bias towards groups of people was not measured beyond what stands under Robustness.")
    return [limit for limit in limits if limit]


def _several(names: list[str]) -> str:
    """One or more names as a phrase."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read ({error}); run dvc repro, which writes it") from error
