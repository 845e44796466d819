"""Export to ONNX: one task from tokens to predictions, for any runtime, batch size and length."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertrio.core.errors import UserError
from bertrio.core.tasks import Score, Target, Task
from bertrio.inference.export.source import Row, Source, columns_of, tokenize
from bertrio.model.encoder import Tokens
from bertrio.model.multitask import MultitaskModel

GRAPH = "model.onnx"
OPSET = 20  # torch's exporter writes it without conversion; onnxruntime reads it since 1.17
SIDES = ("_a", "_b")  # suffixes of the inputs of a bi-encoded pair
TRACED = ("a", "two or three words")  # of different lengths, so that no length is taken for a constant


class Graph(nn.Module):
    """One task of a model, from tokens to predictions.

    Args:
        model: model with the task's head.
        task: task to export.
        fields: names of the tokens' tensors; the inputs are these for the first text, then for the second if any.
    """

    def __init__(self, model: MultitaskModel, task: Task, fields: Sequence[str]) -> None:
        super().__init__()
        self.encoder: Any = model.encoder
        self.head = model.heads[task.name]
        self.target, self.fields = task.target, list(fields)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return predictions from int64 tensors [B, T]; the two texts of a pair may differ in T."""
        count = len(self.fields)
        texts = [dict(zip(self.fields, inputs[at : at + count])) for at in range(0, len(inputs), count)]
        return answers(self.target, self.head(*[self._pooled(tokens) for tokens in texts]).outputs)

    def _pooled(self, tokens: Tokens) -> Tensor:
        embeddings = self.encoder.transformer.get_input_embeddings()(tokens["input_ids"])
        return self.encoder.encode(embeddings, tokens)


def answers(target: Target, outputs: Tensor) -> Tensor:
    """Return probabilities [B, C] (binary: no, yes), or scores [B] within their range: `Target.predict` in torch."""
    if isinstance(target, Score):
        return outputs[:, 0].clamp(target.low, target.high)
    if outputs.shape[1] == 1:
        return torch.cat((-outputs, outputs), dim=1).sigmoid()
    return outputs.softmax(dim=1)


def output_name(target: Target) -> str:
    """Return the name of the graph's output."""
    return "probabilities" if target.discrete else "score"


def input_names(task: Task, fields: Sequence[str]) -> list[str]:
    """Return the names of the graph's inputs: those of the tokenizer, with `_a` and `_b` for a bi-encoded pair."""
    return [field + side for side in (SIDES if task.encoding == "bi" else ("",)) for field in fields]


def write_graph(source: Source, task: Task, folder: Path) -> None:
    """Write model.onnx and the tokenizer.

    The exporter follows the Python code (`dynamo`). The older one traces one run, in which transformers leaves out the
    mask of a batch without padding.

    Raises:
        UserError: if torch can't export the architecture.
    """
    rows = list(TRACED) if task.kind == "single" else [TRACED, TRACED[::-1]]
    texts = source.tokens(task, rows)
    fields = source.fields
    batch, most = torch.export.Dim("batch"), source.config.encoder.max_length
    lengths = [torch.export.Dim(f"length{side}", max=most) for side in SIDES[: len(texts)]]
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                Graph(source.model, task, fields).eval(),
                tuple(tokens[field] for tokens in texts for field in fields),
                dynamo=True,
                opset_version=OPSET,
                input_names=input_names(task, fields),
                output_names=[output_name(task.target)],
                dynamic_shapes=(tuple({0: batch, 1: length} for length in lengths for _ in fields),),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        config: Any = source.model.encoder.transformer.config
        kind, reason = config.model_type, str(error).strip().splitlines()[0]
        raise UserError(f"--format onnx: torch can't export {kind} models ({reason}); use another format") from error
    assert program is not None  # only without `dynamo`
    program.save(str(folder / GRAPH), external_data=False)
    _tidy(folder / GRAPH)
    source.save_tokenizer(folder)


def quantize(folder: Path) -> None:
    """Quantize the weights of matrix products and embeddings to 8-bit integers, in place.

    Each column has its own scale; activations are scaled dynamically.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(dir=folder) as new, _quiet():
        made = Path(new) / GRAPH
        quantize_dynamic(folder / GRAPH, made, per_channel=True, weight_type=QuantType.QInt8)
        made.replace(folder / GRAPH)


def read_graph(source: Source, task: Task, folder: Path, rows: Sequence[Row]) -> Tensor:
    """Return onnxruntime's predictions for the rows: probabilities [B, C] or scores [B]."""
    import onnxruntime
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    session = onnxruntime.InferenceSession(str(folder / GRAPH), providers=["CPUExecutionProvider"])
    columns = columns_of(rows)
    texts = [[column] for column in columns] if task.encoding == "bi" else [columns]
    tokens = [tokenize(tokenizer, *text) for text in texts]
    values = [value.numpy() for text in tokens for value in text.values()]
    return torch.from_numpy(session.run(None, dict(zip(input_names(task, list(tokens[0])), values)))[0])


def expected_answers(source: Source, task: Task, rows: Sequence[Row]) -> Tensor:
    """Return the same by the model itself."""
    return answers(task.target, source.outputs(task, rows))


def _tidy(path: Path) -> None:
    """Remove the exporter's notes on the Python code, which hold paths, and the shapes in between: some are older than
    its optimizations, which the quantizer takes for an error."""
    import onnx

    model = onnx.load(path)
    graph = model.graph
    del model.metadata_props[:], graph.metadata_props[:], graph.value_info[:]
    for part in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' remarks, none of which a user could act on."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
