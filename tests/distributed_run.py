"""Train settings of the small project in several processes, and check their messages.

    python tests/distributed_run.py 2 FOLDER

FOLDER is the small project's root (tests/training/conftest.py) with the settings as settings/<name>.yaml. Results go to
weights/<name>-2.safetensors and .json; each process writes messages-<rank>.json.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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


def build(settings: Path, processes: Processes) -> tuple[Trainer, MultitaskModel, Split]:
    """Return the trainer of one setting, the model that it scores, and the rows."""
    params = load_params(settings)
    runtime = set_up(**params.runtime.model_dump(), process_group=processes)
    model = build_model(params, "models/encoder", runtime)
    rows = load_split(params, "train", "data/splits", "models/tokenizer")
    rows = add_unlabelled(params, rows, "data/splits", "models/tokenizer")
    return *build_trainer(params, model, {task: rows[task] for task in params.trains}, Mock()), rows


def weights(trainer: Trainer, scored: MultitaskModel) -> dict[str, Tensor]:
    """Return copies of all trained weights by name."""
    parts = {"model": trainer.model, "scored": scored, "weighting": trainer.objective.weighting}
    states = {part: module.state_dict() for part, module in parts.items()}
    return {f"{part}.{name}": value.clone() for part, state in states.items() for name, value in state.items()}


def train(settings: Path, processes: Processes) -> Trainer:
    """Train one setting, and write its weights and log; a setting named `sparse` has sparse embedding gradients."""
    default, encoder.MANY_WORDS = encoder.MANY_WORDS, 100 if "sparse" in settings.stem else encoder.MANY_WORDS
    trainer, scored, rows = build(settings, processes)
    losses = [log.losses for log in trainer.run(settings.stem)]
    encoder.MANY_WORDS = default
    processes.check_equal(scored.parameters())
    distributed = {task: infer(scored, split, 7) for task, split in rows.items()}
    scored.runtime = replace(scored.runtime, processes=ALONE)
    same = all(np.array_equal(infer(scored, split, 7), distributed[task]) for task, split in rows.items())
    trained = weights(trainer, scored)
    norms = [float(call.args[1]["grad_norm"]) for call in trainer.tracker.log.call_args_list]  # before clipping
    if processes.is_main:
        out = Path("weights") / f"{settings.stem}-{processes.world_size}"
        save_file(trained, f"{out}.safetensors")
        record = {
            "losses": losses, "conflicts": trainer.combiner.conflicts, "rows": trainer.meter.rows_seen,
            "same_outputs": same, "norms": norms,
        }  # fmt: skip
        Path(f"{out}.json").write_text(json.dumps(record))
    return trainer


def messages(processes: Processes) -> dict[str, Any]:
    """Return the error for weights that differ between processes, and the addresses that this one listens on."""
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
