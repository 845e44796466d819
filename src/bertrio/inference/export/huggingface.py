"""Export to transformers: the encoder alone, and a task as a sequence classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertrio.core.errors import UserError
from bertrio.core.tasks import Target, Task
from bertrio.inference.export.sequence_classifier import build_classifier
from bertrio.inference.export.source import Row, Source, columns_of, tokenize
from bertrio.model.heads import Linear
from bertrio.model.pooling import POOLINGS


def write_encoder(source: Source, task: None, folder: Path) -> None:
    """Write the files that `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` load."""
    source.model.encoder.save(folder)
    source.save_tokenizer(folder)


@torch.inference_mode()
def read_encoder(source: Source, task: None, folder: Path, rows: Sequence[Row]) -> Tensor:
    """Return the pooled vectors [B, H] of single texts by the exported encoder."""
    from transformers import AutoModel, AutoTokenizer

    tokens = tokenize(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False), *columns_of(rows))
    model = AutoModel.from_pretrained(str(folder), trust_remote_code=False, use_safetensors=True)
    return POOLINGS[source.config.encoder.pooling](model.eval()(**tokens), tokens["attention_mask"])


def write_classifier(source: Source, task: Task, folder: Path) -> None:
    """Write the files that `AutoModelForSequenceClassification.from_pretrained` loads: class logits, or a score.

    Raises:
        UserError: if the task's head has no such form.
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
    try:
        model = build_classifier(encoder.transformer, pooling, weight, bias, classes_of(task.target))
    except ValueError as error:
        raise UserError(f"task {task.name}: can't be a classifier of transformers, {error}; {others}") from error
    model.save_pretrained(str(folder))
    source.save_tokenizer(folder)


@torch.inference_mode()
def read_classifier(source: Source, task: Task, folder: Path, rows: Sequence[Row]) -> Tensor:
    """Return the logits [B, C], or the raw score [B, 1], by the exported classifier."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokens = tokenize(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False), *columns_of(rows))
    model = AutoModelForSequenceClassification.from_pretrained(
        str(folder), trust_remote_code=False, use_safetensors=True
    )
    return model.eval()(**tokens).logits


def expected_logits(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """Return the same by the model itself."""
    outputs = source.outputs(task, rows)
    return torch.cat((torch.zeros_like(outputs), outputs), dim=-1) if lacks_no(task.target, outputs) else outputs


def as_logits(target: Target, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight [C, H] and bias [C] that give one logit a class.

    The single logit of a binary head becomes that of yes, beside 0 for no: softmax over both is the sigmoid of the one.
    With a single logit, the text-classification pipeline would return the same label for every text.
    """
    if not lacks_no(target, bias):
        return weight, bias
    return torch.cat((torch.zeros_like(weight), weight)), torch.cat((torch.zeros_like(bias), bias))


def lacks_no(target: Target, outputs: Tensor) -> bool:
    """Return whether the outputs [..., C] are the logit of yes alone."""
    return target.discrete and outputs.shape[-1] == 1


def classes_of(target: Target) -> dict[str, Any]:
    """Return the fields of a transformers config for the classes: `id2label`, `label2id`, `problem_type`."""
    names = class_names(target)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if target.discrete else "regression",
    }


def class_names(target: Target) -> list[str]:
    """Return the names of the classes: those of the task, else no and yes, or numbers; a score is one class."""
    if not target.discrete:
        return ["score"]
    if target.labels:
        return list(target.labels)
    return ["no", "yes"] if target.size == 1 else [str(number) for number in range(target.size)]
