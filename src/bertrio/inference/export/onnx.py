"""Export to ONNX: a graph of one task from tokens to predictions, for any batch size and length."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from bertrio.core.errors import UserError
from bertrio.core.tasks import Score, Target, Task
from bertrio.inference.export.huggingface import label_fields, problem_field, with_class_no, write_config
from bertrio.inference.trained_model import TrainedModel
from bertrio.model.multitask import MultitaskModel

GRAPH = "model.onnx"
OPSET = 20  # torch's exporter writes it without conversion; onnxruntime reads it since 1.17
SIDES = {"cross": ("",), "bi": ("_a", "_b")}  # suffixes of the inputs, by the task's encoding
TRACED = ("a", "two or three words")  # texts of different lengths, so that no length becomes a constant


class Graph(nn.Module):
    """One task of a model, from tokens to predictions.

    Args:
        model: model with the task's head.
        task: task to export.
        fields: names of the token tensors; the inputs are these of the first text, then those of the second if any.
    """

    def __init__(self, model: MultitaskModel, task: Task, fields: Sequence[str]) -> None:
        super().__init__()
        self.encoder: Any = model.encoder
        self.head = model.heads[task.name]
        self.target, self.fields = task.target, list(fields)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities [B, C] (binary: no, yes), or scores [B] within their range, as `Target.predict`; and the
        logits [B, C] or [B, 1] that they are of.

        Inputs are int64 tensors [B, T]; the two texts of a pair may differ in T.
        """
        pooled, count, word_embeddings = [], len(self.fields), self.encoder.transformer.get_input_embeddings()
        for start in range(0, len(inputs), count):
            tokens = dict(zip(self.fields, inputs[start : start + count]))
            pooled.append(self.encoder.encode(word_embeddings(tokens["input_ids"]), tokens))
        logits = self.head(*pooled).outputs
        if isinstance(self.target, Score):
            return logits[:, 0].clamp(self.target.low, self.target.high), logits
        if self.target.sets:
            return logits.sigmoid(), logits
        if logits.shape[1] == 1:
            return torch.cat((-logits, logits), dim=1).sigmoid(), with_class_no(self.target, logits, dim=1)
        return logits.softmax(dim=1), logits


def output_name(target: Target) -> str:
    """Return the name of the graph's first output; the second is `logits`, as optimum expects it."""
    return "probabilities" if target.discrete else "score"


def input_names(model: TrainedModel, task: Task) -> list[str]:
    """Return the names of the graph's inputs: those of the tokenizer, with `_a` and `_b` for a bi-encoded pair."""
    return [field + side for side in SIDES[task.encoding] for field in model.tokenizer.model_input_names]


def write_graph(model: TrainedModel, task: Task, folder: Path) -> None:
    """Write model.onnx, the tokenizer, and a config.json with the names of classes.

    The exporter analyses the Python code (`dynamo`). The older one traces one run, in which transformers omits the mask
    of a batch without padding.

    Raises:
        UserError: if torch can't export the architecture.
    """
    import onnx

    write_config(model, folder, label_fields(task) | problem_field(task))
    model.tokenizer.save_pretrained(str(folder))  # before `_inputs` sets truncation and padding, which would be saved
    fields, sides = model.tokenizer.model_input_names, SIDES[task.encoding]
    texts = pd.DataFrame({name: TRACED[:: -1 if name == "text_b" else 1] for name in task.text_columns})
    batch, longest = torch.export.Dim("batch"), model.config.encoder.max_length
    lengths = [torch.export.Dim(f"length{side}", max=longest) for side in sides]
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                Graph(model.network, task, fields).eval(),
                tuple(_inputs(model.tokenizer, task, texts)),
                dynamo=True,
                opset_version=OPSET,
                input_names=input_names(model, task),
                output_names=[output_name(task.target), "logits"],
                dynamic_shapes=(tuple({0: batch, 1: length} for length in lengths for _ in fields),),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"--format onnx: torch can't export this encoder ({error}); use another format") from error
    assert program is not None  # only without `dynamo`
    proto = program.model_proto
    graph = proto.graph
    # The exporter's metadata holds paths of the Python code, and its intermediate shapes are out of date after its
    # optimizations, which the quantizer reports as an error
    for part in (proto, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]
    onnx.save(proto, folder / GRAPH)


def quantize(folder: Path) -> None:
    """Quantize the weights of matrix products and embeddings to 8-bit integers, in place.

    Each column has its own scale; activations are scaled dynamically.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(folder / GRAPH, folder / GRAPH, per_channel=True, weight_type=QuantType.QInt8)


def compare_graph(model: TrainedModel, task: Task, folder: Path, texts: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Return the probabilities [B, C] or scores [B] by onnxruntime and by the model."""
    import onnxruntime
    from transformers import AutoTokenizer

    session = onnxruntime.InferenceSession(str(folder / GRAPH), providers=["CPUExecutionProvider"])
    tokens = _inputs(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False), task, texts)
    feed = {name: values.numpy() for name, values in zip(input_names(model, task), tokens)}
    predicted = model.predict(task.name, texts)
    expected = predicted.values if predicted.probabilities is None else predicted.probabilities
    return torch.from_numpy(session.run(None, feed)[0]), torch.from_numpy(expected).float()


def _inputs(tokenizer: Any, task: Task, texts: pd.DataFrame) -> list[Tensor]:
    """Return the graph's inputs, tensors [B, T], for the rows of a table."""
    columns = [texts[name].tolist() for name in task.text_columns]
    sequences = [[column] for column in columns] if task.encoding == "bi" else [columns]
    tokens = [tokenizer(*sequence, truncation=True, padding=True, return_tensors="pt") for sequence in sequences]
    return [encoding[field] for encoding in tokens for field in tokenizer.model_input_names]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' logs and warnings, none of which help a user."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
