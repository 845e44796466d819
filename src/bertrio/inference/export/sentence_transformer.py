"""Export to sentence-transformers, in the classic layout that its versions 5 and 6 and other servers load."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.tasks import Task
from bertrio.inference.export.huggingface import (
    label_fields,
    problem_field,
    save_classifier,
    write_config,
    write_encoder,
)
from bertrio.inference.trained_model import TrainedModel

# Activations of heads as modules of torch, the only ones that sentence-transformers loads by name
MODULES: dict[Any, nn.Module] = {
    F.relu: nn.ReLU(),
    F.leaky_relu: nn.LeakyReLU(),
    F.gelu: nn.GELU(),
    torch.tanh: nn.Tanh(),
}
FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_sentence_transformer(model: TrainedModel, task: Task, folder: Path) -> None:
    """Write the files that `SentenceTransformer(folder)` loads: the vectors that the task's head compares."""
    head: Any = model.network.heads[task.name]
    projection = [] if head.projection is None else [(head.projection, MODULES[head.activation])]
    _write_modules(model, folder, "", projection, {"similarity_fn_name": "cosine"})


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

    A linear head becomes transformers' own classifier, which every version loads. What that can't hold, hidden layers
    and other architectures, is written as modules, for version 6 alone: without a config.json beside modules.json,
    earlier ones refuse it, where they would take random weights.
    """
    head: Any = model.network.heads[task.name]
    activation = _name(nn.Sigmoid() if _has_sigmoid(task, head.output.out_features) else nn.Identity())
    fields, settings = label_fields(task, head.output.out_features), {"activation_fn": activation}
    fields |= problem_field(task) if task.target.sets else {}
    if not head.hidden:
        with suppress(UserError):  # the modules hold any architecture
            return save_classifier(model, head.output, folder, {**fields, "sentence_transformers": settings})
    layers = [*[(layer, MODULES[head.activation]) for layer in head.hidden], (head.output, nn.Identity())]
    _write_modules(model, folder, "0_Transformer", layers, {"model_type": "CrossEncoder", **settings})
    write_config(model, folder / "0_Transformer", fields)


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


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def _write_modules(
    model: TrainedModel, folder: Path, root: str, layers: list[tuple[nn.Linear, nn.Module]], settings: dict[str, Any]
) -> None:
    """Write the encoder in `root`, its pooling, and linear layers with their activations, as modules."""
    encoder, config = model.network.encoder, model.config.encoder
    if config.pooling == "pooler":  # a linear layer and tanh; in ALBERT the pooler is the layer itself
        pooler: Any = encoder.transformer.pooler
        layers = [(getattr(pooler, "dense", pooler), nn.Tanh()), *layers]
    kinds = ["Transformer", "Pooling", *["Dense" for _ in layers]]
    paths = [root, *[f"{number}_{kind}" for number, kind in enumerate(kinds) if number]]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, kinds))
    ]
    write_encoder(model, None, folder / root)
    write_json(
        folder / root / "sentence_bert_config.json", {"max_seq_length": config.max_length, "do_lower_case": False}
    )
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, **settings})
    write_json(folder / "modules.json", modules)
    flag = "mean_tokens" if config.pooling == "mean" else "cls_token"
    flags = {f"pooling_mode_{name}": name == flag for name in FLAGS}
    write_json(folder / paths[1] / "config.json", {"word_embedding_dimension": encoder.size, **flags})
    for path, (layer, activation) in zip(paths[2:], layers):
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": True}
        scores = {"module_output_name": "scores"} if root and path == paths[-1] else {}
        write_json(folder / path / "config.json", {**sizes, "activation_function": _name(activation), **scores})
        weights = {f"linear.{key}": value.detach().contiguous() for key, value in layer.state_dict().items()}
        save_file(weights, folder / path / "model.safetensors", metadata={"format": "pt"})
