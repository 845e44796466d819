"""Trains settings of the small project in two processes that split the weights, and carries states to and fro.

    python tests/sharded_run.py FOLDER

FOLDER is as for tests/distributed_run.py, and so is what is written there. Each process writes pieces-<rank>.json:
what it keeps. The state in half-1, of one process after `HALF` updates of the setting `CARRIED`, is carried on to
weights/carried-1.safetensors; half-2 is the same of these processes, and weights/carried-2.safetensors what they make
of it when they build everything anew.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from safetensors.torch import save_file

from bertrio.training.distributed.processes import Processes, share_out
from bertrio.training.loop import Trainer
from bertrio.training.state_files import read_state, write_state
from tests.distributed_run import built, train, weights

CARRIED, HALF = "uncertainty, accumulate, ema, bregman", 9


class Stopped(Exception):
    """Ends a training between two updates."""


def write_half(processes: Processes) -> None:
    """Trains `CARRIED` for the first half of its updates, and writes the state."""
    trainer, *_ = built(Path("settings") / f"{CARRIED}.yaml", processes)

    def stop(step: int) -> None:
        if step == HALF:
            raise Stopped

    trainer.checkpoint = stop
    with suppress(Stopped):
        list(trainer.run("first half"))
    state = trainer.state_dict()
    if processes.main:
        Path(f"half-{processes.count}").mkdir()
        write_state(Path(f"half-{processes.count}"), state)
    processes.most(0)  # the others wait until it is there


def carry_on(processes: Processes, of: int, into: str) -> None:
    """Trains the other half, from the state that a run of so many processes has written."""
    trainer, scored, _ = built(Path("settings") / f"{CARRIED}.yaml", processes)
    trainer.load_state_dict(read_state(Path(f"half-{of}")))
    list(trainer.run("second half"))
    found = weights(trainer, scored)
    if processes.main:
        save_file(found, f"weights/{into}.safetensors")


def kept(trainer: Trainer) -> dict[str, list[int]]:
    """What this process keeps of each weight: how many numbers, of how many, of how many Adam's moments are, and how
    many its memory has room for."""
    own = trainer.weights.own.named_parameters()
    moments = {p: of["exp_avg"].numel() for p, of in trainer.optimizer.state.items()}
    return {
        name: [piece.numel(), whole.numel(), moments.get(piece, 0), piece.untyped_storage().nbytes() // 4]
        for (name, piece), whole in zip(own, trainer.model.parameters(), strict=True)
    }


def main(folder: str) -> None:
    os.chdir(folder)
    processes = share_out(2, "cpu")
    for settings in sorted(Path("settings").glob("*.yaml")):
        trainer = train(settings, processes)
    Path(f"pieces-{processes.rank}.json").write_text(json.dumps(kept(trainer)))
    write_half(processes)
    for of in (1, 2):
        carry_on(processes, of, f"carried-{of}")


if __name__ == "__main__":
    main(*sys.argv[1:])
