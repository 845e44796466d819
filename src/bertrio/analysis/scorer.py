"""Trained models asked about any text, for what can't be read off a prediction table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from bertrio.params import Params, member_params
from bertrio.tasks import Array, Predicted, Task

if TYPE_CHECKING:
    from bertrio.data.batches import Rows
    from bertrio.model.multitask import MultitaskModel


ENSEMBLE = "ensemble"  # the name and folder of a soup


class Model(NamedTuple):
    """A trained model, its name (a member, or `ensemble` for a soup), and what its texts are cut and batched by."""

    name: str
    network: MultitaskModel
    max_length: int
    batch_size: int


class Scorer:
    """Predictions and vectors for texts of any task.

    It asks one model a task: the ensemble's own where that is one model (a soup), else the first member that answers
    the task. Of an ensemble that combines predictions, it speaks for that member alone, named in `models`.

    Args:
        tasks: all tasks, by name.
        models: the model of each task; tasks may share one.
        tokenizer: a transformers fast tokenizer.
    """

    def __init__(self, tasks: Mapping[str, Task], models: Mapping[str, Model], tokenizer: Any) -> None:
        self.tasks, self.models, self.tokenizer = tasks, models, tokenizer

    @classmethod
    def load(cls, params: Params, tasks: Mapping[str, Task], models: str | Path, tokenizer: str | Path) -> Scorer:
        """The scorer of a finished run.

        Args:
            params: the base params, with all ensemble members.
            tasks: all tasks, by name.
            models: a folder that holds ensemble/ and members/<name>/.
            tokenizer: the tokenizer's folder.

        Raises:
            UserError: if a model is missing, or is not the one that params describe.
        """
        from bertrio.model.multitask import load_model
        from bertrio.model.tokenizer import load_tokenizer
        from bertrio.runtime import set_up
        from bertrio.training.build import fine_enough

        members = list(params.ensemble.members)
        soup = (Path(models) / "ensemble" / "heads.safetensors").exists()
        asked = {
            task: members[0] if soup else next(name for name in members if task in params.answers(name))
            for task in tasks
        }
        loaded: dict[str, Model] = {}
        for name in dict.fromkeys(asked.values()):
            own = member_params(params, name)
            # As its predictions were made: a soup computes as the base params say, a member as it was trained.
            computes = params if soup else own
            runtime = set_up(**computes.runtime.model_dump(), width=computes.encoder.width)
            if not soup:
                runtime = fine_enough(own, runtime)
            called, folder = (ENSEMBLE, ENSEMBLE) if soup else (name, f"members/{name}")
            network = load_model(own, Path(models) / folder, runtime)
            loaded[name] = Model(called, network, own.encoder.max_length, computes.finetune.eval_batch_size)
        return cls(tasks, {task: loaded[name] for task, name in asked.items()}, load_tokenizer(tokenizer))

    def predict(self, task: str, texts: pd.DataFrame) -> Predicted:
        """What the task's model says of each row.

        Args:
            task: its name.
            texts: [N] rows with the task's text columns; others are not looked at. Empty texts are allowed.

        Returns:
            values [N], and probabilities [N, C] or raw scores [N], float64.
        """
        from bertrio.training.loop import infer

        target = self.tasks[task].target
        if texts.empty:
            return target.predict(np.zeros((0, target.size)))
        model = self.models[task]
        return target.predict(infer(model.network, self._rows(task, texts), model.batch_size))

    def embed(self, task: str, texts: pd.DataFrame) -> Array:
        """The pooled vector of each row, float32 [N, H]; of pairs encoded apart the mean of both. Args as `predict`."""
        model = self.models[task]
        vectors = np.empty((len(texts), model.network.encoder.size), dtype=np.float32)
        for rows, pooled in self._pooled(task, texts):
            vectors[rows] = pooled
        return vectors

    def word_vectors(self, task: str) -> Array:
        """The encoder's own embedding of each token of its vocabulary, float32 [V, H]."""
        weights = self.models[task].network.encoder.transformer.get_input_embeddings().weight
        return weights.detach().float().cpu().numpy()

    def _pooled(self, task: str, texts: pd.DataFrame) -> Iterator[tuple[Array, Array]]:
        """Positions of the rows of a batch and their vectors, batch by batch."""
        import torch

        model = self.models[task]
        network = model.network.eval()
        if texts.empty:
            return
        with torch.inference_mode():
            for batch in self._rows(task, texts).sorted_batches(model.batch_size):
                batch = batch.to(network.runtime.device)
                pooled = [network.encode(network.embed(tokens), tokens) for tokens in batch.inputs]
                yield batch.rows, (sum(pooled) / len(pooled)).cpu().numpy()

    def _rows(self, task: str, texts: pd.DataFrame) -> Rows:
        from bertrio.data.batches import Rows

        of = self.tasks[task]
        frame = texts[list(of.text_columns)].assign(id="", label=np.nan)
        return Rows(frame, of, self.tokenizer, self.models[task].max_length)


def whose(models: Mapping[str, str], members: Sequence[str]) -> str:
    """A sentence that says which members figures are of, where the ensemble is more than one model; else nothing.

    Args:
        models: the name of the model that was asked, by task.
        members: the names of all members.
    """
    own = {task: name for task, name in models.items() if name != ENSEMBLE}
    if not own or len(members) < 2:
        return ""
    tasks = {name: [task for task, asked in own.items() if asked == name] for name in dict.fromkeys(own.values())}
    named = "; ".join(f"{name} for {', '.join(asked)}" for name, asked in tasks.items())
    return f"One member was asked for each task, not the ensemble: {named}."
