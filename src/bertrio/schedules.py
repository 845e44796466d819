"""Schedules: which tasks take part in which step. A step is the tuple of tasks whose losses make one update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Joint:
    """Every step takes one batch of each task, as in the papers' simultaneous training.

    An epoch ends when task `until` has gone through its rows once. Tasks with fewer batches cycle within the epoch;
    tasks with more carry on in the next one where they stopped, for the batch streams run on across epochs.

    Args:
        batches: for each task, how many batches its training rows make.
        until: the task that an epoch is counted by.
    """

    def __init__(self, batches: Mapping[str, int], until: str) -> None:
        self.tasks = tuple(batches)
        self.steps_per_epoch = batches[until]

    def epoch(self) -> Iterator[tuple[str, ...]]:
        """The steps of one epoch."""
        for _ in range(self.steps_per_epoch):
            yield self.tasks


SCHEDULES = {"joint": Joint}
