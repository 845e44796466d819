"""Trained models of a finished run, for analyses that need more than its prediction table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertrio.config import Params, member_params
from bertrio.core.runtime import set_up
from bertrio.core.tasks import Task
from bertrio.inference.trained_model import TrainedModel
from bertrio.model.config import encoder_width
from bertrio.training.build import resolve_precision

ENSEMBLE = "ensemble"  # the name and folder of a soup


def load_models(params: Params, tasks: Mapping[str, Task], folder: str | Path) -> dict[str, TrainedModel]:
    """Load a model for each task of a finished run; tasks may share one.

    It is the soup if the ensemble is one, else the first member that predicts the task. For an ensemble that combines
    predictions, results are those of this member, not of the ensemble; use `bertrio.inference.predictor` for
    predictions of the whole ensemble.

    Args:
        params: the base params, with all ensemble members.
        tasks: all tasks, by name.
        folder: folder with ensemble/ and members/<name>/.

    Raises:
        UserError: if a model is missing or damaged.
    """
    members = list(params.ensemble.members)
    soup = (Path(folder) / ENSEMBLE / "heads.safetensors").exists()
    names = {
        task: members[0] if soup else next(name for name in members if task in params.answers(name)) for task in tasks
    }
    loaded: dict[str, TrainedModel] = {}
    for name in dict.fromkeys(names.values()):
        # As in prediction: a soup is computed with the base params, a member with the params of its training
        used = params if soup else member_params(params, name)
        path = Path(folder) / (ENSEMBLE if soup else f"members/{name}")
        runtime = set_up(**used.runtime.model_dump(), width=encoder_width(path / "encoder"))
        if not soup:
            runtime = resolve_precision(used, runtime)
        loaded[name] = TrainedModel.load(path, runtime, used.finetune.eval_batch_size)
    return {task: loaded[name] for task, name in names.items()}
