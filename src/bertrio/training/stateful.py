"""What changes as training goes on, beside the weights, and has a say in what comes: it goes in checkpoints."""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np
import torch

from bertrio.core.runtime import Runtime


class Stateful(Protocol):
    """A part of training that can be saved, and put where another one, built alike, was."""

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on, as a tree of tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""


class Draws:
    """The state of a generator that a function without a state of its own draws from."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self._generator.set_state(state["generator"])


class GlobalGenerators:
    """The states of the generators that all of a process shares: torch's, on the CPU and on the device that computes,
    numpy's and Python's."""

    def __init__(self, runtime: Runtime) -> None:
        kind = runtime.device.type
        self._of_device = None if kind == "cpu" else torch.get_device_module(runtime.device)
        self._place = [runtime.device] if kind == "cuda" else []  # CUDA alone has several

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
        if self._of_device is not None:
            state["device"] = self._of_device.get_rng_state(*self._place)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        torch.set_rng_state(state["torch"])
        np.random.set_state(tuple(state["numpy"]))
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))
        if self._of_device is not None:
            self._of_device.set_rng_state(state["device"], *self._place)
