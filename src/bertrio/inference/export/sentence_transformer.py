"""Export to sentence-transformers: sentence vectors and cross-encoders, built of the library's modules."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.inference.export.source import Row, Source, columns_of
from bertrio.model.heads import ACTIVATIONS, Head, Linear, Mlp

# ACTIVATIONS as modules of torch, the only ones that sentence-transformers loads by name
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


def write_sentence_transformer(source: Source, task: Task, folder: Path) -> None:
    """Write the files that `SentenceTransformer(folder)` loads: the vectors that the task's head compares.

    Raises:
        UserError: if the task has no vector of one text alone.
    """
    from sentence_transformers import SentenceTransformer

    if task.encoding != "bi":
        reads = "reads both texts of a pair together" if task.kind == "pair" else "reads one text"
        raise UserError(
            f"task {task.name}: {reads}, so that it compares no vectors, as a pair task with encoding: bi does; "
            "--format classifier or onnx has its answers"
        )
    head, modules = source.model.heads[task.name], _pooled(source)
    if isinstance(head, Head) and head.projection is not None:
        modules.append(_dense(head.projection, _module_of(head.activation)))
    SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine").save(
        str(folder), create_model_card=False
    )


def read_sentence_transformer(source: Source, task: Task, folder: Path, rows: Sequence[Row]) -> Tensor:
    """Return the vectors [B, H] of the first texts of pairs by the exported model."""
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode(columns_of(rows)[0], convert_to_tensor=True, show_progress_bar=False)


def expected_vectors(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """Return the same by the model itself."""
    return source.vectors(task, columns_of(rows)[0])


def write_cross_encoder(source: Source, task: Task, folder: Path) -> None:
    """Write the files that `CrossEncoder(folder)` loads: class logits, the probability of yes, or a raw score.

    Pooling and head are separate modules, so that any pooling and hidden layers are possible.

    Raises:
        UserError: if the task's texts are no pairs, or encoded apart.
    """
    from sentence_transformers import CrossEncoder

    head: Any = source.model.heads[task.name]
    if task.kind == "single":
        raise UserError(
            f"task {task.name}: reads single sentences, and a cross-encoder pairs; --format classifier or onnx may do"
        )
    if task.encoding == "bi":
        raise UserError(
            f"task {task.name}: encodes the texts of a pair apart, and a cross-encoder reads them together; "
            "--format sentence-transformer has its vectors, and --format onnx its answers"
        )
    if type(head) not in (Linear, Mlp):
        raise UserError(
            f"task {task.name}: only a head linear or mlp can be made of sentence-transformers' modules; "
            "--format onnx may do"
        )
    hidden = [_dense(layer, _module_of(head.activation)) for layer in head.hidden]
    modules = [*_pooled(source), *hidden, _dense(head.output, nn.Identity(), to="scores")]
    model = CrossEncoder(modules=modules, device="cpu", activation_fn=_activation(task, head.output))
    model.save(str(folder), create_model_card=False)


def read_cross_encoder(source: Source, task: Task, folder: Path, rows: Sequence[Row]) -> Tensor:
    """Return `predict` of the exported model for the rows: [B, C] or [B, 1]."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    scores: Any = model.predict(list(rows), convert_to_tensor=True, show_progress_bar=False)
    return scores if scores.ndim == 2 else scores.unsqueeze(-1)


def expected_scores(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """Return the same by the model itself."""
    head: Any = source.model.heads[task.name]
    return _activation(task, head.output)(source.outputs(task, rows))


def _activation(task: Task, output: nn.Linear) -> nn.Module:
    """Return the default activation of `CrossEncoder.predict` for the task."""
    return nn.Sigmoid() if task.target.discrete and output.out_features == 1 else nn.Identity()


def _pooled(source: Source) -> list[Any]:
    """Return the modules from a text to its pooled vector."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder, pooling = source.model.encoder, source.config.encoder.pooling
    with tempfile.TemporaryDirectory() as folder:  # the module only loads from one
        encoder.save(folder)
        source.save_tokenizer(folder)
        transformer = Transformer(folder, max_seq_length=source.config.encoder.max_length)
    modules = [transformer, Pooling(encoder.size, pooling_mode="mean" if pooling == "mean" else "cls")]
    if pooling == "pooler":
        modules.append(_dense(_pooler_of(encoder.transformer), nn.Tanh()))
    return modules


def _pooler_of(transformer: Any) -> nn.Linear:
    """Return the linear layer of a pooler that is one followed by tanh, as in BERT and RoBERTa."""
    pooler = transformer.pooler
    if [type(part) for part in pooler.children()] != [nn.Linear, nn.Tanh]:
        raise UserError(
            f"encoder.pooling: the pooler of {transformer.config.model_type} models is not a linear layer and tanh, "
            "which is all that sentence-transformers can have of it; --format onnx may do"
        )
    return pooler.dense


def _module_of(activation: Any) -> nn.Module:
    """Return the module of a head's activation."""
    return MODULES[next(name for name, function in ACTIVATIONS.items() if function is activation)]()


def _dense(layer: nn.Linear, activation: nn.Module, to: str | None = None) -> Any:
    """Return a linear layer and an activation as a module that replaces the pooled vector, or writes to `to`."""
    from sentence_transformers.base.modules import Dense

    weight, bias = (value.detach().clone() for value in (layer.weight, layer.bias))
    with torch.random.fork_rng():  # Dense draws random weights first
        return Dense(
            layer.in_features,
            layer.out_features,
            activation_function=activation,
            init_weight=weight,
            init_bias=bias,
            module_output_name=to,
        )
