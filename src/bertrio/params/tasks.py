"""The `tasks` group: what each task is, and the head and loss that learn it; and the layers that tasks share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bertrio.params.base import Count, Group, Positive, Rate, Real, Whole
from bertrio.tasks import build_target

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
SCALINGS = {"score": ("relu", "sigmoid", "affine"), "binary": ("relu", "logit")}


class Options(Group):
    """Options of a head or loss: those left out are its own defaults."""

    def given(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return self.model_dump(exclude_none=True)


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
    range: tuple[Real, Real] | None = None
    encoding: Literal["cross", "bi"] | None = None
    head: Literal["linear", "mlp", "concat", "siamese", "siamese_product", "siamese_cosine", "cosine"]
    head_options: HeadOptions = HeadOptions()
    loss: Literal[
        "cross_entropy", "dual_objective", "ordinal_log_loss", "bce", "siamese_softmax", "mse", "pearson",
        "cosine_mse", "cosine_embedding", "cosent",
    ]  # fmt: skip
    loss_options: LossOptions = LossOptions()
    batch_size: Count
    dropout: Rate
    epochs: Count | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> TaskParams:
        if (self.classes is not None) != (self.target in ("classes", "ordered")):
            raise ValueError("classes (how many) goes with target classes or ordered, and with no other")
        if (self.range is not None) != (self.target == "score"):
            raise ValueError("range ([lowest, highest]) goes with target score, and with no other")
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"range: expected [lowest, highest], found {list(self.range)}")
        if (self.encoding is not None) != (self.kind == "pair"):
            raise ValueError("encoding goes with kind pair (cross or bi), and is left out or null for kind single")
        problem = self._loss_problem() or self._head_problem() or self._option_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _loss_problem(self) -> str | None:
        fits = build_target(self.target, self.classes, self.range).losses
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
            for option in options.given():
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
        shared = {name: tasks[name] for name in self.tasks}
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
