"""All groups of params together, and what must fit between them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model, model_validator

from bertrio.config.data import DataParams, SplitRule
from bertrio.config.groups import (
    AnalyzeParams,
    CheckpointParams,
    EncoderParams,
    EnsembleParams,
    EvaluateParams,
    FinetuneParams,
    MlmParams,
    OptimizerParams,
    PenaltyParams,
    PrefinetuneParams,
    RuntimeParams,
    TrackingParams,
)
from bertrio.config.tasks import SharingParams, TaskParams
from bertrio.core.options import Group
from bertrio.core.tasks import TEXT_COLUMNS
from bertrio.techniques.losses import LOSSES
from bertrio.techniques.regularizers import REGULARIZERS
from bertrio.techniques.regularizers.bregman import BregmanOptions
from bertrio.techniques.regularizers.distillation import DistillOptions
from bertrio.techniques.regularizers.smart import SmartOptions
from bertrio.techniques.schedules import SEVERAL_TASKS_A_STEP, UNTIL, ScheduleOptions
from bertrio.techniques.surgery import SurgeryOptions
from bertrio.techniques.weighting import WeightingOptions

OVERALL = ("overall_normalized", "overall_mean")
SPLITS = ("train", "dev", "test", "selection")  # of prediction tables
RESERVED = (*OVERALL, "last", *UNTIL)  # words with a meaning of their own where a task may be named


if TYPE_CHECKING:

    class _Regularizers(Group):  # the blocks that code names; `REGULARIZERS` has all of them
        smart: SmartOptions
        bregman: BregmanOptions
        distill: DistillOptions

else:
    _Regularizers = create_model(
        "_Regularizers", __base__=Group, **{name: (kind.Options, ...) for name, kind in REGULARIZERS.items()}
    )


class Params(_Regularizers):
    """All of params.yaml: one field a block, those of regularizers from `REGULARIZERS`."""

    runtime: RuntimeParams
    data: DataParams
    tasks: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,99}$")], TaskParams], Field(min_length=1)]
    sharing: SharingParams
    encoder: EncoderParams
    optimizer: OptimizerParams
    mlm: MlmParams
    prefinetune: PrefinetuneParams
    finetune: FinetuneParams
    schedule: ScheduleOptions
    weighting: WeightingOptions
    surgery: SurgeryOptions
    penalties: PenaltyParams
    tracking: TrackingParams
    checkpoints: CheckpointParams
    ensemble: EnsembleParams
    evaluate: EvaluateParams
    analyze: AnalyzeParams

    @property
    def trains(self) -> list[str]:
        """The tasks that fine-tuning trains, in training order; the others are scored with untrained heads."""
        return self.schedule.tasks or list(self.tasks)

    def answers(self, member: str) -> tuple[str, ...]:
        """The tasks that ensemble member `member` answers: all, unless it says otherwise."""
        return tuple((self.ensemble.members[member] or {}).get("answers", self.tasks))

    def source_of(self, task: str) -> str:
        """Where the rows of a task come from: its own block says so, or `data.source`."""
        own = self.tasks[task].data
        return self.data.source if own is None else own.source

    def split_of(self, task: str) -> SplitRule:
        """How the rows of a task are shared out."""
        own = self.tasks[task].data
        return (own and own.split) or self.data.split.tasks.get(task, self.data.split)

    @property
    def of_source(self) -> list[str]:
        """The tasks whose rows come from `data.source`."""
        return [name for name, task in self.tasks.items() if task.data is None]

    @model_validator(mode="after")
    def _groups_fit(self) -> Params:
        problems = [problem for problem in self._combination_problems() if problem]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _combination_problems(self) -> list[str | None]:
        known = ", ".join(self.tasks)
        select = (*self.tasks, *OVERALL, "last")
        needs_path = self.data.source == "cs224n" and self.data.path is None and self.of_source
        named: dict[str, Iterable[str]] = {
            "data.split.tasks": self.data.split.tasks,
            "data.extra_train": self.data.extra_train,
            "schedule.tasks": self.trains,
            "weighting.weights": self.weighting.weights,
            "schedule.first": self.schedule.first,
            **{f"{name}.tasks": getattr(self, name).tasks or () for name in REGULARIZERS},
        }
        return [
            *[_not_in(param, name, self.tasks, known) for param, names in named.items() for name in names],
            _not_in("prefinetune.task", self.prefinetune.task, self.tasks, known) if self.prefinetune.epochs else None,
            _not_in("finetune.select", self.finetune.select, select, ", ".join(select)),
            *[
                f"tasks.{name}: is a word of its own here; call the task otherwise"
                for name in self.tasks
                if name in RESERVED
            ],
            "data.path: found null, expected the folder of the course's files for data.source cs224n"
            if needs_path
            else None,
            self.sharing.problem(self.tasks),
            *self._schedule_problems(),
            *self._technique_problems(),
            *self._source_problems(),
            *self._challenge_problems(),
        ]

    def _schedule_problems(self) -> list[str | None]:
        trains, until = self.trains, self.schedule.until_names
        listed = isinstance(self.schedule.until, list)
        allowed = trains if listed else [*trains, *UNTIL]
        counts = self.schedule.reads_until and len(trains) > 1  # one task alone: an epoch is its own
        own_epochs = [name for name, task in self.tasks.items() if task.epochs is not None]
        return [
            *[
                f"{problem}; without the task that it names, set schedule.until=shortest, longest or another task"
                for problem in (
                    _not_in("schedule.until", name, allowed, ", ".join(allowed)) for name in until if counts
                )
                if problem
            ],
            f"schedule.tasks: found {trains}, expected each task once" if len(set(trains)) < len(trains) else None,
            *[
                f"tasks.{name}.epochs: only schedule sequential reads it, and schedule.name is {self.schedule.name}; "
                "use finetune.epochs"
                for name in own_epochs
                if self.schedule.name != "sequential"
            ],
            *[
                f"{param}: task {name} does not train; expected some of {', '.join(trains)}"
                for param, names in (("schedule.first", self.schedule.first), ("tasks.NAME.epochs", own_epochs))
                for name in names
                if name in self.tasks and name not in trains
            ],
        ]

    def _technique_problems(self) -> list[str | None]:
        trains = self.trains
        on = {name: getattr(self, name).weight for name in REGULARIZERS}
        return [
            *self._surgery_problems(),
            *[
                f"{name}.tasks: found {chosen}, expected one or more of the tasks that train: {', '.join(trains)}"
                for name, chosen in ((name, getattr(self, name).tasks) for name, weight in on.items() if weight)
                if chosen is not None and not (chosen and set(chosen) <= set(trains))
            ],
            "finetune.select_on: found holdout, but prefinetune trains on the rows of train that it holds out; set "
            "prefinetune.epochs to 0; schedule.first has epochs of one task that keep away from them"
            if self.finetune.select_on == "holdout" and self.prefinetune.epochs
            else None,
            "distill.teacher: found null, expected the folder models of a finished run, or of one of its members"
            if self.distill.weight and self.distill.teacher is None
            else None,
            "weighting.weights: only weighting.method fixed reads it; leave it {} with uncertainty"
            if self.weighting.weights and self.weighting.method != "fixed"
            else None,
            *[
                f"bregman.{name}: found 0, which makes the teacher the model itself, and no penalty; "
                f"the paper has {usual}"
                for name, usual in (("momentum", 0.99), ("late_momentum", 0.999))
                if self.bregman.weight and getattr(self.bregman, name) == 0
            ],
            *self._accumulate_problems(),
            *self._encoder_problems(),
        ]

    def _surgery_problems(self) -> list[str | None]:
        surgery, trains = self.surgery, self.trains
        on = {
            f"surgery.method: found {surgery.method}": surgery.method != "none",
            "surgery.log_conflicts: found true": surgery.log_conflicts,
        }
        apart = [what for what, is_on in on.items() if is_on]
        return [
            *[
                f"{what}, but it takes a step of several tasks: it needs schedule.name joint and two or more tasks "
                f"that train, found {self.schedule.name} and {', '.join(trains)}"
                for what in apart
                if self.schedule.name not in SEVERAL_TASKS_A_STEP or len(trains) < 2
            ],
            *[
                f"{what}, but it acts on the encoder's gradients, and encoder.frozen leaves none"
                for what in apart
                if self.encoder.frozen
            ],
        ]

    def _accumulate_problems(self) -> list[str | None]:
        pieces = self.finetune.accumulate
        if pieces == 1:
            return []
        return [
            *[
                f"finetune.accumulate: found {pieces}, but loss {self.tasks[name].loss} of task {name} compares the "
                "rows of a whole batch; use 1"
                for name in self.trains
                if name in self.tasks and LOSSES[self.tasks[name].loss].whole_batch
            ],
            f"finetune.accumulate: found {pieces}, but smart.projection rescale moves the noise by a gradient that "
            "depends on the size of the batch; use 1, or projection ball"
            if self.smart.weight and self.smart.projection == "rescale"
            else None,
        ]

    def _encoder_problems(self) -> list[str | None]:
        trained = dict.fromkeys([*self.trains, *([self.prefinetune.task] if self.prefinetune.epochs else [])])
        return [
            *[
                f"encoder.frozen: leaves task {name} nothing to learn: head cosine has weights of its own only with "
                "head_options.projection true"
                for name in trained
                if self.encoder.frozen and name in self.tasks and not self._learns(name)
            ],
            "encoder.compile: found true, but the teacher of bregman, a copy that is not compiled, would draw other "
            "masks of dropout than the model; set it to false, or bregman.mu to 0"
            if self.encoder.compile and self.bregman.weight
            else None,
        ]

    def _learns(self, name: str) -> bool:
        """Whether the head of task `name` has weights."""
        shares = self.sharing.layer in ("projection", "both") and name in self.sharing.tasks
        task = self.tasks[name]
        return task.head != "cosine" or bool(task.head_options.get("projection")) or shares

    def _source_problems(self) -> list[str | None]:
        problems = [problem for name in self.tasks for problem in self._data_problems(name)]
        for name, extra in self.data.extra_train.items():
            problems += (
                self._column_problems(f"data.extra_train.{name}", name, extra.columns) if name in self.tasks else []
            )
        if self.data.source not in ("files", "hub"):
            return problems
        described = self.data.files if self.data.source == "files" else self.data.hub.tasks
        place = "data.files" if self.data.source == "files" else "data.hub.tasks"
        if self.data.source == "files":  # of a task that data.hub lacks there may be a preset
            problems += [
                f"{place}: found no block for task {name}, and tasks.{name}.data says nothing either"
                for name in self.of_source
                if name not in described
            ]
        for name in [name for name in self.of_source if name in described]:
            problems += self._column_problems(f"{place}.{name}", name, described[name].columns)
        return problems

    def _data_problems(self, name: str) -> list[str | None]:
        """Of the rows that a task's own block says."""
        own = self.tasks[name].data
        if own is None:
            return []
        both = own.split is not None and name in self.data.split.tasks
        dev = f"tasks.{name}.data.dev" if own.hub is None else f"tasks.{name}.data.hub.splits.dev"
        return [
            f"data.split.tasks.{name}: found beside tasks.{name}.data.split; keep one of the two" if both else None,
            f"{dev}: is missing; name it, or say how rows are shared out, such as tasks.{name}.data.split: "
            "{strategy: random, fractions: [0.8, 0.1, 0.1]}"
            if self.split_of(name).strategy == "official" and not own.has_dev
            else None,
        ]

    def _challenge_problems(self) -> list[str | None]:
        problems: list[str | None] = []
        for name, challenge in self.evaluate.challenges.items():
            place = f"evaluate.challenges.{name}"
            if name in SPLITS:
                problems.append(f"{place}: is a word of its own here; call the challenge otherwise")
            if challenge.task not in self.tasks:
                problems.append(_not_in(f"{place}.task", challenge.task, self.tasks, ", ".join(self.tasks)))
                continue
            problems += self._column_problems(place, challenge.task, challenge.columns)
        return problems

    def _column_problems(self, place: str, task: str, columns: Iterable[str]) -> list[str | None]:
        """Of `columns`, which say what the columns of the layout are called for rows of `task`."""
        allowed = ("id", *TEXT_COLUMNS[self.tasks[task].kind], "label")
        return [_not_in(f"{place}.columns", name, allowed, ", ".join(allowed)) for name in columns]


def _not_in(param: str, value: str, known: Any, names: str) -> str | None:
    if value in known:
        return None
    close = difflib.get_close_matches(value, list(known), n=1)
    return f"{param}: found {value!r}, expected one of {names}" + (f"; did you mean {close[0]}?" if close else "")
