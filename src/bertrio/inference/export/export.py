"""`bertrio export`: write a model in the format of another library, and check it against the model."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from bertrio.core.errors import UserError
from bertrio.core.files import read_json, whole_folder, write_json
from bertrio.core.runtime import Runtime
from bertrio.core.tasks import TEXT_COLUMNS, MultiLabel, Score, Task
from bertrio.inference.export import huggingface, onnx
from bertrio.inference.export import sentence_transformer as sbert
from bertrio.inference.export.hub import write_export_card
from bertrio.inference.trained_model import TrainedModel
from bertrio.model.heads import HEADS
from bertrio.model.multitask import HEADS_FILE
from bertrio.model.names import sha256

CONFIG_FILE = "export.json"  # description of the export, in its folder
TOLERANCE = 1e-4  # largest difference from the model, relative to the largest value if that is above 1
PROBE_WORDS = (0, 1, 2, 5, 12, 40)  # words in the first text of each probe; one more probe has too many tokens


@dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        write: `(model, task, folder)` writes the export; without a task, the encoder alone.
        compare: `(model, task, folder, texts)` loads the export with its library, and returns the outputs for the
            texts by the export and by the model.
        kinds: kinds of tasks that it supports; () for the encoder alone.
        encodings: encodings that it supports.
        heads: names of the heads that it supports.
    """

    write: Callable[[TrainedModel, Any, Path], None]
    compare: Callable[[TrainedModel, Any, Path, pd.DataFrame], tuple[Tensor, Tensor]]
    kinds: tuple[str, ...] = ("single", "pair")
    encodings: tuple[str, ...] = ("cross", "bi")
    heads: tuple[str, ...] = tuple(HEADS)


FORMATS: dict[str, Format] = {
    "encoder": Format(huggingface.write_encoder, huggingface.compare_encoder, kinds=()),
    "classifier": Format(
        huggingface.write_classifier, huggingface.compare_classifier, encodings=("cross",), heads=("linear",)
    ),
    "cross-encoder": Format(
        sbert.write_cross_encoder, sbert.compare_cross_encoder, ("pair",), ("cross",), ("linear", "mlp")
    ),
    "sentence-transformer": Format(
        sbert.write_sentence_transformer, sbert.compare_sentence_transformer, ("pair",), ("bi",)
    ),
    "onnx": Format(onnx.write_graph, onnx.compare_graph),
}


def export_model(
    model: str | Path, to: str | Path, format: str, task: str | None = None, int8: bool = False, name: str | None = None
) -> float:
    """Write a model, or one task of it, in the format of another library.

    The export is loaded with that library, and replaces the folder `to` only if its outputs for a few texts equal those
    of the model within `TOLERANCE`. With 8-bit weights the difference is reported, not checked.

    Args:
        model: model folder: models/members/NAME, or models/ensemble of a soup.
        to: folder to write; an earlier export there is replaced, unless anything has been added to it or changed.
        format: name in FORMATS.
        task: task to export, needed if there are several; the encoder alone has none.
        int8: quantize the weights to 8 bits (onnx).
        name: what the card calls the export: an id on the hub; None for the folder's name.

    Returns:
        The largest difference from the model.

    Raises:
        UserError: if there is no such model or task, the format does not support it, or the folder is not an export
            as it was written.
        ModuleNotFoundError: if the format's library is not installed.
    """
    export_format, to = FORMATS[format], Path(to).resolve()
    if int8 and format != "onnx":
        raise UserError(f"--int8: goes with --format onnx, found {format}")
    _check_place(to)
    if not (Path(model) / HEADS_FILE).is_file():
        raise UserError(
            f"--model {model}: is no model folder (it has no {HEADS_FILE}); dvc repro makes members, such as "
            "models/members/base, and of a soup (ensemble.combine) models/ensemble"
        )
    trained = TrainedModel.load(model, Runtime(torch.device("cpu"), torch.float32))
    spec = _pick_task(trained, format, task)
    texts = _probe_texts(trained, "single" if spec is None else spec.kind)
    with whole_folder(to) as folder:
        export_format.write(trained, spec, folder)
        if int8:
            onnx.quantize(folder)
        write_export_card(folder, Path(model), trained, format, spec, name or to.name)
        description = _description(trained, format, spec, int8)
        write_json(folder / CONFIG_FILE, {**description, "files": _digests(folder)})
        difference = _difference(*export_format.compare(trained, spec, folder, texts))
        if not int8 and not difference <= TOLERANCE:
            raise UserError(
                f"--format {format}: the export differs from the model by {difference:.2g}, expected "
                f"{TOLERANCE} at most, so it was not kept; this format does not fit the encoder's architecture"
            )
        _check_place(to)  # again, since a moment has passed
    return difference


def _check_place(to: Path) -> None:
    """Check that nothing but a former export, as it was written, is in the folder `to`.

    Raises:
        UserError: if anything else would be lost; names it.
    """
    if not to.exists() or (to.is_dir() and not any(to.iterdir())):
        return
    if not (to / CONFIG_FILE).is_file():
        raise UserError(f"--to {to}: is there and no former export (it has no {CONFIG_FILE}); name another place")
    try:
        written = dict(read_json(to / CONFIG_FILE)["files"])
    except (ValueError, LookupError, TypeError):  # of an older version, or changed
        written = {}
    for name, digest in _digests(to).items():
        if name != CONFIG_FILE and written.get(name) != digest:
            raise UserError(
                f"--to {to}: holds {name}, which no export has written so; move the folder away, or name another place"
            )


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in the folder; that of links and devices is empty."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    return {
        path.relative_to(folder).as_posix(): sha256(path) if path.is_file() and not path.is_symlink() else ""
        for path in paths
    }


def _pick_task(model: TrainedModel, format: str, name: str | None) -> Task | None:
    """Return the task of that name, or the only one there is; None for the encoder alone."""
    supported, known = FORMATS[format], ", ".join(model.trained)
    if not supported.kinds:
        if name:
            raise UserError(f"--task: found {name}, but --format {format} holds the encoder alone; leave it out")
        return None
    name = model.trained[0] if name is None and len(model.trained) == 1 else name
    if name not in model.trained:
        raise UserError(f"--task: found {name or 'none'}, expected one of {known}, which {model.name} was trained on")
    task, head = model.tasks[name], model.config.tasks[name].head
    limits = {"kind": supported.kinds, "encoding": supported.encodings, "head": supported.heads}
    for name, value in {"kind": task.kind, "encoding": task.encoding, "head": head}.items():
        if value not in limits[name]:
            raise UserError(
                f"task {task.name}: has {name} {value}, but --format {format} holds {name} "
                f"{' or '.join(limits[name])}; --format onnx holds any task"
            )
    return task


def _probe_texts(model: TrainedModel, kind: str) -> pd.DataFrame:
    """Return a few rows of random words of the vocabulary, from none to more than the model's maximum length."""
    pieces = {re.sub(r"[\W\d_]", "", token) for token in model.tokenizer.get_vocab()}
    words, draw = sorted(pieces - {""}) or ["word"], random.Random(0)
    texts = [" ".join(draw.choices(words, k=count)) for count in (*PROBE_WORDS, model.config.encoder.max_length)]
    return pd.DataFrame(dict(zip(TEXT_COLUMNS[kind], (texts, texts[3:] + texts[:3]))), dtype=object)


def _difference(exported: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value if that is above 1; infinite if shapes differ."""
    if exported.shape != expected.shape or not exported.isfinite().all():
        return float("inf")
    return ((exported - expected).abs().max() / max(1.0, expected.abs().max().item())).item()


def _description(model: TrainedModel, format: str, task: Task | None, int8: bool) -> dict[str, Any]:
    """Return the contents of export.json: the model, and the meaning of its inputs and outputs."""
    description: dict[str, Any] = {"format": format, **model.config.encoder.model_dump(exclude={"name"})}
    if task is None:
        return description
    target = task.target
    description |= {"task": task.name, "kind": task.kind} | ({"encoding": task.encoding} if task.kind == "pair" else {})
    description |= (
        {"range": [target.low, target.high]} if isinstance(target, Score) else {"classes": list(target.class_names)}
    )
    if isinstance(target, MultiLabel):
        description["thresholds"] = list(target.thresholds) or [0.5] * target.size
    if format == "onnx":
        description |= {"inputs": onnx.input_names(model, task), "output": onnx.output_name(target), "int8": int8}
    return description
