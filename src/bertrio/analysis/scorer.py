"""Trained models of a finished run, for analyses that need more than its prediction table."""

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

    It uses one model for each task: the soup if the ensemble is one, else the first member that predicts the task. For
    an ensemble that combines predictions, results are those of this member, not of the ensemble; use
    `bertrio.inference.predictor` for predictions of the whole ensemble.

    Args:
        models: model of each task; tasks may share one.
    """

    def __init__(self, models: Mapping[str, TrainedModel]) -> None:
        self.models = models

    @classmethod
    def load(cls, params: Params, tasks: Mapping[str, Task], models: str | Path) -> Scorer:
        """Load the scorer of a finished run.

        Args:
            params: the base params, with all ensemble members.
            tasks: all tasks, by name.
            models: folder with ensemble/ and members/<name>/.

        Raises:
            UserError: if a model is missing or damaged.
        """
        from bertrio.core.runtime import set_up
        from bertrio.inference.trained_model import TrainedModel
        from bertrio.model.config import encoder_width
        from bertrio.training.build import resolve_precision

        members = list(params.ensemble.members)
        soup = (Path(models) / ENSEMBLE / "heads.safetensors").exists()
        model_names = {
            task: members[0] if soup else next(name for name in members if task in params.answers(name))
            for task in tasks
        }
        loaded: dict[str, TrainedModel] = {}
        for name in dict.fromkeys(model_names.values()):
            of_member = member_params(params, name)
            # As in prediction: a soup is computed with the base params, a member with the params of its training
            used = params if soup else of_member
            folder = Path(models) / (ENSEMBLE if soup else f"members/{name}")
            runtime = set_up(**used.runtime.model_dump(), width=encoder_width(folder / "encoder"))
            if not soup:
                runtime = resolve_precision(of_member, runtime)
            loaded[name] = TrainedModel.load(folder, runtime, used.finetune.eval_batch_size)
        return cls({task: loaded[name] for task, name in model_names.items()})

    def predict(self, task: str, texts: pd.DataFrame) -> Predicted:
        """Predict each row with the task's model.

        Args:
            task: name of the task.
            texts: [N] rows with the task's text columns; other columns are ignored. Empty texts are allowed.

        Returns:
            Values [N], and probabilities [N, C] or raw scores [N], float64.
        """
        return self.models[task].predict(task, texts)

    def embed(self, task: str, texts: pd.DataFrame) -> Vectors:
        """Return the pooled vector of each row, float32 [N, H]; of bi-encoded pairs the mean. Args as `predict`."""
        return self.models[task].embed(task, texts)
