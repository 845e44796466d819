"""Measured runs of rows: one small file per run, with all that tables and paired tests need."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Base64Bytes, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from bertrio import __version__
from bertrio.core.errors import UserError
from bertrio.core.files import rounded, write_json
from bertrio.core.options import Group
from bertrio.core.tasks import Array
from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.metrics import OVERALL
from bertrio.evaluation.predictions import Scored
from bertrio.experiments.machine_paths import without_folder
from bertrio.experiments.revision import Revision

FOLDER = "recipes/measured"
SPLITS = ("dev", "test")
PARTS = 20  # of a run, for the dot products of gradients
TRAINING = ("pretrain_mlm", "prefinetune", "finetune-")  # prefixes of the names of training stages


class ByRow(NamedTuple):
    """Contribution of each labelled dev row to a task's main metric.

    `rows` is a digest of ids and labels: two runs can be compared row by row if it is the same. `values` [N] are in
    the order of the ids: 1 for right and 0 for wrong, or the influence of the row on another metric, see
    `intervals.contributions`.
    """

    rows: str
    values: Array


class Stored(Group):
    """`ByRow` as stored: `values` are in base64, as bits for right or wrong, as float16 for influences."""

    ids: str
    kind: Literal["right", "influence"]
    count: Annotated[int, Field(ge=0)]
    values: Base64Bytes


def _decoded(value: Any) -> ByRow:
    if isinstance(value, ByRow):
        return value
    stored = Stored.model_validate(value)
    right, content = stored.kind == "right", stored.values
    if len(content) != (-(-stored.count // 8) if right else 2 * stored.count):
        raise ValueError(f"values: found {len(content)} bytes, which are not {stored.count} rows")
    bits = np.unpackbits(np.frombuffer(content, np.uint8), count=stored.count) if right else None
    return ByRow(stored.ids, (np.frombuffer(content, "<f2") if bits is None else bits).astype(np.float64))


def _encoded(by_row: ByRow) -> dict[str, Any]:
    right = bool(np.isin(by_row.values, (0.0, 1.0)).all())  # also constant predictions, whose influence is all 0
    content = np.packbits(by_row.values.astype(bool)) if right else by_row.values.astype("<f2")
    return {
        "ids": by_row.rows,
        "kind": "right" if right else "influence",
        "count": len(by_row.values),
        "values": base64.b64encode(content.tobytes()).decode(),
    }


Metrics = dict[str, float | dict[str, float]]
Interval = tuple[float, float]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True))
class Measured:
    """One run of a row, as stored in recipes/measured/<name>.json.

    Args:
        row: full name of the row.
        budget: one of recipes/budgets.yaml.
        seed: runtime.seed.
        overrides: other params that the user set, by dotted name, without paths, device and threads.
        source, encoder: data.source and encoder.name; only the folder's name for a local encoder.
        rows: number of rows by task and split.
        metrics: by split: the main metric of each task, and both overall scores.
        intervals: their 95 % intervals, in the same layout.
        seconds: time of all training stages, each from its last resume.
        update_seconds: time of their updates alone, without start and scoring; None if it was not recorded.
        peak_memory_mb: largest peak memory of any training stage.
        precision: of matrix products; auto if it was not recorded.
        threads: CPU threads; None if they were not recorded.
        by_row: contributions of dev rows by task, see `ByRow`.
        commit: short hash of the commit that the run started from.
        version: version of bertrio.
        device: training device, such as cpu or cuda:0; None if it was not recorded.
        session: the session in which all training stages were timed, see `core.stage.session`; None if it is not known.
        history: figures after each epoch of fine-tuning: `step`, `loss_<task>` of training, `dev_<task>` and
            `train_<task>` (main metric), `dev_overall_mean` and `dev_overall_normalized`. Empty for a run of several
            members, whose curves are not the ensemble's, as `best_epoch` (the epoch that was kept, from 1) and `dots`.
        dots: mean dot product of the gradients of each pair of tasks over a twentieth of the run: last step and mean.
        curve: in files without a history, step and dev overall_normalized.
        name: name of the experiment and the file.
    """

    row: str
    budget: str
    seed: int
    overrides: dict[str, Any]
    source: str
    rows: dict[str, dict[str, int]]
    encoder: str
    metrics: dict[str, Metrics]
    intervals: dict[str, dict[str, Interval | dict[str, Interval]]]
    seconds: Annotated[float, Field(ge=0)]
    peak_memory_mb: Annotated[float, Field(ge=0)]
    precision: str
    threads: int | None
    by_row: dict[str, Annotated[ByRow, BeforeValidator(_decoded), PlainSerializer(_encoded)]]
    commit: str
    version: str
    device: str | None = None
    session: str | None = None
    update_seconds: Annotated[float, Field(ge=0)] | None = None
    history: dict[str, list[float | None]] = Field(default_factory=dict)
    best_epoch: int | None = None
    dots: dict[str, list[tuple[int, float]]] = Field(default_factory=dict)
    curve: list[tuple[int, float]] = Field(default_factory=list)
    name: str = ""

    @property
    def training_seconds(self) -> float:
        """Time of all training stages; of a resumed run, at least that of all updates."""
        return max(self.seconds, self.update_seconds or 0.0)

    @property
    def epochs(self) -> pd.DataFrame:
        """The history as a table, with epochs from 1 as its index."""
        old = {"dev_overall_normalized": [score for _, score in self.curve]}
        table = pd.DataFrame(self.history or old, dtype=float)
        return table.set_axis(table.index + 1)

    @property
    def trained(self) -> list[str]:
        """The tasks that trained, by the history; none if there is no history."""
        return [name.removeprefix("loss_") for name in self.history if name.startswith("loss_")]


FILE: TypeAdapter[Measured] = TypeAdapter(Measured)


def load_measured(folder: str | Path = FOLDER) -> list[Measured]:
    """Return all measured runs of a folder, sorted by name; an empty list if the folder is missing.

    Raises:
        UserError: naming a damaged file and its problems.
    """
    return [read_measured(path) for path in sorted(Path(folder).glob("*.json"))]


def read_measured(path: str | Path) -> Measured:
    """Return one measured run; raises as `load_measured`."""
    path = Path(path)
    advice = "git checkout it, or remove it and make it again with bertrio recipes collect"
    try:
        return replace(FILE.validate_json(path.read_bytes()), name=path.stem)
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, item["loc"])) for item in error.errors()[:3])
        raise UserError(f"{path}: is no measured run ({wrong or 'all'}: missing or damaged); {advice}") from None


def write_measured(measured: Measured, folder: str | Path = FOLDER) -> Path:
    """Write a measured run to `<folder>/<name>.json` and return the path; equal runs give equal bytes."""
    path = Path(folder) / f"{measured.name}.json"
    content = to_json(measured)
    exact = {"overrides": content["overrides"]}  # not rounded: runs are selected by them
    write_json(path, rounded(content, 10) | exact, digits=None)
    return path


def to_json(measured: Measured) -> dict[str, Any]:
    """Return the content of the run's file, which does not hold the name."""
    return FILE.dump_python(measured, mode="json", exclude={"name"})


def measure(revision: Revision, **facts: Any) -> Measured:
    """Return the measured file of a finished run. Missing parts, such as tasks without labels, are left out.

    Args:
        revision: the run.
        facts: fields that the revision does not hold: name, row, budget, overrides and commit.

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    settings = revision.settings()
    main_metrics = {name: task.target.metrics[0] for name, task in revision.tasks().items()}
    evaluation, timing = revision.json("metrics/evaluation.json"), revision.json("metrics/timing.json")
    training = {stage: cost for stage, cost in timing.items() if stage.startswith(TRAINING)}
    sessions = {cost.get("session") for cost in training.values()}
    updates = [cost["steps"] * cost["ms_per_step"] / 1000 for cost in training.values() if "steps" in cost]
    last: Mapping[str, Any] = next((cost for stage, cost in training.items() if stage.startswith("finetune-")), {})
    return Measured(
        seed=settings["runtime"]["seed"],
        source=settings["data"]["source"],
        rows={
            task: {split: counts["rows"] for split, counts in splits.items()}
            for task, splits in revision.json("metrics/data.json")["tasks"].items()
        },
        encoder=without_folder("encoder.name", settings["encoder"]["name"]),
        metrics={split: _scores(evaluation.get(split, {}), main_metrics) for split in SPLITS},
        intervals={split: _scores(evaluation.get("intervals", {}).get(split, {}), main_metrics) for split in SPLITS},
        seconds=round(sum(cost["seconds"] for cost in training.values()), 1),
        update_seconds=round(sum(updates), 1) if updates else None,
        peak_memory_mb=max((cost["peak_memory_mb"] for cost in training.values()), default=0.0),
        precision=last.get("precision", settings["runtime"]["precision"]),
        threads=last.get("threads", settings["runtime"]["threads"]),
        session=sessions.pop() if len(sessions) == 1 else None,
        **_course(revision, evaluation, main_metrics, *settings["ensemble"]["members"]),
        by_row=_by_row(revision, main_metrics),
        version=__version__,
        device=last.get("device"),
        **facts,
    )


def _scores(scores: Mapping[str, Any], main_metrics: Mapping[str, str]) -> dict[str, Any]:
    """Return the main metric of each task of a split, and the overall scores."""
    scores_by_task = {task: {metric: scores[task][metric]} for task, metric in main_metrics.items() if task in scores}
    return scores_by_task | {name: scores[name] for name in OVERALL if name in scores}


def _course(
    revision: Revision, evaluation: Mapping[str, Any], main_metrics: Mapping[str, str], member: str, *others: str
) -> dict[str, Any]:
    """Return the fields `history`, `best_epoch` and `dots` of a run of one member."""
    if others:
        return {}
    epochs = pd.read_csv(io.BytesIO(revision.read(f"plots/history/{member}.csv")))
    names = {"step": "step", **{f"dev_{name}": f"dev_{name}" for name in OVERALL}}
    for task, metric in main_metrics.items():
        names |= {f"train_loss_{task}": f"loss_{task}"}
        names |= {f"{split}_{task}_{metric}": f"{split}_{task}" for split in ("dev", "train")}
    history = epochs[[column for column in names if column in epochs]].rename(columns=names).dropna(axis=1, how="all")
    path, dots = f"plots/conflicts/{member}.csv", {}
    conflicts = pd.read_csv(io.BytesIO(revision.read(path))) if revision.exists(path) else pd.DataFrame()
    if len(conflicts):
        part = np.ceil(conflicts["step"] / conflicts["step"].max() * PARTS).rename("part")
        means = conflicts.groupby(["task_a", "task_b", part]).agg({"step": "max", "dot": "mean"})
        for (task_a, task_b), rows in means.groupby(level=[0, 1]):
            dots[f"{task_a} {task_b}"] = list(rows.itertuples(index=False, name=None))
    return {
        "history": history.astype(object).where(history.notna(), None).to_dict("list"),
        "best_epoch": evaluation.get("best_epoch", {}).get(member),
        "dots": dots,
    }


def _by_row(revision: Revision, main_metrics: Mapping[str, str]) -> dict[str, ByRow]:
    frame = revision.predictions()
    frame = frame[(frame["split"] == "dev") & frame["label"].notna()].sort_values("id")
    by_task, tasks = {}, revision.tasks()
    for task, metric in main_metrics.items():
        rows = frame[frame["task"] == task]
        if len(rows):
            lines = "".join(f"{row_id}\t{label:g}\n" for row_id, label in zip(rows["id"], rows["label"]))
            by_task[task] = ByRow(
                hashlib.sha256(lines.encode()).hexdigest(), contributions(Scored.from_rows(rows, tasks[task]), metric)
            )
    return by_task
