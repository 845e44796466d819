"""`bertrio export`: a model folder as another library loads it, held against the model before it is put in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertrio.core.errors import UserError, missing_package
from bertrio.core.files import whole_folder, write_json
from bertrio.core.tasks import Task
from bertrio.inference.export import huggingface, onnx, sentence_transformer
from bertrio.inference.export.huggingface import class_names
from bertrio.inference.export.source import Row, Source

CONFIG_FILE = "export.json"  # in every export: what it is
TOLERANCE = 1e-4  # between an export and the model, as a share of the largest number where that is above 1


@dataclass(frozen=True)
class Format:
    """One kind of export.

    Attributes:
        write: `(source, task, folder)` writes it.
        read: `(source, task, folder, rows)` loads it with its own library, and gives what that says of the rows.
        expected: `(source, task, rows)` gives the same by the model itself.
        of_task: whether it holds one task, or the encoder alone.
        extra: of bertrio, which installs the packages that it takes; a key of EXTRAS, or nothing.
    """

    write: Callable[[Source, Any, Path], None]
    read: Callable[[Source, Any, Path, list[Row]], Tensor]
    expected: Callable[[Source, Any, list[Row]], Tensor]
    of_task: bool = True
    extra: str = ""


@dataclass(frozen=True)
class Exported:
    """What was exported: the `task`, or None for the encoder, and the largest `difference` from the model on `rows`."""

    task: Task | None
    difference: float
    rows: int


EXTRAS = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "sentence-transformers": ("sentence_transformers",)}
FORMATS: dict[str, Format] = {
    "encoder": Format(
        huggingface.write_encoder,
        huggingface.read_encoder,
        lambda source, task, rows: source.pooled(rows),
        of_task=False,
    ),
    "classifier": Format(huggingface.write_classifier, huggingface.read_classifier, huggingface.expected_logits),
    "cross-encoder": Format(
        sentence_transformer.write_cross_encoder,
        sentence_transformer.read_cross_encoder,
        sentence_transformer.expected_scores,
        extra="sentence-transformers",
    ),
    "sentence-transformer": Format(
        sentence_transformer.write_sentence_transformer,
        sentence_transformer.read_sentence_transformer,
        sentence_transformer.expected_vectors,
        extra="sentence-transformers",
    ),
    "onnx": Format(onnx.write_graph, onnx.read_graph, onnx.expected_answers, extra="onnx"),
}


def export_model(
    model: str | Path, to: str | Path, format: str, task: str | None = None, int8: bool = False
) -> Exported:
    """Writes a model, or one task of it, as another library loads it.

    What was written is loaded with that library and asked about a few texts, and only takes the place of what was at
    `to` if it says the same as the model, to within `TOLERANCE`. Numbers of 8 bits are another model, whose difference
    is told, not judged.

    Args:
        model: a model folder: models/members/NAME, or models/ensemble of a soup.
        to: the folder to write; what a former export left there is replaced.
        format: name in FORMATS.
        task: which task, if there are several; the encoder alone has none.
        int8: onnx: weights of the linear layers in 8 bits.

    Raises:
        UserError: if there is no such model or task, the format can't hold it, a package is missing, or the folder
            holds something else.
    """
    kind = FORMATS[format]
    _check_arguments(kind, format, task, int8)
    _check_place(Path(model), Path(to))
    source = Source.open(model)
    of = source.task(task) if kind.of_task else None
    rows = source.probes(of)
    with whole_folder(to) as folder:
        kind.write(source, of, folder)
        if int8:
            onnx.quantise(folder)
        write_json(folder / CONFIG_FILE, _about(source, format, of, int8))
        difference = _difference(kind.read(source, of, folder, rows), kind.expected(source, of, rows))
        if not int8 and not difference <= TOLERANCE:
            raise UserError(
                f"--format {format}: what was written says something else than the model (by {difference:.2g}, at most "
                f"{TOLERANCE} expected), so it was not kept; this encoder's architecture is not fit for this format"
            )
    return Exported(of, difference, len(rows))


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number where that is above 1; infinite if shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    scale = max(1.0, expected.abs().max().item())
    return ((found - expected).abs().max() / scale).item() if torch.isfinite(found).all() else float("inf")


def _check_arguments(kind: Format, format: str, task: str | None, int8: bool) -> None:
    if int8 and format != "onnx":
        raise UserError(f"--int8: goes with --format onnx, found {format}")
    if task and not kind.of_task:
        raise UserError(f"--task: found {task}, but --format {format} holds the encoder alone; leave it out")
    missing = [name for name in EXTRAS.get(kind.extra, ()) if find_spec(name) is None]
    if missing:
        raise missing_package(f"--format {format}", missing, kind.extra)


def _check_place(model: Path, to: Path) -> None:
    """Checks that nothing but a former export is replaced.

    Raises:
        UserError: if `to` has no name of its own, is in or around the model, or holds something else.
    """
    if not to.name or to.name == "..":  # its own name is needed, to put a whole folder in its place at once
        raise UserError(f"--to {to}: expected the name of a folder that may be made anew, such as {to / 'exported'}")
    inner, outer = model.resolve(), to.resolve()
    if inner == outer or inner in outer.parents or outer in inner.parents:
        raise UserError(f"--to {to}: is in or around the model's folder {model}; name another place")
    if to.is_dir() and not any(to.iterdir()):
        return
    if to.exists() and not (to / CONFIG_FILE).is_file():
        raise UserError(f"--to {to}: is there and no former export (it has no {CONFIG_FILE}); name another place")


def _about(source: Source, format: str, task: Task | None, int8: bool) -> dict[str, Any]:
    """What export.json says: what the folder holds, and how its answers are to be read."""
    encoder = source.config.encoder
    found = {"format": format, "pooling": encoder.pooling, "max_length": encoder.max_length}
    if task is None:
        return found
    target = task.target
    found |= {"task": task.name, "kind": task.kind} | ({"encoding": task.encoding} if task.kind == "pair" else {})
    found |= {"classes": class_names(target)} if target.discrete else {"range": [target.low, target.high]}
    if format == "onnx":
        found |= {"inputs": onnx.input_names(task, source.fields), "output": onnx.output_name(target), "int8": int8}
    return found
