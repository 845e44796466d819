"""Ensemble of all members: their combined predictions, or a soup, one model with the mean of their weights.

Only soups need torch, models and data, which are imported inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bertrio.config import Params, build_tasks
from bertrio.core.errors import UserError
from bertrio.core.files import whole_folder
from bertrio.core.tasks import MultiLabel
from bertrio.evaluation.ensembling import RULES, SELECTION, combine, mark_selection, record_ensemble
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import decide, read_predictions, tune, write_predictions

if TYPE_CHECKING:
    from torch import Tensor

    from bertrio.model.config import ModelConfig


def build_ensemble(
    params: Params,
    members: Mapping[str, Params],
    splits: str,
    tokenizer: str,
    models: str,
    predictions: str,
    path: str,
    folder: str,
) -> None:
    """Combine all members as set in `ensemble.combine` and write the ensemble's predictions for dev and test.

    Args:
        params: the base params.
        members: params of each member (`member_params`), by name.
        splits, tokenizer: folders of the data; only soups read them.
        models: folder with <name>/encoder and <name>/heads.safetensors of each member; only soups read it.
        predictions: folder with <name>/predictions.parquet of each member.
        path: parquet file for the ensemble's predictions.
        folder: folder for ensemble.json (`record_ensemble`) and, of a soup, encoder/, heads.safetensors and
            bertrio.json. Its previous contents are removed.

    Raises:
        UserError: if there are no labelled rows to select members on.
    """
    how, tasks = params.ensemble.combine, build_tasks(params)
    answers = {name: params.answers(name) for name in members}
    if how in RULES:
        tables = {name: read_predictions(Path(predictions) / name / "predictions.parquet") for name in members}
        table, shares = combine(tables, how, tasks, answers)
        with whole_folder(folder) as new:
            record_ensemble(new, how, list(members), shares)
        write_predictions(table, path)
        return
    from bertrio.model.multitask import save_model

    builder = SoupBuilder(params, members, models, splits, tokenizer)
    chooses = how == "greedy_soup" and len(members) > 1
    chosen = greedy_soup(list(members), builder.score) if chooses else list(members)
    table = mark_selection(builder.predict(chosen)) if chooses else builder.predict(chosen)
    if "holdout" in {members[name].finetune.select_on for name in chosen}:
        config = builder.mean_thresholds(chosen)
    else:
        config = tune(builder.config, tasks, table[table["split"] == (SELECTION if chooses else "dev")])
    weights = {name: 1 / len(chosen) if name in chosen else 0.0 for name in members}
    with whole_folder(folder) as new:
        save_model(builder.model, new, config, tokenizer)
        record_ensemble(new, how, list(members), dict.fromkeys(tasks, weights))
        write_predictions(decide(table, build_tasks(config)), path)


def average(states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    r"""Mean of several models' weights, tensor by tensor.

    .. math:: \theta = \frac{1}{M} \sum_m \theta_m

    Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves accuracy without
    increasing inference time", section 2, table 2. Summed in float64, in the order of the members' names, so that
    the result does not depend on the order of `states`.

    Args:
        states: by member, the state dict of its model.

    Returns:
        The mean of each tensor, in its original dtype.

    Raises:
        UserError: if a member lacks a tensor or has it in another shape; names the first such tensor.
    """
    names = sorted(states)
    first = states[names[0]]
    for name in names[1:]:
        for tensor in dict.fromkeys([*first, *states[name]]):
            shapes = [tuple(state[tensor].shape) if tensor in state else "missing" for state in (first, states[name])]
            if shapes[0] != shapes[1]:
                raise UserError(
                    f"ensemble.combine: a soup needs members with the same tensors, and {tensor} is {shapes[0]} in "
                    f"member {names[0]} and {shapes[1]} in member {name}; give them the same heads, or use vote or mean"
                )
    return {
        tensor: (reduce(add, (states[name][tensor].double() for name in names)) / len(names)).to(value.dtype)
        for tensor, value in first.items()
    }


def greedy_soup(members: Sequence[str], score: Callable[[Sequence[str]], float]) -> list[str]:
    """Greedy soup: add members from best to worst, each only if the soup's score does not fall.

    Wortsman et al. 2022, section 2, recipe 1. Equally good members are added in the given order. Scores are compared at
    12 decimals.

    Args:
        members: names of the members.
        score: function from members to the score of their soup; larger is better.

    Returns:
        The members in the soup, in the order in which they were added.
    """
    scores = {name: round(score([name]), 12) for name in members}
    first, *others = sorted(members, key=scores.__getitem__, reverse=True)
    chosen, best = [first], scores[first]
    for name in others:
        with_name = round(score([*chosen, name]), 12)
        if with_name >= best:
            chosen, best = [*chosen, name], with_name
    return chosen


class SoupBuilder:
    """Soups of the members' models, and their scores and predictions.

    A soup works well if its members were fine-tuned from the same weights. Members of different seeds share a
    pretrained encoder, but not fresh heads, so `greedy_soup` may select a single member.
    """

    def __init__(self, params: Params, members: Mapping[str, Params], models: str, splits: str, tokenizer: str) -> None:
        from bertrio.core.runtime import set_up
        from bertrio.model.config import encoder_width, read_model_config
        from bertrio.model.multitask import load_model
        from bertrio.training.build import load_split

        folders = [Path(models) / name for name in members]
        runtime = set_up(**params.runtime.model_dump(), width=encoder_width(folders[0] / "encoder"))
        states = {name: load_model(folder, runtime).state_dict() for name, folder in zip(members, folders)}
        self.states = {name: {key: value.cpu() for key, value in state.items()} for name, state in states.items()}
        self.model = load_model(folders[0], runtime)
        self.configs = {name: read_model_config(folder) for name, folder in zip(members, folders)}
        config, *_ = self.configs.values()
        trained = [task for task in config.tasks if any(task in other.trained for other in self.configs.values())]
        self.config = config.model_copy(update={"trained": trained})
        self.tasks, self.batch_size = build_tasks(params), params.finetune.eval_batch_size
        first = next(iter(members.values()))
        self.splits = {name: load_split(first, name, splits, tokenizer) for name in ("dev", "test")}

    def score(self, chosen: Sequence[str]) -> float:
        """Return `overall_normalized` of the soup of these members on the selection half of dev."""
        table = mark_selection(self.predict(chosen, ["dev"]))
        return evaluate_predictions(table, self.tasks)[SELECTION]["overall_normalized"]

    def predict(self, chosen: Sequence[str], splits: Sequence[str] = ("dev", "test")) -> pd.DataFrame:
        """Load the soup of these members into `model` and return its predictions table."""
        from bertrio.training.evaluator import predict

        self.model.load_state_dict(average({name: self.states[name] for name in chosen}))
        tables = [predict(self.model, self.splits[name], name, self.batch_size) for name in splits if self.splits[name]]
        return pd.concat(tables, ignore_index=True)

    def mean_thresholds(self, chosen: Sequence[str]) -> ModelConfig:
        """Return the soup's description, with the mean of these members' thresholds where params give none.

        Members that hold rows out chose theirs there. Each holds out its own, so the soup has seen almost all of them.
        """
        tuned = dict(self.config.tasks)
        for name, task in self.tasks.items():
            if isinstance(task.target, MultiLabel) and not task.target.thresholds:
                own = [self.configs[member].tasks[name].thresholds or [0.5] * task.target.size for member in chosen]
                tuned[name] = tuned[name].model_copy(update={"thresholds": np.mean(own, axis=0).tolist()})
        return self.config.model_copy(update={"tasks": tuned})
