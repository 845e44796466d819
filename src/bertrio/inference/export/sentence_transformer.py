"""Export to sentence-transformers: sentence vectors and cross-encoders, built from the library's modules."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.core.tasks import Task
from bertrio.inference.export.huggingface import label_fields, write_config
from bertrio.inference.trained_model import TrainedModel

# Activations of heads as modules of torch, the only ones that sentence-transformers loads by name
MODULES: dict[Any, nn.Module] = {
    F.relu: nn.ReLU(),
    F.leaky_relu: nn.LeakyReLU(),
    F.gelu: nn.GELU(),
    torch.tanh: nn.Tanh(),
}


def write_sentence_transformer(model: TrainedModel, task: Task, folder: Path) -> None:
    """Write the files that `SentenceTransformer(folder)` loads: the vectors that the task's head compares."""
    from sentence_transformers import SentenceTransformer

    head: Any = model.network.heads[task.name]
    projection = [] if head.projection is None else [_dense(head.projection, MODULES[head.activation])]
    modules = [*_pooled(model), *projection]
    exported = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine")
    exported.save(str(folder), create_model_card=False)


def compare_sentence_transformer(
    model: TrainedModel, task: Task, folder: Path, texts: pd.DataFrame
) -> tuple[Tensor, Tensor]:
    """Return the vectors [B, H] of the first texts of pairs by the export and by the model."""
    from sentence_transformers import SentenceTransformer

    sentences = texts["text_a"].tolist()
    exported: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    vectors = exported.encode(sentences, convert_to_tensor=True, show_progress_bar=False)
    return vectors, torch.from_numpy(model.encode(sentences, task.name))


def write_cross_encoder(model: TrainedModel, task: Task, folder: Path) -> None:
    """Write the files that `CrossEncoder(folder)` loads: class logits, probabilities (binary, multi-label), or a score.

    Pooling and head are separate modules, so that any pooling and hidden layers are possible.
    """
    from sentence_transformers import CrossEncoder

    head: Any = model.network.heads[task.name]
    hidden = [_dense(layer, MODULES[head.activation]) for layer in head.hidden]
    modules = [*_pooled(model), *hidden, _dense(head.output, nn.Identity(), to="scores")]
    activation = nn.Sigmoid() if _has_sigmoid(task, head.output.out_features) else nn.Identity()
    exported = CrossEncoder(modules=modules, device="cpu", activation_fn=activation)
    exported.save(str(folder), create_model_card=False)
    write_config(model, folder, label_fields(task, head.output.out_features))


def compare_cross_encoder(model: TrainedModel, task: Task, folder: Path, texts: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Return `predict` of the export, [B, C] or [B, 1], and the same by the model."""
    from sentence_transformers import CrossEncoder

    exported = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    rows = list(texts.itertuples(index=False, name=None))
    scores: Any = exported.predict(rows, convert_to_tensor=True, show_progress_bar=False)
    outputs = torch.from_numpy(model.outputs(task.name, texts)).float()
    return scores.reshape(len(rows), -1), outputs.sigmoid() if _has_sigmoid(task, outputs.shape[1]) else outputs


def _has_sigmoid(task: Task, outputs: int) -> bool:
    return task.target.sets or (task.target.discrete and outputs == 1)


def _pooled(model: TrainedModel) -> list[Any]:
    """Return the modules from a text to its pooled vector."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder, config = model.network.encoder, model.config.encoder
    with tempfile.TemporaryDirectory() as folder:  # the module only loads from one
        encoder.save(folder)
        model.tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=config.max_length)
    modules = [transformer, Pooling(encoder.size, pooling_mode="mean" if config.pooling == "mean" else "cls")]
    if config.pooling == "pooler":
        pooler: Any = encoder.transformer.pooler  # a linear layer and tanh, as in BERT and RoBERTa
        modules.append(_dense(pooler.dense, nn.Tanh()))
    return modules


def _dense(layer: nn.Linear, activation: nn.Module, to: str | None = None) -> Any:
    """Return a linear layer and an activation as a module that replaces the pooled vector, or writes to `to`."""
    from sentence_transformers.base.modules import Dense

    return Dense(
        layer.in_features,
        layer.out_features,
        activation_function=activation,
        init_weight=layer.weight.detach().clone(),
        init_bias=layer.bias.detach().clone(),
        module_output_name=to,
    )
