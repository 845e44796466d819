"""The model card: what the saved models are, what they were trained on, how good they are, and where they fail.

The layout is that of model cards on the Hugging Face hub (Mitchell et al. 2019, "Model Cards for Model Reporting"):
YAML front matter with the fields that are known, then Markdown. What is not known is said to be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bertrio.analysis import card_figures as figures
from bertrio.analysis.card_figures import Found
from bertrio.analysis.markdown import escaped, paragraphs, several, table
from bertrio.analysis.slices import slice_metric
from bertrio.core.files import write_text
from bertrio.core.tasks import Task
from bertrio.evaluation.evaluate import how_chosen

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
    """Writes the card of the models of a finished run.

    Args:
        params: the base params.
        tasks: all tasks, by name.
        metrics: a folder with data.json and evaluation.json, and what there is of calibration, slices, robustness
            and challenges.json. What the run cost is no part of the card, so that the same run has the same one.
        path: the Markdown file.

    Raises:
        UserError: if data.json or evaluation.json is missing, or a file is damaged.
    """
    found = Found.read(Path(metrics))
    parts = [
        _front_matter(params, tasks, found),
        _summary(params, tasks, found),
        USE,
        _data(params, tasks, found),
        _training(params, found),
        figures.results(tasks, found),
        figures.slices(tasks, found),
        figures.calibration(found),
        figures.robustness(params, found),
        figures.challenges(params, found),
        _limits(params, tasks, found),
        LOADING,
    ]
    write_text(path, "\n\n".join(part for part in parts if part) + "\n")


def _front_matter(params: Params, tasks: Mapping[str, Task], found: Found) -> str:
    """Only what is known: a field that is absent says as much as one that is wrong, and does less harm."""
    sources = {name: params.source_of(name) for name in tasks}
    hub = [found.data["origin"][name]["id"] for name, source in sources.items() if source == "hub"]
    base = _base_model(params)
    known = {
        "language": "en" if {*sources.values()} <= {"sample", "cs224n"} else None,
        "library_name": "bertrio",
        "tags": ["bert", "multi-task-learning", *dict.fromkeys(map(_hub_task, tasks.values()))],
        "base_model": base,
        "datasets": list(dict.fromkeys(hub)) or None,
        "metrics": list(dict.fromkeys(task.target.metrics[0] for task in tasks.values())),
        "model-index": [{"name": "bertrio", "results": _model_index(params, tasks, found)}],
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


def _model_index(params: Params, tasks: Mapping[str, Task], found: Found) -> list[dict[str, Any]]:
    results = []
    for split in found.splits:
        for name, task in tasks.items():
            values = found.evaluation[split].get(name, {})
            source = params.source_of(name)
            own = found.data["origin"].get(name, {}) if source == "hub" else {}
            data = {"name": f"{name} ({source})", "type": own.get("id", f"{source}-{name}")}
            data |= {key: own[field] for key, field in (("config", "config"), ("revision", "commit")) if field in own}
            listed = [{"type": metric, "value": value, "name": metric} for metric, value in values.items()]
            if listed:
                task_type = {"type": _hub_task(task), "name": name}
                results.append({"task": task_type, "dataset": {**data, "split": split}, "metrics": listed})
    return results


def _summary(params: Params, tasks: Mapping[str, Task], found: Found) -> str:
    members = params.ensemble.members
    many = f"{len(members)} members ({', '.join(map(escaped, members))}), combined by {params.ensemble.combine}"
    rows = [[escaped(name), *_described(params, name)] for name in tasks]
    return paragraphs(
        "# bertrio",
        f"One encoder, fine-tuned on {several(map(escaped, tasks))} together. Encoder: {_encoder(params)}. "
        + (f"An ensemble of {many}." if len(members) > 1 else "One model."),
        table(
            ["task", "text", "answer", "measured by"],
            [[*row, tasks[name].target.metrics[0]] for row, name in zip(rows, tasks)],
        ),
    )


def _encoder(params: Params) -> str:
    encoder, base = params.encoder, _base_model(params)
    if encoder.name == "tiny":
        return f"a BERT of {encoder.tiny.layers} layers of width {encoder.tiny.hidden_size}, from random weights"
    if base is None:
        return f"{escaped(Path(encoder.name).name)}, from a local folder"
    revision = f", revision {escaped(encoder.revision)}" if encoder.revision else ""
    return f"{escaped(base)}{revision}, from the Hugging Face hub"


def _described(params: Params, name: str) -> list[str]:
    task, target = params.tasks[name], params.tasks[name].task(name).target
    named = f": {escaped(', '.join(target.labels))}" if target.labels else ""
    answers = {
        "binary": escaped(f"{target.name_of(1)} (1) or {target.name_of(0)} (0)") if named else "yes (1) or no (0)",
        "score": f"a score from {task.range[0]:g} to {task.range[1]:g}" if task.range else "",
        "classes": f"one of {target.size} classes{named}",
        "ordered": f"one of {target.size} ordered classes{named}",
    }
    return ["a sentence" if task.kind == "single" else "two sentences", answers[task.target]]


def _data(params: Params, tasks: Mapping[str, Task], found: Found) -> str:
    origin = found.data.get("origin") or {}
    rows, sources = [], [params.source_of(name) for name in tasks]
    for name, source in zip(tasks, sources):
        counts = [found.data["tasks"].get(name, {}).get(split, {}).get("rows") for split in ("train", "dev", "test")]
        told, licence = _origin(source, name, origin)
        if more := found.data.get("more", {}).get(name):
            told, licence = f"{told}; for train also {escaped(more)}, a file of the user's own", UNKNOWN
        rows.append([escaped(name), told, licence, *[UNKNOWN if count is None else f"{count:,}" for count in counts]])
    corpora = found.data.get("corpora", {})
    unlabelled = [
        f"{escaped(name)} ({of.get('rows', UNKNOWN):,} texts, licence {UNKNOWN})" for name, of in corpora.items()
    ]
    notes = []
    if any(licence.startswith(UNKNOWN) for _, _, licence, *_ in rows):
        notes.append("Licences that are unknown here must be looked up before the model is passed on.")
    if params.encoder.name != "tiny":
        notes.append("So must that of the encoder." if notes else f"The licence of the encoder is {UNKNOWN} here.")
    return paragraphs(
        "## Data and licences",
        " ".join([f"Source: {', '.join(dict.fromkeys(map(escaped, sources)))}.", *notes]),
        table(["task", "data", "licence", "train", "dev", "test"], rows),
        f"Unlabelled text for masked-language-model training: {', '.join(unlabelled)}." if unlabelled else "",
        _overlaps(tasks, found),
    )


def _origin(source: str, name: str, origin: Mapping[str, Any]) -> tuple[str, str]:
    """Where a task's rows come from, and their licence."""
    if source == "sample":
        return f"sentences made up by bertrio's own grammars, seed {origin.get('seed', UNKNOWN)}", "no text of others"
    if source == "cs224n":
        return f"{ORIGINS.get(name, UNKNOWN)}, as handed out by Stanford's CS 224N", UNKNOWN
    if source == "hub":
        own = origin.get(name, {})
        named = [own.get("id", UNKNOWN), *[f"{key} {own[key]}" for key in ("config", "commit") if key in own]]
        return escaped(", ".join(named)), f"{UNKNOWN}; see the data set's card on the hub"
    return "files of the user's own", UNKNOWN


def _overlaps(tasks: Mapping[str, Task], found: Found) -> str:
    shared = [
        f"{of['rows_sharing_a_sentence_with_train']:,} of {of['rows']:,} rows of {escaped(name)} {split}"
        for name in tasks
        for split, of in found.data["tasks"].get(name, {}).items()
        if of.get("rows_sharing_a_sentence_with_train")
    ]
    return f"Rows that share a sentence with train: {'; '.join(shared)}." if shared else ""


def _training(params: Params, found: Found) -> str:
    finetune = params.finetune
    rate = finetune.lr * params.encoder.lr_factor  # as `training.build` has it
    length = f"{finetune.max_steps} steps at most" if finetune.max_steps else f"{finetune.epochs} epochs"
    best = ", ".join(f"{escaped(name)}: {epoch}" for name, epoch in found.evaluation.get("best_epoch", {}).items())
    chosen = found.evaluation.get("selected_on")
    on = [
        "smart" * bool(params.smart.weight),
        "bregman" * bool(params.bregman.weight),
        "r_drop" * bool(params.r_drop.weight),
        "distillation" * bool(params.distill.weight),
    ]
    surgery = "" if params.surgery.method == "none" else f"surgery {params.surgery.method}"
    extras = [name for name in (*on, surgery) if name]
    return paragraphs(
        "## Training",
        f"{length.capitalize()}, learning rate {rate:g}, schedule {params.schedule.name}, loss weighting "
        f"{params.weighting.method}, seed {params.runtime.seed}."
        + (f" With {', '.join(extras)}." if extras else "")
        + (" Masked-language-model training first." if params.mlm.enabled else "")
        + (f" Epochs that were kept: {best}." if best else "")
        + (f" They were {escaped(how)}." if chosen and (how := how_chosen(chosen)) else ""),
    )


def _limits(params: Params, tasks: Mapping[str, Task], found: Found) -> str:
    chosen = found.evaluation.get("selected_on", {}).get("rows", "")
    points = []
    made_up = [name for name in tasks if params.source_of(name) == "sample"]
    if made_up:
        what = "Trained" if len(made_up) == len(tasks) else f"{several(map(escaped, made_up))} trained"
        points.append(f"{what} on made-up sentences of a few grammars: of no use for real text.")
    if "dev" in chosen.split(", "):
        points.append("Epochs were chosen on dev, so that its figures are a little too good.")
    unmeasured = [split for split in ("dev", "test") if split not in found.evaluation]
    if unmeasured:
        points.append(f"Not measured on {' and '.join(unmeasured)}, which has no labels here.")
    if len(params.ensemble.members) == 1:
        points.append("One seed: another gives other figures, by how much was not measured here.")
    points.append(f"Texts are cut after {params.encoder.max_length} tokens.")
    points += [
        figures.weakest(name, slice_metric(tasks[name]), families) for name, families in (found.slices or {}).items()
    ]
    points.append("Bias towards groups of people was not measured beyond what stands under Robustness.")
    return paragraphs("## Limits", "\n".join(f"- {point}" for point in points if point))


USE = """## Use

Meant for research on multi-task fine-tuning, and for the tasks above on texts like those it was trained on. Not meant
for decisions about people: nothing here was tested for that."""

LOADING = """## How to load

In the folder that holds `models/`:

```python
from bertrio import Predictor

predictor = Predictor.load("models")
name, task = next(iter(predictor.tasks.items()))
row = "a good film" if task.kind == "single" else ("a good film", "a fine film")
print(predictor.predict(name, [row]))
```

`models/members/NAME/encoder` is a transformers folder by itself, without heads, for `AutoModel.from_pretrained` and
`AutoTokenizer.from_pretrained`."""
