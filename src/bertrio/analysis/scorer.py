"""Trained models asked about any text, for what can't be read off a prediction table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from bertrio.config import Params, member_params
from bertrio.core.tasks import Predicted, Task

if TYPE_CHECKING:
    from bertrio.inference.trained_model import TrainedModel, Vectors


ENSEMBLE = "ensemble"  # the name and folder of a soup


class Scorer:
    """Predictions and vectors for texts of any task.

    It asks one model a task: the ensemble's own where that is one model (a soup), else the first member that answers
    the task. Of an ensemble that combines predictions, it speaks for that member alone, named in `models`; the whole
    of it is what `bertrio.inference.predictor` asks.

    Args:
        models: the model of each task; tasks may share one.
    """

    def __init__(self, models: Mapping[str, TrainedModel]) -> None:
        self.models = models

    @classmethod
    def load(cls, params: Params, tasks: Mapping[str, Task], models: str | Path) -> Scorer:
        """The scorer of a finished run.

        Args:
            params: the base params, with all ensemble members.
            tasks: all tasks, by name.
            models: a folder that holds ensemble/ and members/<name>/.

        Raises:
            UserError: if a model is missing or damaged.
        """
        from bertrio.core.runtime import set_up
        from bertrio.inference.trained_model import TrainedModel
        from bertrio.model.config import encoder_width
        from bertrio.training.build import resolve_precision

        members = list(params.ensemble.members)
        soup = (Path(models) / ENSEMBLE / "heads.safetensors").exists()
        asked = {
            task: members[0] if soup else next(name for name in members if task in params.answers(name))
            for task in tasks
        }
        loaded: dict[str, TrainedModel] = {}
        for name in dict.fromkeys(asked.values()):
            own = member_params(params, name)
            # As its predictions were made: a soup computes as the base params say, a member as it was trained.
            computes = params if soup else own
            folder = Path(models) / (ENSEMBLE if soup else f"members/{name}")
            runtime = set_up(**computes.runtime.model_dump(), width=encoder_width(folder / "encoder"))
            if not soup:
                runtime = resolve_precision(own, runtime)
            loaded[name] = TrainedModel.load(folder, runtime, computes.finetune.eval_batch_size)
        return cls({task: loaded[name] for task, name in asked.items()})

    def predict(self, task: str, texts: pd.DataFrame) -> Predicted:
        """What the task's model says of each row.

        Args:
            task: its name.
            texts: [N] rows with the task's text columns; others are not looked at. Empty texts are allowed.

        Returns:
            values [N], and probabilities [N, C] or raw scores [N], float64.
        """
        return self.models[task].predict(task, texts)

    def embed(self, task: str, texts: pd.DataFrame) -> Vectors:
        """The pooled vector of each row, float32 [N, H]; of pairs encoded apart the mean of both. Args as `predict`."""
        return self.models[task].embed(task, texts)
