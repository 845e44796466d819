"""Trains settings of the small project in several processes, and tries what processes tell each other.

    python tests/distributed_run.py 2 FOLDER

FOLDER is the small project's root (tests/training/conftest.py) with the settings as settings/<name>.yaml. What comes
of each goes to weights/<name>-2.safetensors and .json; messages-<rank>.json is written by each process.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # comes with accelerate
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from bertrio.config import load_params
from bertrio.core.distributed import ALONE, Processes, init_distributed
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.data.batches import Split
from bertrio.model import encoder
from bertrio.model.multitask import MultitaskModel, build_model
from bertrio.training.build import add_unlabelled, build_trainer, load_split
from bertrio.training.loop import Trainer, infer


class Norms:
    """A tracker that writes down the norms of the gradients, before clipping."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Takes the curves' values of one step."""
        self.norms.append(float(values["grad_norm"]))


def built(settings: Path, processes: Processes) -> tuple[Trainer, MultitaskModel, Split]:
    """The trainer of one setting, the model that it scores, and the rows; in FOLDER."""
    params = load_params(settings)
    runtime = set_up(**params.runtime.model_dump(), process_group=processes)
    model = build_model(params, "models/encoder", runtime)
    rows = load_split(params, "train", "data/splits", "models/tokenizer")
    rows = add_unlabelled(params, rows, "data/splits", "models/tokenizer")
    return *build_trainer(params, model, {task: rows[task] for task in params.trains}, Norms()), rows


def weights(trainer: Trainer, scored: MultitaskModel) -> dict[str, Tensor]:
    """All that was trained, by name."""
    parts = {"model": trainer.model, "scored": scored, "weighting": trainer.objective.weighting}
    states = {part: module.state_dict() for part, module in parts.items()}
    return {f"{part}.{name}": value.clone() for part, state in states.items() for name, value in state.items()}


def train(settings: Path, processes: Processes) -> Trainer:
    """Trains one setting, and writes weights and what was told of them; in FOLDER.

    The small vocabulary counts as a large one, with sparse gradients, where the setting's name says so.
    """
    usual, encoder.MANY_WORDS = encoder.MANY_WORDS, 100 if "sparse" in settings.stem else encoder.MANY_WORDS
    trainer, scored, rows = built(settings, processes)
    losses = [log.losses for log in trainer.run(settings.stem)]
    encoder.MANY_WORDS = usual
    processes.check_equal(scored.parameters())
    together = {task: infer(scored, split, 7) for task, split in rows.items()}
    scored.runtime = replace(scored.runtime, processes=ALONE)
    same = all(np.array_equal(infer(scored, split, 7), together[task]) for task, split in rows.items())
    trained = weights(trainer, scored)
    if processes.is_main:
        into = Path("weights") / f"{settings.stem}-{processes.world_size}"
        save_file(trained, f"{into}.safetensors")
        record = {
            "losses": losses, "conflicts": trainer.combiner.conflicts, "rows": trainer.meter.rows_seen,
            "same_outputs": same, "norms": trainer.tracker.norms,
        }  # fmt: skip
        Path(f"{into}.json").write_text(json.dumps(record))
    return trainer


def messages(processes: Processes) -> dict[str, Any]:
    """What a process is told where weights differ, and the addresses where it listens."""
    with pytest.raises(UserError) as unequal:
        processes.check_equal([torch.zeros(2), torch.full((1, 1), float(processes.rank))])
    listens = [socket.laddr.ip for socket in psutil.Process().net_connections() if socket.status == "LISTEN"]
    return {"unequal": str(unequal.value), "listens": listens}


def main(count: str, folder: str) -> None:
    os.chdir(folder)
    processes = init_distributed(int(count), "cpu")
    Path(f"messages-{processes.rank}.json").write_text(json.dumps(messages(processes)))
    for settings in sorted(Path("settings").glob("*.yaml")):
        train(settings, processes)


if __name__ == "__main__":
    main(*sys.argv[1:])
