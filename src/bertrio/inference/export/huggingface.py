"""Export to transformers: the encoder alone, and a task as a sequence classifier."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from bertrio.core.tasks import Target, Task
from bertrio.inference.export.sequence_classifier import build_classifier
from bertrio.inference.trained_model import TrainedModel


def write_encoder(model: TrainedModel, task: None, folder: Path) -> None:
    """Write the files that `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` load."""
    model.network.encoder.save(folder)
    model.tokenizer.save_pretrained(str(folder))


@torch.inference_mode()
def compare_encoder(model: TrainedModel, task: None, folder: Path, texts: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Return the pooled vectors [B, H] of single texts by the export and by the model."""
    from transformers import AutoModel

    tokens = _tokens(folder, texts)
    encoder = AutoModel.from_pretrained(str(folder), trust_remote_code=False, use_safetensors=True).eval()
    pooled = model.network.encoder.pooling(encoder(**tokens), tokens["attention_mask"])
    return pooled, torch.from_numpy(model.encode(texts["text"].tolist()))


def write_classifier(model: TrainedModel, task: Task, folder: Path) -> None:
    """Write the files that `AutoModelForSequenceClassification.from_pretrained` loads: class logits, or a score.

    Raises:
        UserError: if the encoder's architecture does not support it.
    """
    head: Any = model.network.heads[task.name]
    save_classifier(model, head.output, folder, label_fields(task) | problem_field(task), task.target)


def save_classifier(
    model: TrainedModel, output: nn.Linear, folder: Path, fields: dict[str, Any], target: Target | None = None
) -> None:
    """Write the classifier whose outputs are those of a linear head, of `target` two logits; errors as above."""
    values = [values.detach() for values in (output.weight, output.bias)]
    weight, bias = (with_class_no(target, value, dim=0) if target else value for value in values)
    transformer, pooling = model.network.encoder.transformer, model.config.encoder.pooling
    build_classifier(transformer, pooling, weight, bias, fields).save_pretrained(str(folder))
    model.tokenizer.save_pretrained(str(folder))


def label_fields(task: Task, outputs: int | None = None) -> dict[str, Any]:
    """Return the fields of config.json that name the outputs; a single one of a binary task is that of yes."""
    classes = task.target.class_names
    names = list(classes[-1:] if outputs == 1 else classes) or ["score"]
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def problem_field(task: Task) -> dict[str, str]:
    """Return the field of config.json by which pipelines choose the function of the logits."""
    kind = "multi_label" if task.target.sets else "single_label"
    return {"problem_type": f"{kind}_classification" if task.target.discrete else "regression"}


def write_config(model: TrainedModel, folder: Path, fields: dict[str, Any]) -> None:
    """Write the encoder's config.json with more fields."""
    config = copy.deepcopy(model.network.encoder.transformer.config)
    config.update(fields)
    config.save_pretrained(folder)


@torch.inference_mode()
def compare_classifier(model: TrainedModel, task: Task, folder: Path, texts: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Return the logits [B, C], or the raw score [B, 1], by the export and by the model."""
    from transformers import AutoModelForSequenceClassification

    classifier = AutoModelForSequenceClassification.from_pretrained(
        str(folder), trust_remote_code=False, use_safetensors=True
    )
    outputs = torch.from_numpy(model.outputs(task.name, texts)).float()
    return classifier.eval()(**_tokens(folder, texts)).logits, with_class_no(task.target, outputs, dim=1)


def with_class_no(target: Target, values: Tensor, dim: int) -> Tensor:
    """Return values with one entry for each class along `dim`: a single logit of yes is preceded by 0 for no.

    The softmax of both equals the sigmoid of the one. With a single logit, the text-classification pipeline returns the
    same label for every text.
    """
    single_logit = target.discrete and values.shape[dim] == 1
    return torch.cat((torch.zeros_like(values), values), dim=dim) if single_logit else values


def _tokens(folder: Path, texts: pd.DataFrame) -> Any:
    """Return tokens [B, T] of texts by the exported tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    columns = [texts[name].tolist() for name in texts]
    return tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
