"""The `tasks` group: what each task is, and the head and loss that learn it; and the layers that tasks share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from bertrio.config.choices import Options, PluginOptions, choice
from bertrio.config.data import TaskData
from bertrio.core.options import Count, Group, Positive, Rate, Real, Whole
from bertrio.core.tasks import TARGETS, TEXT_COLUMNS, Task, build_target

# What a head is fed, and the options that it and each loss take. The modules themselves import torch, which what
# only reads params need not wait for; a test holds these tables against them.
ONE_VECTOR = ("linear", "mlp")
TWO_VECTORS = ("concat", "siamese", "siamese_product", "siamese_cosine", "cosine")
HEAD_OPTIONS = {
    "linear": (),
    "mlp": ("depth", "width", "activation"),
    **dict.fromkeys(TWO_VECTORS[:-1], ("depth", "width", "activation", "projection")),
    "cosine": ("activation", "projection", "scaling", "scale", "threshold"),
}
LOSS_OPTIONS = {
    "cross_entropy": ("label_smoothing", "class_weights"),
    "dual_objective": ("reduction", "class_weights"),
    "ordinal_log_loss": ("alpha", "class_weights"),
    "bce": ("class_weights",),
    "siamese_softmax": ("class_weights",),
    "mse": ("scale",),
    "pearson": (),
    "cosine_mse": (),
    "cosine_embedding": ("threshold", "margin"),
    "cosent": ("temperature",),
}
COSINE_LOSSES = ("cosine_mse", "cosine_embedding", "cosent")  # read the raw cosine
BATCH_LOSSES = ("pearson", "cosent")  # one number for a batch, not a mean over its rows
HeadName, LossName = choice("heads", HEAD_OPTIONS), choice("losses", LOSS_OPTIONS)
SCALINGS = {"score": ("relu", "sigmoid", "affine"), "binary": ("relu", "logit")}


def _is_text(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(
            "expected the name of a class, found a truth value; put words such as no, yes and on in quotes"
        )
    return value.strip() if isinstance(value, str) else value


ClassName = Annotated[
    str, BeforeValidator(_is_text), Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")
]


class HeadOptions(Options):
    depth: Annotated[Whole, Field(ge=0)] | None = None
    width: Count | None = None
    activation: Literal["relu", "leaky_relu", "gelu", "tanh"] | None = None
    projection: bool | None = None
    scaling: Literal["relu", "sigmoid", "affine", "logit"] | None = None
    scale: Positive | None = None
    threshold: Annotated[Real, Field(ge=-1, le=1)] | None = None


class LossOptions(Options):
    label_smoothing: Rate | None = None
    class_weights: Literal["inverse"] | None = None
    reduction: Literal["sum", "mean"] | None = None
    alpha: Positive | None = None
    scale: Literal["raw", "unit"] | None = None
    threshold: Real | None = None
    margin: Annotated[Real, Field(ge=-1, lt=1)] | None = None
    temperature: Positive | None = None


class TaskParams(Group):
    kind: Literal["single", "pair"]
    target: Literal["classes", "ordered", "binary", "score"]
    classes: Annotated[Whole, Field(ge=2)] | None = None
    labels: Annotated[list[ClassName], Field(min_length=2)] | None = None
    range: tuple[Real, Real] | None = None
    metric: Annotated[str, Field(max_length=100)] | None = None
    data: TaskData | None = None
    encoding: Literal["cross", "bi"] | None = None
    head: HeadName
    head_options: SerializeAsAny[HeadOptions] = HeadOptions()
    loss: LossName
    loss_options: SerializeAsAny[LossOptions] = LossOptions()
    batch_size: Count
    dropout: Rate
    epochs: Count | None = None

    @field_validator("head_options", "loss_options", mode="wrap")
    @classmethod
    def _of_plugins(cls, value: Any, handler: Any, info: ValidationInfo) -> Options:
        """What a part of another package takes is not known before it is loaded."""
        part = info.field_name.removesuffix("_options")
        name, own = info.data.get(part), {"head": HEAD_OPTIONS, "loss": LOSS_OPTIONS}[part]
        return handler(value) if name is None or name in own else PluginOptions.model_validate(value)

    def task(self, name: str) -> Task:
        """The task that the block stands for."""
        target = build_target(self.target, self.classes, self.range, self.labels, self.metric)
        return Task(name, self.kind, self.encoding or "cross", target)

    @model_validator(mode="after")
    def _parts_fit(self) -> TaskParams:
        problem = self._label_problem()
        if problem:
            raise ValueError(problem)
        if (self.range is not None) != (self.target == "score"):
            raise ValueError("range ([lowest, highest]) goes with target score, and with no other")
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"range: expected [lowest, highest], found {list(self.range)}")
        if (self.encoding is not None) != (self.kind == "pair"):
            raise ValueError("encoding goes with kind pair (cross or bi), and is left out or null for kind single")
        problem = self._loss_problem() or self._head_problem() or self._option_problem() or self._data_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _label_problem(self) -> str | None:
        several = self.target in ("classes", "ordered")
        if (several and self.classes is None and self.labels is None) or (self.classes is not None and not several):
            return "classes (how many) goes with target classes or ordered, and with no other; labels say it as well"
        if self.labels is not None and not (several or self.target == "binary"):
            return f"labels (names of the classes) goes with target classes, ordered or binary, not with {self.target}"
        if self.labels is None:
            return None
        twice = [name for name in self.labels if self.labels.count(name) > 1]
        if twice:
            return f"labels: found {twice[0]!r} {len(twice)} times, expected each name once"
        wanted = 2 if self.target == "binary" else self.classes
        if wanted is not None and len(self.labels) != wanted:
            of = "no and yes, for target binary" if self.target == "binary" else f"one for each of {wanted} classes"
            return f"labels: found {len(self.labels)} names, expected {wanted}: {of}"
        return None

    def _data_problem(self) -> str | None:
        leading = TARGETS[self.target].leading
        if self.metric is not None and self.metric not in leading:
            return (
                f"metric: found {self.metric!r}, expected one of {', '.join(leading)}: those of target {self.target} "
                "of which more is better"
            )
        allowed = ("id", *TEXT_COLUMNS[self.kind], "label")
        for name in self.data.named_columns if self.data else ():
            if name not in allowed:
                return f"data.columns: found {name!r}, expected {', '.join(allowed)} for kind {self.kind}"
        return None

    def _loss_problem(self) -> str | None:
        if self.loss not in LOSS_OPTIONS:
            return None  # another package's: it is tried out when it is loaded
        fits = TARGETS[self.target].losses
        if self.loss not in fits:
            return f"loss {self.loss} does not fit target {self.target}: expected {' or '.join(fits)}"
        if self.loss in COSINE_LOSSES and self.head != "cosine":
            return f"loss {self.loss} reads a cosine: it needs encoding bi and head cosine, found head {self.head}"
        if self.loss == "siamese_softmax" and self.head == "cosine":
            return "loss siamese_softmax needs two outputs, and head cosine has one: use bce, or another head"
        cut, (low, high) = self.loss_options.threshold, self.range or (0, 1)
        if cut is not None and not low < cut <= high:
            return f"loss_options.threshold: found {cut}, expected a label above {low} and up to {high}"
        return None

    def _head_problem(self) -> str | None:
        if self.head not in HEAD_OPTIONS:
            return None
        fits = TWO_VECTORS if self.encoding == "bi" else ONE_VECTOR
        if self.head not in fits:
            how = f"encoding {self.encoding}" if self.kind == "pair" else "kind single"
            gives = "two vectors a row" if self.encoding == "bi" else "one vector a row"
            return f"head {self.head} does not fit {how}, which gives {gives}: expected {' or '.join(fits)}"
        if self.head != "cosine":
            return None
        if self.target not in SCALINGS:
            return f"head cosine has one output, and target {self.target} needs one a class: use siamese"
        scaling = self.head_options.scaling
        if scaling is not None and scaling not in SCALINGS[self.target]:
            fits = " or ".join(SCALINGS[self.target])
            return f"head_options.scaling {scaling} does not fit target {self.target}: expected {fits}"
        return None

    def _option_problem(self) -> str | None:
        for what, name, options, known in (
            ("head", self.head, self.head_options, HEAD_OPTIONS),
            ("loss", self.loss, self.loss_options, LOSS_OPTIONS),
        ):
            for option in options.given() if name in known else ():
                if option not in known[name]:
                    takes = ", ".join(known[name]) or "none"
                    return f"{what}_options.{option}: {what} {name} has no such option; it takes {takes}"
        if self.head == "mlp" and self.head_options.depth == 0:
            return "head_options.depth: found 0, expected 1 or more for head mlp; without hidden layers it is linear"
        return None


class SharingParams(Group):
    """Layers that the heads of several pair tasks have in common."""

    layer: Literal["none", "projection", "fusion", "both"]
    tasks: list[str]

    def problems(self, tasks: dict[str, TaskParams]) -> list[str]:
        """Why the tasks can't share what is asked for."""
        if self.layer == "none":
            return []
        unknown = [name for name in self.tasks if name not in tasks]
        if unknown or len(set(self.tasks)) < 2:
            return [f"sharing.tasks: found {self.tasks}, expected two or more of {', '.join(tasks)}"]
        shared = {name: tasks[name] for name in self.tasks if tasks[name].head in HEAD_OPTIONS}  # others when built
        problems = []
        for name, task in shared.items():
            if self.layer in ("projection", "both") and task.head not in TWO_VECTORS:
                problems.append(f"sharing.layer {self.layer}: tasks.{name}.head {task.head} has no projection; {APART}")
            elif self.layer in ("fusion", "both") and task.head in ("linear", "cosine"):
                problems.append(f"sharing.layer {self.layer}: tasks.{name}.head {task.head} has no fusion layer")
            elif self.layer in ("fusion", "both") and task.head_options.depth == 0:
                problems.append(f"sharing.layer {self.layer}: tasks.{name}.head_options.depth: expected 1 or more")
            elif self.layer != "fusion" and task.head_options.projection is False:
                problems.append(f"sharing.layer {self.layer}: tasks.{name}.head_options.projection: expected true")
        joins = {(task.head, task.head_options.width) for task in shared.values()}
        if self.layer in ("fusion", "both") and len(joins) > 1:
            problems.append("sharing.layer fusion: expected the same head and head_options.width for all sharing.tasks")
        return problems


APART = "set its encoding to bi and its head to one for two vectors"
