"""Export to transformers: the encoder by itself, and a task as a model for sequence classification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertrio.core.errors import UserError
from bertrio.core.tasks import Target, Task
from bertrio.inference.export.sequence_classifier import build_classifier
from bertrio.inference.export.source import Row, Source, columns_of, tokenised
from bertrio.model.heads import Linear
from bertrio.model.pooling import POOLINGS


def write_encoder(source: Source, task: None, folder: Path) -> None:
    """Writes what `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` load."""
    source.model.encoder.save(folder)
    source.save_tokenizer(folder)


@torch.inference_mode()
def read_encoder(source: Source, task: None, folder: Path, rows: Sequence[Row]) -> Tensor:
    """The pooled vectors [B, H] of single texts, by the exported encoder."""
    from transformers import AutoModel, AutoTokenizer

    tokens = tokenised(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False), *columns_of(rows))
    model = AutoModel.from_pretrained(str(folder), trust_remote_code=False, use_safetensors=True)
    return POOLINGS[source.config.encoder.pooling](model.eval()(**tokens), tokens["attention_mask"])


def write_classifier(source: Source, task: Task, folder: Path) -> None:
    """Writes what `AutoModelForSequenceClassification.from_pretrained` loads: logits of classes, or a score.

    Raises:
        UserError: with the reason, if the task's head can't be one.
    """
    head = source.model.heads[task.name]
    if task.encoding == "bi":
        raise UserError(
            f"task {task.name}: encodes the texts of a pair apart, and a model for sequence classification reads one "
            "sequence; --format sentence-transformer has its vectors, and --format onnx its answers"
        )
    others = "--format onnx may do" if task.kind == "single" else "--format cross-encoder or onnx may do"
    if type(head) is not Linear:
        raise UserError(f"task {task.name}: only a head linear can be a classifier of transformers; {others}")
    weight, bias = as_logits(task.target, head.output.weight.detach(), head.output.bias.detach())
    encoder, pooling = source.model.encoder, source.config.encoder.pooling
    if pooling not in POOLINGS:
        raise UserError(
            f"encoder.pooling: found {pooling}, and a classifier of transformers can only have {', '.join(POOLINGS)}; "
            "--format onnx may do"
        )
    try:
        model = build_classifier(encoder.transformer, pooling, weight, bias, classes_of(task.target))
    except ValueError as error:
        raise UserError(f"task {task.name}: can't be a classifier of transformers, {error}; {others}") from error
    model.save_pretrained(str(folder))
    source.save_tokenizer(folder)


@torch.inference_mode()
def read_classifier(source: Source, task: Task, folder: Path, rows: Sequence[Row]) -> Tensor:
    """The logits [B, C], or the raw score [B, 1], by the exported classifier."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokens = tokenised(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False), *columns_of(rows))
    model = AutoModelForSequenceClassification.from_pretrained(
        str(folder), trust_remote_code=False, use_safetensors=True
    )
    return model.eval()(**tokens).logits


def expected_logits(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """The same by the model itself."""
    outputs = source.outputs(task, rows)
    return torch.cat((torch.zeros_like(outputs), outputs), dim=-1) if needs_no(task.target, outputs) else outputs


def as_logits(target: Target, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [C, H] and bias [C] of one logit a class, from those of a head.

    A binary head's one logit becomes that of yes, beside 0 for no: softmax over both is the sigmoid of the one. With
    one logit alone, the text-classification pipeline would answer the same label to everything.
    """
    if not needs_no(target, bias):
        return weight, bias
    return torch.cat((torch.zeros_like(weight), weight)), torch.cat((torch.zeros_like(bias), bias))


def needs_no(target: Target, outputs: Tensor) -> bool:
    """Whether the outputs [..., C] of a head are the logit of yes alone."""
    return target.discrete and outputs.shape[-1] == 1


def classes_of(target: Target) -> dict[str, Any]:
    """What a transformers config says of the classes: `id2label`, `label2id`, `problem_type`."""
    names = class_names(target)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if target.discrete else "regression",
    }


def class_names(target: Target) -> list[str]:
    """The names of a task's classes: their own, else no and yes, or their numbers; a score is one class."""
    if not target.discrete:
        return ["score"]
    if target.labels:
        return list(target.labels)
    return ["no", "yes"] if target.size == 1 else [str(number) for number in range(target.size)]
