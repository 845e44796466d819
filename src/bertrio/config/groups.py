"""Groups of params for the runtime, the encoder, training, the ensemble, evaluation and analysis."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bertrio.config.data import Columns
from bertrio.core.options import (
    Count,
    FileName,
    Group,
    InputPath,
    NotNegative,
    Positive,
    Rate,
    Real,
    Seed,
    Share,
    Whole,
    matching,
    one_of,
)
from bertrio.model.pooling import POOLINGS

PoolingName = Annotated[str, one_of(POOLINGS)]
Combine = Literal["vote", "mean", "mean_logits", "greedy", "uniform_soup", "greedy_soup"]


class RuntimeParams(Group):
    seed: Seed
    device: Annotated[str, matching(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, mps, cuda or cuda:N")]
    precision: Literal["auto", "float32", "bf16"]
    threads: Count | None
    deterministic: bool
    processes: Count = 1  # of fine-tuning


class TinyParams(Group):
    vocab_size: Annotated[Whole, Field(ge=200)]
    hidden_size: Count
    layers: Count
    heads: Count
    intermediate_size: Count
    lr_factor: Positive

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyParams:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        return self


class LoraParams(Group):
    """Low-rank adapters, trained instead of the encoder's weights; rank 0 means none."""

    rank: Annotated[Whole, Field(ge=0)]
    alpha: Positive
    dropout: Rate
    targets: list[str] | None


class EncoderParams(Group):
    name: InputPath  # a folder, tiny, or an id on the hub
    revision: str | None
    pooling: PoolingName
    dropout: Rate | None
    attention_dropout: Rate | None
    frozen: bool
    checkpointing: bool
    max_length: Annotated[Whole, Field(ge=8)]
    lora: LoraParams
    tiny: TinyParams

    @property
    def lr_factor(self) -> float:
        """Factor on learning rates: randomly initialized weights need larger steps than pretrained ones."""
        return self.tiny.lr_factor if self.name == "tiny" else 1.0


class OptimizerParams(Group):
    eps: Positive
    weight_decay: NotNegative
    lr_schedule: Literal["constant", "linear", "cosine", "step"]
    step_epochs: Count
    gamma: Annotated[Real, Field(gt=0, le=1)]
    warmup_fraction: Share
    layer_decay: Annotated[Real, Field(gt=0, le=1)]
    max_grad_norm: Positive | None


class PenaltyParams(Group):
    """L1 and L2 penalties on weights."""

    l1: NotNegative
    l2: NotNegative
    parameters: Literal["all", "encoder", "heads"]


class MlmParams(Group):
    enabled: bool
    rows: dict[FileName, Annotated[Whole, Field(ge=0)]]  # by corpus
    block_size: Annotated[Whole, Field(ge=8)]
    whole_word: bool
    mask_probability: Annotated[Real, Field(gt=0, lt=1)]
    epochs: Count
    max_steps: Count | None
    batch_size: Count
    lr: Positive


class PrefinetuneParams(Group):
    task: str
    epochs: Annotated[Whole, Field(ge=0)]
    max_steps: Count | None
    lr: Positive


class FinetuneParams(Group):
    epochs: Count
    max_steps: Count | None
    lr: Positive
    accumulate: Count
    one_pass: bool | Literal["auto"]
    ema: Annotated[Real, Field(gt=0, lt=1)] | None
    patience: Count | None
    select: str
    select_on: Literal["dev", "holdout"]
    train_metrics: bool | list[str]  # for some tasks alone
    eval_batch_size: Count


class EnsembleParams(Group):
    members: Annotated[dict[FileName, dict[str, Any] | None], Field(min_length=1)]
    combine: Combine


class TrackingParams(Group):
    """Trackers that log fine-tuning."""

    to: list[Literal["table", "tensorboard", "wandb", "dvclive", "mlflow"]]
    every: Count


class CheckpointParams(Group):
    """Interval of training checkpoints."""

    minutes: Positive | None
    steps: Count | None


class Challenge(Group):
    """Labelled file to evaluate a task's model on."""

    task: str
    path: InputPath
    columns: Columns = Field(default_factory=dict)


class EvaluateParams(Group):
    submission: bool
    challenges: dict[FileName, Challenge]


class AnalyzeParams(Group):
    """Extent of the analysis of a finished run."""

    worst: Annotated[Whole, Field(ge=0)]
    rows: Count
