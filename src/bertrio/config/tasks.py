"""The `tasks` group: target, head and loss of each task. The `sharing` group: layers that tasks share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Discriminator, Field, StringConstraints, Tag, ValidationInfo, field_validator, model_validator

from bertrio.config.data import TaskData
from bertrio.core.options import Count, Group, Rate, Real, Share, Whole, matching, one_of, read_options
from bertrio.core.tasks import MAX_SET, TARGETS, Task, build_target
from bertrio.model.heads import HEADS, SHARES, HeadSpec, build_heads, head_options, options_to_share
from bertrio.techniques.losses import LOSSES, build_loss, loss_options

ROWS, WIDTH = 2, 4  # of the batch for trying a head and a loss
CLASS_NAME = "the name of a class: 1 to 100 characters on one line"
ClassName = Annotated[str, StringConstraints(strip_whitespace=True), matching(r"[^\x00-\x1f\x7f]{1,100}", CLASS_NAME)]
Classes = Annotated[  # messages leave out tags in brackets
    Annotated[Whole, Field(ge=2), Tag("[count]")] | Annotated[list[ClassName], Field(min_length=2), Tag("[names]")],
    Discriminator(lambda value: "[names]" if isinstance(value, list) else "[count]"),
]


class TaskParams(Group):
    kind: Literal["single", "pair"]
    target: Literal["classes", "ordered", "binary", "score", "multilabel"]
    classes: Classes | None = None
    range: tuple[Real, Real] | None = None
    metric: Annotated[str, Field(max_length=100)] | None = None
    thresholds: list[Share] | None = None  # of multilabel, one a class; chosen on dev if None
    data: TaskData | None = None
    encoding: Literal["cross", "bi"] | None = None
    head: Annotated[str, one_of(HEADS)]
    head_options: dict[str, Any] = Field(default_factory=dict)  # the rest are the head's defaults
    loss: Annotated[str, one_of(LOSSES)]
    loss_options: dict[str, Any] = Field(default_factory=dict)
    batch_size: Count
    dropout: Rate
    epochs: Count | None = None

    @field_validator("head_options", "loss_options")
    @classmethod
    def _known_options(cls, raw: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        component = (info.field_name or "").removesuffix("_options")
        name = info.data.get(component)
        if name is None:  # an invalid head or loss has a message of its own
            return raw
        return read_options({"head": head_options, "loss": loss_options}[component](name), raw, f"{component} {name}")

    def task(self, name: str) -> Task:
        """Return the task that this block defines."""
        target = build_target(self.target, self.classes, self.range, self.metric, self.thresholds)
        return Task(name, self.kind, self.encoding or "cross", target)

    def head_spec(self, name: str, sharing: SharingParams) -> HeadSpec:
        """Return the head of task `name`, including layers that it shares."""
        target, options = self.task(name).target, self.head_options
        if name in sharing.tasks:  # also in prefinetuning, where it is trained alone
            options = options_to_share(options, SHARES[sharing.layer])
        return HeadSpec(self.head, target, target.outputs_for(self.loss), self.dropout, options)

    def has_weights(self, name: str, sharing: SharingParams) -> bool:
        """Return whether the head of task `name` has weights."""
        with torch.random.fork_rng(devices=[]):
            head = build_heads({name: self.head_spec(name, sharing)}, WIDTH)[name]
        return any(True for _ in head.parameters())

    @model_validator(mode="after")
    def _parts_fit(self) -> TaskParams:
        problem = self._label_problem() or self._metric_problem() or self._vectors_problem()
        if problem:
            raise ValueError(problem)
        self._try_out()
        return self

    def _label_problem(self) -> str | None:
        names = self.classes if isinstance(self.classes, list) else []
        allowed = {"score": self.classes is None, "binary": bool(names) or self.classes is None}
        if not allowed.get(self.target, self.classes is not None):
            if self.classes is None:
                return f"classes: is missing; target {self.target} needs their number or names"
            return (
                "classes (how many, or their names) goes with target classes, ordered or multilabel; with binary, names"
            )
        count = self.classes if isinstance(self.classes, int) else len(names)
        if self.target == "multilabel" and (count > MAX_SET or re.search(r"[|,;]", "".join(names))):
            return f"classes: expected {MAX_SET} at most, without the signs | , ; in their names, found {self.classes}"
        if self.thresholds is not None and (self.target != "multilabel" or len(self.thresholds) != count):
            return f"thresholds (one a class, from 0 to 1) goes with target multilabel, found {self.thresholds}"
        if (self.range is not None) != (self.target == "score"):
            if self.range is None:
                return "range: is missing; target score needs [lowest, highest]"
            return "range ([lowest, highest]) goes with target score, and with no other"
        if self.range is not None and self.range[0] >= self.range[1]:
            return f"range: expected [lowest, highest], found {list(self.range)}"
        wanted = 2 if names and self.target == "binary" else len(names)
        if len(names) != wanted or len(set(names)) < wanted:
            return f"classes: expected {wanted} different names (of binary: no and yes), found {names}"
        return None

    def _metric_problem(self) -> str | None:
        choices = TARGETS[self.target].main_metric_choices
        if self.metric is None or self.metric in choices:
            return None
        return (
            f"metric: found {self.metric!r}, expected one of {', '.join(choices)}: those of target {self.target} "
            "of which more is better"
        )

    def _vectors_problem(self) -> str | None:
        if (self.encoding is not None) != (self.kind == "pair"):
            if self.encoding is None:
                return "encoding: is missing; kind pair needs cross or bi"
            return "encoding (cross or bi) goes with kind pair; for kind single, leave it out"
        needed = 2 if self.encoding == "bi" else 1
        if HEADS[self.head].vectors == needed:
            return None
        how = f"encoding {self.encoding}" if self.kind == "pair" else "kind single"
        fits = " or ".join(name for name, head in HEADS.items() if head.vectors == needed)
        vectors = "two vectors" if needed == 2 else "one vector"
        return f"head {self.head} does not fit {how}, which gives {vectors} a row: expected {fits}"

    def _try_out(self) -> None:
        """Build a small head and loss, and call them once.

        Raises:
            ValueError: by the head or the loss, if they do not fit each other, the target or their options.
        """
        spec = self.head_spec("", SharingParams(layer="none", tasks=[]))
        counts = spec.target.counts(np.arange(max(2.0, spec.target.size)))
        loss = build_loss(self.loss, spec.target, self.loss_options, counts)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            head = build_heads({"": spec}, WIDTH)[""]
            output = head(*[torch.zeros(ROWS, WIDTH)] * HEADS[self.head].vectors)
        labels = torch.from_numpy(spec.target.encode(np.zeros(ROWS)))
        loss(output, labels.to(getattr(torch, spec.target.label_dtype)))


class SharingParams(Group):
    """Layers shared by the heads of several pair tasks."""

    layer: Literal["none", "projection", "fusion", "both"]
    tasks: list[str]

    def problems(self, tasks: dict[str, TaskParams]) -> Iterator[str]:
        """Yield why the tasks can't share these layers, if they can't."""
        if self.layer == "none":
            return
        if set(self.tasks) - tasks.keys() or len(set(self.tasks)) < 2:
            yield f"sharing.tasks: found {self.tasks}, expected two or more of {', '.join(tasks)}"
            return
        try:
            with torch.random.fork_rng(devices=[]):
                build_heads(
                    {name: tasks[name].head_spec(name, self) for name in self.tasks}, WIDTH, self.layer, self.tasks
                )
        except ValueError as error:
            yield f"sharing.layer {self.layer}: {error}"
