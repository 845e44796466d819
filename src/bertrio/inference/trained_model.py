"""A model folder, loaded for prediction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrio.config import build_tasks
from bertrio.core.errors import UserError
from bertrio.core.runtime import Runtime
from bertrio.core.tasks import Array, Predicted, Task
from bertrio.data.batches import Batch, Rows
from bertrio.data.tokens import tokenise
from bertrio.model.config import ModelConfig, read_model_config
from bertrio.model.multitask import MultitaskModel, load_model
from bertrio.model.tokenizer import load_tokenizer

Vectors = NDArray[np.float32]


class TrainedModel:
    """A model with its tokenizer, which predicts texts. Safe to use from several threads.

    Texts come as a table with the task's text columns (`Task.text_columns`). Rows of similar length are batched, and
    results are in the order of the rows. Texts are not checked: callers clean them.

    Args:
        name: name of the model's folder.
        network: the model.
        tokenizer: a transformers fast tokenizer.
        config: contents of bertrio.json.
        batch_size: rows in a batch.

    Attributes:
        tasks: tasks by name.
        trained: names of the tasks whose heads were trained.
    """

    def __init__(
        self, name: str, network: MultitaskModel, tokenizer: Any, config: ModelConfig, batch_size: int
    ) -> None:
        self.name, self.network, self.tokenizer = name, network.eval(), tokenizer
        self.config, self.batch_size = config, batch_size
        self.tasks, self.trained = build_tasks(config), config.trained
        if network.runtime.compute != torch.float32:
            _cast_products(network.encoder.transformer, network.runtime.compute)
        self._tokenizer_lock = threading.Lock()  # tokenizers keep truncation as state

    @classmethod
    def load(cls, folder: str | Path, runtime: Runtime, batch_size: int = 64) -> TrainedModel:
        """Load a model folder.

        Raises:
            UserError: if there is none, or a part of it is missing or damaged.
        """
        network, config = load_model(folder, runtime), read_model_config(folder)
        tokenizer, transformer = load_tokenizer(Path(folder) / "encoder"), network.encoder.transformer
        rows = transformer.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            raise UserError(
                f"{folder}/encoder: found a tokenizer of {len(tokenizer)} tokens, expected {rows} tokens at most"
            )
        tokenizer.model_max_length = config.encoder.max_length  # for exports, which are saved with it
        return cls(Path(folder).name, network, tokenizer, config, batch_size)

    def outputs(self, task: str, texts: pd.DataFrame) -> Array:
        """Return the outputs of the task's head for each row, float64 [N, C].

        Raises:
            UserError: if an output is not finite.
        """
        spec = self.tasks[task]
        outputs = self._collect(spec, texts, spec.target.size, lambda batch: self.network(task, batch.inputs).outputs)
        return outputs.astype(np.float64)

    def predict(self, task: str, texts: pd.DataFrame) -> Predicted:
        """Predict each row: values [N], and probabilities [N, C] or raw scores [N], float64. Errors as `outputs`."""
        return self.tasks[task].target.predict(self.outputs(task, texts))

    def pooled(self, task: str, texts: pd.DataFrame) -> Vectors:
        """Return the pooled vectors of each row, float32 [N, texts, H]; a cross-encoded pair is one text."""
        size = self.network.encoder.size
        return self._collect(self.tasks[task], texts, size, lambda batch: torch.stack(self._pooled(batch), dim=1))

    def encode(self, texts: list[str], task: str | None = None) -> Vectors:
        """Return the pooled vector of each text, float32 [N, H]; with a bi-encoded task, as its head compares them."""
        head: Any = self.network.heads[task] if task else None
        single = replace(self.tasks[task or next(iter(self.tasks))], kind="single", encoding="cross")
        project = head.project if head else list
        table, size = pd.DataFrame({"text": texts}, dtype=object), self.network.encoder.size
        return self._collect(single, table, size, lambda batch: project(self._pooled(batch))[0])

    def word_vectors(self) -> Vectors:
        """Return the encoder's embedding of each token of its vocabulary, float32 [V, H]."""
        transformer: Any = self.network.encoder.transformer
        return transformer.get_input_embeddings().weight.detach().float().cpu().numpy()

    def _pooled(self, batch: Batch) -> list[Tensor]:
        return [self.network.encode(self.network.embed(tokens), tokens) for tokens in batch.inputs]

    @torch.inference_mode()
    def _collect(
        self, task: Task, texts: pd.DataFrame, width: int, compute: Callable[[Batch], Tensor]
    ) -> NDArray[np.float32]:
        """Return `compute(batch)` [B, width] for all rows; batches go longest first, on the model's device."""
        if texts.empty:
            return np.empty((0, width), dtype=np.float32)
        with self._tokenizer_lock:
            frame = texts[list(task.text_columns)].assign(id="", label=np.nan)
            rows = Rows(frame, task, tokenise(frame, task, self.tokenizer, self.config.encoder.max_length))
        batches = list(rows.sorted_batches(self.batch_size))
        device = self.network.runtime.device
        values = np.concatenate([compute(batch.to(device)).float().cpu().numpy() for batch in batches])
        if not np.isfinite(values).all():
            raise UserError(
                f"task {task.name}: the model's outputs are not finite; its training diverged, train it again"
            )
        return values[np.argsort(np.concatenate([batch.rows for batch in batches]))]


def _cast_products(transformer: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast weights of linear layers once, where autocast casts them in every pass: faster, with equal results."""
    for module in transformer.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(dtype)
