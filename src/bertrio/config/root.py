"""All groups of params, and checks between them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model, model_validator

from bertrio.config import groups
from bertrio.config.data import DataParams, SplitRule
from bertrio.config.tasks import SharingParams, TaskParams
from bertrio.core.errors import did_you_mean
from bertrio.core.options import Group, matching
from bertrio.core.tasks import TEXT_COLUMNS
from bertrio.techniques.losses import LOSSES
from bertrio.techniques.regularizers import REGULARIZERS
from bertrio.techniques.regularizers.bregman import BregmanOptions
from bertrio.techniques.regularizers.distillation import DistillOptions
from bertrio.techniques.regularizers.smart import SmartOptions
from bertrio.techniques.schedules import SEVERAL_TASKS_A_STEP, UNTIL, ScheduleOptions
from bertrio.techniques.surgery import SurgeryOptions
from bertrio.techniques.weighting import WeightingOptions

TASK_NAME = "a name of at most 100 small letters, digits and _ that begins with a letter"
TaskName = Annotated[str, matching("[a-z][a-z0-9_]{0,99}", TASK_NAME)]
OVERALL = ("overall_normalized", "overall_mean")
SPLITS = ("train", "dev", "test", "selection")  # of prediction tables
RESERVED = (  # have another meaning where a task may be named, or name columns beside those of tasks
    *OVERALL, "last", *UNTIL, "overall", "name", "state", "low", "high", "minutes", "changed",
)  # fmt: skip


if TYPE_CHECKING:

    class _Regularizers(Group):  # the blocks accessed by attribute; `REGULARIZERS` has all
        smart: SmartOptions
        bregman: BregmanOptions
        distill: DistillOptions

else:
    _Regularizers = create_model(
        "_Regularizers", __base__=Group, **{name: (kind.Options, ...) for name, kind in REGULARIZERS.items()}
    )


class Params(_Regularizers):
    """Params of params.yaml: one field per block, those of regularizers from `REGULARIZERS`."""

    runtime: groups.RuntimeParams
    data: DataParams
    tasks: Annotated[dict[TaskName, TaskParams], Field(min_length=1)]
    sharing: SharingParams
    encoder: groups.EncoderParams
    optimizer: groups.OptimizerParams
    mlm: groups.MlmParams
    prefinetune: groups.PrefinetuneParams
    finetune: groups.FinetuneParams
    schedule: ScheduleOptions
    weighting: WeightingOptions
    surgery: SurgeryOptions
    penalties: groups.PenaltyParams
    tracking: groups.TrackingParams
    checkpoints: groups.CheckpointParams
    ensemble: groups.EnsembleParams
    evaluate: groups.EvaluateParams
    analyze: groups.AnalyzeParams

    @property
    def trains(self) -> list[str]:
        """Tasks that fine-tuning trains, in order; other tasks are scored with untrained heads."""
        return self.schedule.tasks or list(self.tasks)

    @property
    def pretrains(self) -> list[str]:
        """The task that prefinetuning trains, if it is on."""
        return [self.prefinetune.task] if self.prefinetune.epochs else []

    def answers(self, member: str) -> tuple[str, ...]:
        """Return the tasks that ensemble member `member` answers: its `answers`, or all."""
        return tuple((self.ensemble.members[member] or {}).get("answers", self.tasks))

    def source_of(self, task: str) -> str:
        """Return the source of a task's rows: that of its own block, or `data.source`."""
        block = self.tasks[task].data
        return self.data.source if block is None else block.source

    def split_of(self, task: str) -> SplitRule:
        """Return the split rule of a task: that of its own block, or of `data.split`."""
        block = self.tasks[task].data
        return (block and block.split) or self.data.split.tasks.get(task, self.data.split)

    @property
    def source_tasks(self) -> list[str]:
        """Tasks whose rows come from `data.source`."""
        return [name for name, task in self.tasks.items() if task.data is None]

    @property
    def same_rows(self) -> dict[str, str]:
        """Return the first task that reads the same files, texts and split, for each task of two or more that do."""
        firsts: dict[str, list[str]] = {}
        for name, task in self.tasks.items():
            sources: dict[str, Any] = {"files": self.data.files, "hub": self.data.hub.tasks}
            block = (task.data and task.data.hub) or task.data or sources.get(self.data.source, {}).get(name)
            if block is not None:
                place = block.model_dump(exclude={"columns", "split"})
                place |= {
                    split: os.path.normpath(os.path.expanduser(path))
                    for split, path in getattr(block, "files", {}).items()
                }
                names: Any = block.columns
                columns = [names.get(column, column) for column in ("id", *TEXT_COLUMNS[task.kind])]
                key = repr((task.kind, self.source_of(name), self.split_of(name), place, columns))
                firsts.setdefault(key, []).append(name)
        return {name: names[0] for names in firsts.values() if len(names) > 1 for name in names}

    @model_validator(mode="after")
    def _groups_fit(self) -> Params:
        if problems := [*check_names(self)] or [problem for check in CHECKS for problem in check(self)]:
            raise ValueError("; ".join(problems))
        return self


def check_names(params: Params) -> Iterator[str]:
    """Yield params that name an unknown task or metric, and names that are reserved. The other checks look names up."""
    tasks, scored = params.tasks, params.finetune.train_metrics
    references: dict[str, Iterable[str]] = {
        "finetune.train_metrics": [] if isinstance(scored, bool) else scored,
        "data.split.tasks": params.data.split.tasks,
        "data.extra_train": params.data.extra_train,
        **{f"data.unlabelled.{name}.task": [rows.task] for name, rows in params.data.unlabelled.items()},
        "schedule.tasks": params.trains,
        "weighting.weights": params.weighting.weights,
        "prefinetune.task": params.pretrains,
        **{
            f"evaluate.challenges.{name}.task": [challenge.task]
            for name, challenge in params.evaluate.challenges.items()
        },
        **{f"{name}.tasks": getattr(params, name).tasks or () for name in REGULARIZERS},
    }
    for param, names in references.items():
        yield from _unknown(param, names, tasks)
    yield from _unknown("finetune.select", [params.finetune.select], [*tasks, *OVERALL, "last"])
    for param in [
        *(f"tasks.{name}" for name in tasks if name in RESERVED),
        *(f"evaluate.challenges.{name}" for name in params.evaluate.challenges if name in SPLITS),
    ]:
        yield f"{param}: is a reserved name; choose another"


def check_columns(params: Params) -> Iterator[str]:
    """Yield tasks with a column of plots/history that another task has, too: the two would be added up."""
    owners: dict[str, str] = {}
    for name, block in params.tasks.items():
        losses = ["", *(f"{regularizer}_" for regularizer in REGULARIZERS if getattr(params, regularizer).weight)]
        columns = [*(f"loss_{prefix}{name}" for prefix in losses)]
        columns += [f"{name}_{metric}" for metric in block.task(name).target.metrics]
        for column in columns:
            if owners.setdefault(column, name) != name:
                yield f"tasks.{name}: its column {column} is one of task {owners[column]}, too; take another name"


def check_sources(params: Params) -> Iterator[str]:
    """Yield tasks without a source of rows."""
    for name in params.source_tasks:
        if params.data.source == "files" and name not in params.data.files:
            yield f"data.files: found no block for task {name}, and tasks.{name}.data is not set"
    for name in params.tasks:
        shares = [rows.share or 0 for rows in params.data.drawn(name).values()]
        if sum(shares) >= 1:
            yield f"data.unlabelled: shares of task {name}, with extra_train, sum to {sum(shares):g}, expected below 1"


def check_schedule(params: Params) -> Iterator[str]:
    """Yield conflicts between the schedule and the trained tasks."""
    schedule, trains = params.schedule, params.trains
    if len(set(trains)) < len(trains):
        yield f"schedule.tasks: found {trains}, expected each task once"
    yield from _unknown("schedule.first", schedule.first, trains)
    if schedule.reads_until and len(trains) > 1:  # with one task, an epoch is that task's
        allowed = trains if isinstance(schedule.until, list) else [*trains, *UNTIL]
        for name in schedule.until_names:
            if name not in allowed:
                yield f"schedule.until: found {name!r}, expected one of {', '.join(allowed)}"


def check_techniques(params: Params) -> Iterator[str]:
    """Yield techniques that would have no effect, or another one than their params state."""
    trains, surgery = params.trains, params.surgery
    for name in REGULARIZERS:
        options = getattr(params, name)
        chosen = trains if options.tasks is None else options.tasks
        if options.weight and not (chosen and set(chosen) <= set(trains)):
            yield f"{name}.tasks: found {chosen}, expected one or more of the tasks that train: {', '.join(trains)}"
    if params.smart.weight and not params.smart.sigma:
        yield "smart.sigma: found 0, but without noise to start from the penalty would always be 0; set it above 0"
    if params.distill.weight and params.distill.teacher is None:
        yield "distill.teacher: found null, expected the folder models of a finished run, or of one of its members"
    on = f"method: found {surgery.method}" if surgery.method != "none" else "log_conflicts: found true"
    joint = params.schedule.name in SEVERAL_TASKS_A_STEP and len(trains) > 1
    if (surgery.method != "none" or surgery.log_conflicts) and (params.encoder.frozen or not joint):
        yield (
            f"surgery.{on}, but it acts on the encoder's gradients in a step of several tasks: it needs schedule.name "
            f"joint, two or more tasks that train, and encoder.frozen false; found {params.schedule.name}, "
            f"{', '.join(trains)} and {str(params.encoder.frozen).lower()}"
        )
    if params.finetune.select_on == "holdout" and params.prefinetune.epochs:
        yield (
            "finetune.select_on: found holdout, but prefinetune trains on the rows of train that it holds out; set "
            "prefinetune.epochs to 0; or use schedule.first, which does not train on them"
        )


def check_passes(params: Params) -> Iterator[str]:
    """Yield params that conflict with accumulation or a frozen encoder."""
    accumulate, encoder = params.finetune.accumulate, params.encoder
    for name in params.trains if accumulate > 1 else ():
        if LOSSES[params.tasks[name].loss].whole_batch:
            yield (
                f"finetune.accumulate: found {accumulate}, but loss {params.tasks[name].loss} of task {name} compares "
                "the rows of a whole batch; use 1"
            )
    if accumulate > 1 and params.smart.weight and params.smart.projection == "rescale":
        yield (
            f"finetune.accumulate: found {accumulate}, but smart.projection rescale moves the noise by a gradient that "
            "depends on the size of the batch; use 1, or projection ball"
        )
    if encoder.frozen and encoder.lora.rank:
        yield f"encoder.lora.rank: found {encoder.lora.rank}, but encoder.frozen leaves no adapter to train; use 0"
    for name in dict.fromkeys([*params.trains, *params.pretrains]) if encoder.frozen else ():
        if not params.tasks[name].has_weights(name, params.sharing):
            yield (
                f"encoder.frozen: leaves task {name} nothing to learn: head cosine has weights of its own only with "
                "head_options.projection true"
            )


def check_batches(params: Params) -> Iterator[str]:
    """Yield batch sizes from which a task's loss learns nothing."""
    schedule = params.schedule
    for name in dict.fromkeys([*params.trains, *params.pretrains]):
        task = params.tasks[name]
        least = LOSSES[task.loss].rows
        if schedule.batch_sizes == "proportional":
            sizes = {"schedule.base_batch": schedule.base_batch}
        else:
            sizes = {f"tasks.{name}.batch_size": task.batch_size}
        if isinstance(schedule.cap, int):
            sizes["schedule.cap"] = schedule.cap
        for param, size in sizes.items():
            if size < least:
                yield (
                    f"{param}: found {size}, but loss {task.loss} of task {name} learns nothing from fewer than "
                    f"{least} rows"
                )


CHECKS = (
    check_columns,
    check_sources,
    lambda params: params.sharing.problems(params.tasks),
    check_schedule,
    check_techniques,
    check_batches,
    check_passes,
)


def _unknown(param: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"{param}: found {name!r}, expected one of {', '.join(known)}{did_you_mean(name, known)}"
