"""All groups of params together, and what must fit between them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from bertrio.params.base import Group
from bertrio.params.data import DataParams
from bertrio.params.groups import (
    EncoderParams,
    EnsembleParams,
    EvaluateParams,
    FinetuneParams,
    MlmParams,
    OptimizerParams,
    PrefinetuneParams,
    RuntimeParams,
)
from bertrio.params.tasks import SharingParams, TaskParams
from bertrio.params.techniques import (
    SAMPLED,
    BregmanParams,
    PenaltyParams,
    RDropParams,
    ScheduleParams,
    SmartParams,
    SurgeryParams,
    WeightingParams,
)

OVERALL = ("overall_normalized", "overall_mean")
UNTIL = ("shortest", "longest", "steps")
RESERVED = (*OVERALL, "last", *UNTIL)  # words with a meaning of their own where a task may be named


class Params(Group):
    """All of params.yaml."""

    runtime: RuntimeParams
    data: DataParams
    tasks: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], TaskParams], Field(min_length=1)]
    sharing: SharingParams
    encoder: EncoderParams
    optimizer: OptimizerParams
    mlm: MlmParams
    prefinetune: PrefinetuneParams
    finetune: FinetuneParams
    schedule: ScheduleParams
    weighting: WeightingParams
    surgery: SurgeryParams
    smart: SmartParams
    bregman: BregmanParams
    r_drop: RDropParams
    penalties: PenaltyParams
    ensemble: EnsembleParams
    evaluate: EvaluateParams

    @property
    def trains(self) -> list[str]:
        """The tasks that fine-tuning trains, in training order; the others are scored with untrained heads."""
        return self.schedule.trains(list(self.tasks))

    def answers(self, member: str) -> tuple[str, ...]:
        """The tasks that ensemble member `member` answers: all, unless it says otherwise."""
        return tuple((self.ensemble.members[member] or {}).get("answers", self.tasks))

    @model_validator(mode="after")
    def _groups_fit(self) -> Params:
        problems = [problem for problem in self._combination_problems() if problem]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _combination_problems(self) -> list[str | None]:
        known = ", ".join(self.tasks)
        select = (*self.tasks, *OVERALL, "last")
        needs_path = self.data.source == "cs224n" and self.data.path is None
        named = {
            "data.split.tasks": self.data.split.tasks,
            "schedule.tasks": self.trains,
            "weighting.weights": self.weighting.weights,
            "smart.tasks": self.smart.tasks or (),
            "bregman.tasks": self.bregman.tasks or (),
            "r_drop.tasks": self.r_drop.tasks or (),
        }
        return [
            *[_not_in(param, name, self.tasks, known) for param, names in named.items() for name in names],
            _not_in("prefinetune.task", self.prefinetune.task, self.tasks, known) if self.prefinetune.epochs else None,
            _not_in("finetune.select", self.finetune.select, select, ", ".join(select)),
            *[
                f"tasks.{name}: is a word of its own here; call the task otherwise"
                for name in RESERVED
                if name in self.tasks
            ],
            "data.path: found null, expected the folder of the course's files for data.source cs224n"
            if needs_path
            else None,
            *self.sharing.problems(self.tasks),
            *self._schedule_problems(),
            *self._source_problems(),
        ]

    def _schedule_problems(self) -> list[str | None]:
        trains, until = self.trains, self.schedule.until_names
        listed = isinstance(self.schedule.until, list)
        allowed = trains if listed else [*trains, *UNTIL]
        counts = self.schedule.name in SAMPLED and len(trains) > 1  # one task alone: an epoch is its own
        own_epochs = [name for name, task in self.tasks.items() if task.epochs is not None]
        return [
            *[_not_in("schedule.until", name, allowed, ", ".join(allowed)) for name in until if counts],
            f"schedule.tasks: found {trains}, expected each task once" if len(set(trains)) < len(trains) else None,
            *[
                f"tasks.{name}.epochs: only schedule sequential reads it, and schedule.name is {self.schedule.name}; "
                "use finetune.epochs"
                for name in own_epochs
                if self.schedule.name != "sequential"
            ],
            f"surgery.method: found {self.surgery.method}, but it acts on the encoder's gradients, and encoder.frozen "
            "leaves none; use none"
            if self.encoder.frozen and self.surgery.method != "none"
            else None,
        ]

    def _source_problems(self) -> list[str | None]:
        if self.data.source not in ("files", "hub"):
            return []
        described = self.data.files if self.data.source == "files" else self.data.hub.tasks
        place = "data.files" if self.data.source == "files" else "data.hub.tasks"
        missing = [f"{place}: found no block for task {name}" for name in self.tasks if name not in described]
        if self.data.source == "hub" and self.mlm.enabled:
            wanted = [name for name, rows in self.mlm.rows if rows and name not in self.data.hub.corpora]
            missing += [
                f"data.hub.corpora: found no block for {name}, of which mlm.rows asks for rows" for name in wanted
            ]
        return list(missing)


def _not_in(param: str, value: str, known: Any, names: str) -> str | None:
    return None if value in known else f"{param}: found {value!r}, expected one of {names}"
