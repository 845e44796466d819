"""`bertrio export`: write a model for another library, and compare it with the model before it is put in place."""

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
from bertrio.core.tasks import Score, Task
from bertrio.inference.export import huggingface, onnx, sentence_transformer
from bertrio.inference.export.huggingface import class_names
from bertrio.inference.export.source import Row, Source

CONFIG_FILE = "export.json"  # description of the export, in each one
TOLERANCE = 1e-4  # between an export and the model, as a share of the largest number where that is above 1


@dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        write: `(source, task, folder)` writes the export.
        read: `(source, task, folder, rows)` loads it with its library and returns that library's outputs for the rows.
        expected: `(source, task, rows)` returns the same outputs by the model itself.
        of_task: whether the export holds one task, or the encoder alone.
        extra: extra of bertrio that installs `packages`.
        packages: packages that the format needs besides those of bertrio.
    """

    write: Callable[[Source, Any, Path], None]
    read: Callable[[Source, Any, Path, list[Row]], Tensor]
    expected: Callable[[Source, Any, list[Row]], Tensor]
    of_task: bool = True
    extra: str = ""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """An export: its task (None for the encoder), and its largest difference from the model on so many rows."""

    task: Task | None
    difference: float
    rows: int


SENTENCE_TRANSFORMERS = ("sentence-transformers", ("sentence_transformers",))
FORMATS: dict[str, Format] = {
    "encoder": Format(
        huggingface.write_encoder, huggingface.read_encoder, lambda source, task, rows: source.pooled(rows), False
    ),
    "classifier": Format(huggingface.write_classifier, huggingface.read_classifier, huggingface.expected_logits),
    "cross-encoder": Format(
        sentence_transformer.write_cross_encoder,
        sentence_transformer.read_cross_encoder,
        sentence_transformer.expected_scores,
        True,
        *SENTENCE_TRANSFORMERS,
    ),
    "sentence-transformer": Format(
        sentence_transformer.write_sentence_transformer,
        sentence_transformer.read_sentence_transformer,
        sentence_transformer.expected_vectors,
        True,
        *SENTENCE_TRANSFORMERS,
    ),
    "onnx": Format(
        onnx.write_graph,
        onnx.read_graph,
        onnx.expected_answers,
        True,
        "onnx",
        ("onnx", "onnxruntime", "onnxscript"),
    ),
}


def export_model(
    model: str | Path, to: str | Path, format: str, task: str | None = None, int8: bool = False
) -> Exported:
    """Write a model, or one task of it, in the format of another library.

    The export is loaded with that library, and replaces what is at `to` only if its outputs for a few texts equal
    those of the model within `TOLERANCE`. With 8-bit weights the difference is reported, not checked.

    Args:
        model: model folder: models/members/NAME, or models/ensemble of a soup.
        to: folder to write; a former export there is replaced.
        format: name in FORMATS.
        task: task to export, needed if there are several; the encoder alone has none.
        int8: quantize the weights to 8 bits (onnx).

    Raises:
        UserError: if there is no such model or task, the format can't hold it, a package is missing, or the folder
            holds something else.
    """
    kind = FORMATS[format]
    _check_arguments(kind, format, task, int8)
    _check_place(Path(model), Path(to))
    source = Source.open(model)
    spec = source.task(task) if kind.of_task else None
    rows = source.probes(spec)
    with whole_folder(to) as folder:
        kind.write(source, spec, folder)
        if int8:
            onnx.quantize(folder)
        write_json(folder / CONFIG_FILE, _about(source, format, spec, int8))
        difference = _difference(kind.read(source, spec, folder, rows), kind.expected(source, spec, rows))
        if not int8 and not difference <= TOLERANCE:
            raise UserError(
                f"--format {format}: the export differs from the model by {difference:.2g}, expected "
                f"{TOLERANCE} at most, so it was not kept; this format does not fit the encoder's architecture"
            )
    return Exported(spec, difference, len(rows))


def _difference(exported: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value if that is above 1; infinite if shapes differ."""
    if exported.shape != expected.shape:
        return float("inf")
    scale = max(1.0, expected.abs().max().item())
    return ((exported - expected).abs().max() / scale).item() if torch.isfinite(exported).all() else float("inf")


def _check_arguments(kind: Format, format: str, task: str | None, int8: bool) -> None:
    if int8 and format != "onnx":
        raise UserError(f"--int8: goes with --format onnx, found {format}")
    if task and not kind.of_task:
        raise UserError(f"--task: found {task}, but --format {format} holds the encoder alone; leave it out")
    missing = [name for name in kind.packages if find_spec(name) is None]
    if missing:
        raise missing_package(f"--format {format}", missing, kind.extra)


def _check_place(model: Path, to: Path) -> None:
    """Check that nothing but a former export is replaced.

    Raises:
        UserError: if `to` has no name, is in or around the model, or holds something else.
    """
    if not to.name or to.name == "..":
        raise UserError(f"--to {to}: expected the name of a folder that may be made anew, such as {to / 'exported'}")
    inner, outer = model.resolve(), to.resolve()
    if inner == outer or inner in outer.parents or outer in inner.parents:
        raise UserError(f"--to {to}: is in or around the model's folder {model}; name another place")
    if to.is_dir() and not any(to.iterdir()):
        return
    if to.exists() and not (to / CONFIG_FILE).is_file():
        raise UserError(f"--to {to}: is there and no former export (it has no {CONFIG_FILE}); name another place")


def _about(source: Source, format: str, task: Task | None, int8: bool) -> dict[str, Any]:
    """Return the contents of export.json: what the folder holds, and how to read its outputs."""
    encoder = source.config.encoder
    about: dict[str, Any] = {"format": format, "pooling": encoder.pooling, "max_length": encoder.max_length}
    if task is None:
        return about
    target = task.target
    about |= {"task": task.name, "kind": task.kind} | ({"encoding": task.encoding} if task.kind == "pair" else {})
    about |= {"range": [target.low, target.high]} if isinstance(target, Score) else {"classes": class_names(target)}
    if format == "onnx":
        about |= {"inputs": onnx.input_names(task, source.fields), "output": onnx.output_name(target), "int8": int8}
    return about
