"""A model folder, loaded for prediction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from bertrio.config import build_tasks
from bertrio.core.errors import UserError
from bertrio.core.runtime import Runtime
from bertrio.core.tasks import Predicted, Task
from bertrio.data.batches import Batch, Rows
from bertrio.model.config import read_model_config
from bertrio.model.multitask import MultitaskModel, load_model
from bertrio.model.tokenizer import load_tokenizer

Vectors = NDArray[np.float32]


class TrainedModel:
    """A model with its tokenizer, which predicts any number of texts from any thread.

    Texts come as a table with the task's text columns (`Task.text_columns`); rows of similar length are batched, and
    results are in the order of the rows. Texts may be empty here: callers have cleaned them.

    Args:
        name: name of its folder.
        network: the model.
        tokenizer: a transformers fast tokenizer.
        tasks: tasks by name.
        trained: names of the tasks whose heads were trained.
        max_length: tokens kept of each sequence.
        batch_size: rows in a batch.
    """

    def __init__(
        self,
        name: str,
        network: MultitaskModel,
        tokenizer: Any,
        tasks: dict[str, Task],
        trained: list[str],
        max_length: int,
        batch_size: int,
    ) -> None:
        self.name, self.network, self.tokenizer = name, network.eval(), tokenizer
        self.tasks, self.trained = tasks, trained
        self.max_length, self.batch_size = max_length, batch_size
        if network.runtime.compute != torch.float32:
            _cast_products(network.encoder.transformer, network.runtime.compute)
        self._tokenizer_lock = threading.Lock()  # truncation is a state of the tokenizer

    @classmethod
    def load(cls, folder: str | Path, runtime: Runtime, batch_size: int) -> TrainedModel:
        """Load a model folder.

        Raises:
            UserError: if there is none, or a part of it is missing or damaged.
        """
        network, config = load_model(folder, runtime), read_model_config(folder)
        tokenizer = load_tokenizer(Path(folder) / "encoder")
        length = config.encoder.max_length
        return cls(Path(folder).name, network, tokenizer, build_tasks(config), config.trained, length, batch_size)

    @torch.inference_mode()
    def predict(self, task: str, texts: pd.DataFrame) -> Predicted:
        """Predict each row: values [N], and probabilities [N, C] or raw scores [N], float64.

        Raises:
            UserError: if an output is not finite.
        """
        target = self.tasks[task].target
        batches = [
            (batch.rows, self.network(task, batch.inputs).outputs.float().cpu().numpy())
            for batch in self._batches(task, texts)
        ]
        outputs = np.empty((len(texts), batches[0][1].shape[1] if batches else target.size))
        for rows, values in batches:
            outputs[rows] = values
        _check_finite(task, outputs)
        return target.predict(outputs)

    @torch.inference_mode()
    def embed(self, task: str, texts: pd.DataFrame) -> Vectors:
        """Return the pooled vector of each row, float32 [N, H]; the mean of both for bi-encoded pairs."""
        vectors = np.empty((len(texts), self.network.encoder.size), dtype=np.float32)
        for batch in self._batches(task, texts):
            pooled = [self._pooled(tokens) for tokens in batch.inputs]
            total = pooled[0] if len(pooled) == 1 else pooled[0] + pooled[1]
            vectors[batch.rows] = (total / len(pooled)).cpu().numpy()
        return vectors

    @torch.inference_mode()
    def encode(self, task: str, texts: list[str]) -> Vectors:
        """Return the vectors [N, H] that the head of a bi-encoded task compares: pooled, then projected if it projects.

        Raises:
            UserError: if an output is not finite.
        """
        alone = Task(task, "single", "cross", self.tasks[task].target)  # each text makes a sequence of its own
        head: Any = self.network.heads[task]
        vectors = np.empty((len(texts), self.network.encoder.size), dtype=np.float32)
        for batch in self._batches(task, pd.DataFrame({"text": texts}, dtype=object), alone):
            vectors[batch.rows] = head.project([self._pooled(batch.inputs[0])])[0].cpu().numpy()
        _check_finite(task, vectors)
        return vectors

    def word_vectors(self) -> Vectors:
        """Return the encoder's embedding of each token of its vocabulary, float32 [V, H]."""
        transformer: Any = self.network.encoder.transformer
        weights = transformer.get_input_embeddings().weight
        return weights.detach().float().cpu().numpy()

    def _pooled(self, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.network.encode(self.network.embed(tokens), tokens)

    def _batches(self, task: str, texts: pd.DataFrame, spec: Task | None = None) -> Iterator[Batch]:
        """Yield batches of the rows, longest first, on the model's device."""
        if texts.empty:
            return
        spec = spec or self.tasks[task]
        with self._tokenizer_lock:
            rows = Rows(
                texts[list(spec.text_columns)].assign(id="", label=np.nan), spec, self.tokenizer, self.max_length
            )
        for batch in rows.sorted_batches(self.batch_size):
            yield batch.to(self.network.runtime.device)


def _check_finite(task: str, outputs: NDArray[np.floating[Any]]) -> None:
    if not np.isfinite(outputs).all():
        raise UserError(f"task {task}: the model's outputs are not finite; its training diverged, train it again")


def _cast_products(transformer: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast weights once instead of in every pass, as autocast does: faster for single texts, with equal results."""
    for module in transformer.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(dtype)
