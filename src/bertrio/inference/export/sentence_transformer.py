"""Export to sentence-transformers: vectors of sentences, and cross-encoders, of the library's own modules."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.inference.export.source import Row, Source
from bertrio.model.heads import ACTIVATIONS, Head, Linear, Mlp
from bertrio.model.pooling import POOLINGS

# What ACTIVATIONS are as modules. Their names are written down, and must be of torch to be trusted when they are read
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


def write_sentence_transformer(source: Source, task: Task, folder: Path) -> None:
    """Writes what `SentenceTransformer(folder)` loads: the vectors that the task's head compares.

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
    if isinstance(head, Head) and head.projection is not None:  # another package's head may be no Head
        modules.append(_dense(head.projection, _module_of(head.activation)))
    SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine").save(
        str(folder), create_model_card=False
    )


def read_sentence_transformer(source: Source, task: Task, folder: Path, rows: Sequence[Row]) -> Tensor:
    """The vectors [B, H] of the first texts of pairs, by the exported model."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode([first for first, _ in rows], convert_to_tensor=True, show_progress_bar=False)


def expected_vectors(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """The same by the model itself."""
    return source.vectors(task, [first for first, _ in rows])


def write_cross_encoder(source: Source, task: Task, folder: Path) -> None:
    """Writes what `CrossEncoder(folder)` loads: logits of classes, the probability of yes, or a raw score.

    Pooling and head are modules of their own, so that any pooling will do, and hidden layers as well.

    Raises:
        UserError: if the task's texts are no pairs, or encoded apart.
    """
    from sentence_transformers import CrossEncoder

    head = source.model.heads[task.name]
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
    """What `predict` says of the rows: [B, C] or [B, 1], by the exported model."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    found = model.predict(list(rows), convert_to_tensor=True, show_progress_bar=False)
    return found if found.ndim == 2 else found.unsqueeze(-1)


def expected_scores(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """The same by the model itself."""
    return _activation(task, source.model.heads[task.name].output)(source.outputs(task, rows))


def _activation(task: Task, output: nn.Linear) -> nn.Module:
    """What turns outputs into what `CrossEncoder.predict` gives, unless told otherwise."""
    return nn.Sigmoid() if task.target.discrete and output.out_features == 1 else nn.Identity()


def _pooled(source: Source) -> list[Any]:
    """The modules that turn a text into its pooled vector."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder, pooling = source.model.encoder, source.config.encoder.pooling
    if pooling not in POOLINGS:
        raise UserError(
            f"encoder.pooling: found {pooling}, and sentence-transformers can only have {', '.join(POOLINGS)}; "
            "--format onnx may do"
        )
    with tempfile.TemporaryDirectory() as folder:  # the module only loads from one
        encoder.save(folder)
        source.save_tokenizer(folder)
        transformer = Transformer(folder, max_seq_length=source.config.encoder.max_length)
    modules = [transformer, Pooling(encoder.size, pooling_mode="mean" if pooling == "mean" else "cls")]
    if pooling == "pooler":
        modules.append(_dense(_pooler_of(encoder.transformer), nn.Tanh()))
    return modules


def _pooler_of(transformer: Any) -> nn.Linear:
    """The linear layer of a pooler that is one, followed by tanh, on the first token; as of BERT and RoBERTa."""
    pooler = transformer.pooler
    if [type(part) for part in pooler.children()] != [nn.Linear, nn.Tanh]:
        raise UserError(
            f"encoder.pooling: the pooler of {transformer.config.model_type} models is not a linear layer and tanh, "
            "which is all that sentence-transformers can have of it; --format onnx may do"
        )
    return pooler.dense


def _module_of(activation: Any) -> nn.Module:
    """The module that is a head's activation."""
    return MODULES[next(name for name, function in ACTIVATIONS.items() if function is activation)]()


def _dense(layer: nn.Linear, activation: nn.Module, to: str | None = None) -> Any:
    """A linear layer and an activation, on the pooled vector; the result takes its place, or is put down as `to`."""
    from sentence_transformers.base.modules import Dense

    weight, bias = (value.detach().clone() for value in (layer.weight, layer.bias))
    with torch.random.fork_rng():  # it draws weights before it takes these
        return Dense(
            layer.in_features,
            layer.out_features,
            activation_function=activation,
            init_weight=weight,
            init_bias=bias,
            module_output_name=to,
        )
