"""The parts of the model card that are figures: what the stages measured, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrio.analysis.markdown import ends, escaped, measured, paragraphs, plain, table
from bertrio.analysis.scorer import whose
from bertrio.analysis.slices import slice_metric
from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.core.tasks import Task
from bertrio.evaluation.metrics import LOWER_IS_BETTER, METRICS

if TYPE_CHECKING:
    from bertrio.config import Params

WORST = 3  # slices of each task that the limits name
FEWEST = 30  # rows of a slice that is named there


class Found:
    """What the stages found, each file as it is; None for those that are not there."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self.data, self.evaluation = files["data"], files["evaluation"]
        self.calibration, self.slices = files["calibration"], files["slices"]
        self.robustness, self.challenges = files["robustness"], files["challenges"]

    @classmethod
    def read(cls, folder: Path) -> Found:
        """What there is in a folder of metrics.

        Raises:
            UserError: if data.json or evaluation.json is missing, or a file is damaged.
        """
        needed = ("data", "evaluation")
        others = ("calibration", "slices", "robustness", "challenges")
        files = {name: _read(folder / f"{name}.json") for name in needed}
        for name in others:
            path = folder / f"{name}.json"
            files[name] = _read(path) if path.exists() else None
        return cls(files)

    @property
    def splits(self) -> list[str]:
        """The splits that were measured."""
        return [split for split in ("dev", "selection", "test") if split in self.evaluation]

    def interval(self, split: str, task: str, metric: str | None = None) -> Sequence[float] | None:
        """The interval of a task's metric, or of an overall score."""
        value = self.evaluation.get("intervals", {}).get(split, {}).get(task)
        return value.get(metric) if metric and value is not None else value


def results(tasks: Mapping[str, Task], found: Found) -> str:
    """Every metric of every task, and the overall scores, by split."""
    rows = []
    for name in (*tasks, "overall_mean", "overall_normalized"):
        values = {split: found.evaluation[split].get(name) for split in found.splits}
        if name in tasks:
            names = dict.fromkeys(metric for of in values.values() for metric in of or {})
            rows += [
                [escaped(name), _metric(metric)]
                + [
                    measured((of or {}).get(metric), found.interval(split, name, metric))
                    for split, of in values.items()
                ]
                for metric in names
            ]
        elif any(value is not None for value in values.values()):
            cells = [measured(value, found.interval(split, name)) for split, value in values.items()]
            rows.append([", ".join(map(escaped, tasks)), escaped(name), *cells])
    return paragraphs(
        "## Metrics",
        "With 95 % bootstrap intervals over rows, which say nothing of another seed.",
        table(["task", "metric", *found.splits], rows),
    )


def slices(tasks: Mapping[str, Task], found: Found) -> str:
    """How good the predictions are in each part of dev; empty where that was not measured, as all that follow."""
    if not found.slices:
        return ""
    blocks = ["## Slices", "Parts of dev, with 95 % intervals."]
    for name, families in found.slices.items():
        metric = slice_metric(tasks[name])
        rows = [
            [escaped(family), escaped(part), f"{of['n']:,}", measured(of.get(metric), ends(of))]
            for family, parts in families.items()
            for part, of in parts.items()
        ]
        blocks += [f"### {escaped(name)}", table(["family", "slice", "rows", metric], rows)]
    return paragraphs(*blocks)


def calibration(found: Found) -> str:
    """How far probabilities are from what happens, before and after scaling by a temperature."""
    if not found.calibration:
        return ""
    keys = list(dict.fromkeys(key for of in found.calibration.values() for key in of))
    rows = [[escaped(name), *[plain(of.get(key)) for key in keys]] for name, of in found.calibration.items()]
    return paragraphs(
        "## Calibration",
        "Temperatures were fitted on one half of dev, all figures are of the other; scaled: after dividing by the "
        "temperature. Lower is better.",
        table(["task", *[key.replace("_", " ") for key in keys]], rows),
    )


def robustness(params: Params, found: Found) -> str:
    """How often changes that should not matter change predictions."""
    if not found.robustness:
        return ""
    rows = [
        [
            escaped(task),
            escaped(name.replace("_", " ")),
            f"{of['n']:,}",
            measured(of["flips"], ends(of)),
            plain(of["shift"]),
        ]
        for task, named in found.robustness.items()
        for name, of in named.items()
        if name != "model"
    ]
    models = {task: named["model"] for task, named in found.robustness.items() if "model" in named}
    return paragraphs(
        "## Robustness",
        "How often a change that should not matter changes the prediction of a dev row that it applies to: its class, "
        "or its score by more than a tenth of the range. Shift: mean change of the predicted class's probability, or "
        "of the score.",
        escaped(whose(models, list(params.ensemble.members))),
        table(["task", "change", "rows", "flips", "shift"], rows),
    )


def challenges(params: Params, found: Found) -> str:
    """The metrics of the challenge files, beside those of dev."""
    if not found.challenges:
        return ""
    rows = [
        [
            escaped(name),
            escaped(of["task"]),
            f"{of['n']:,}",
            _metric(key),
            measured(of[key], of.get("intervals", {}).get(key)),
            measured(of.get("dev", {}).get(key), None),
        ]
        for name, of in found.challenges.items()
        for key in of
        if key in METRICS
    ]
    models = {of["task"]: of["model"] for of in found.challenges.values() if "model" in of}
    return paragraphs(
        "## Challenge files",
        "Dev: the same model's figure on dev.",
        escaped(whose(models, list(params.ensemble.members))),
        table(["file", "task", "rows", "metric", "value", "dev"], rows),
    )


def weakest(name: str, metric: str, families: Mapping[str, Mapping[str, Any]]) -> str:
    """The slices with the worst figure, of those with enough rows to say so; all rows together are no slice."""
    lines = [
        (of[metric], f"{escaped(family)}: {escaped(part)} ({measured(of[metric], ends(of))}, {of['n']:,} rows)")
        for family, parts in families.items()
        for part, of in parts.items()
        if family != "all" and of.get(metric) is not None and of["n"] >= FEWEST
    ]
    highest = metric in LOWER_IS_BETTER
    worst = [told for _, told in sorted(lines, reverse=highest)[:WORST]]
    end = "highest" if highest else "lowest"
    return f"{escaped(name)} has its {end} {metric} in {'; '.join(worst)}." if worst else ""


def _metric(name: str) -> str:
    return escaped(name) + (" (lower is better)" if name in LOWER_IS_BETTER else "")


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read ({error}); run dvc repro, which writes it") from error
