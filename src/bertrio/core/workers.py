"""Several stages on one machine at a time: which threads and which CUDA card are whose.

`dvc queue start -j N` starts N workers that inherit one environment, so nothing of DVC tells a stage which of them
started it. With `BERTRIO_WORKERS=N` in that environment every stage takes an N-th of the threads and, where there are
several CUDA cards, the card of its slot. Slots are locked files, 0 to N - 1, of which a stage holds one. The system
gives the lock back when the stage ends, however it ends.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from pathlib import Path
from typing import NamedTuple

import platformdirs
from filelock import FileLock, Timeout

from bertrio.core.console import say
from bertrio.core.errors import UserError

VARIABLE = "BERTRIO_WORKERS"  # of the environment: how many stages may run at a time
FOLDER = "BERTRIO_WORKERS_FOLDER"  # of the environment: where the slots' files are, if not in the user's cache folder
_held: dict[Path, Place] = {}  # by folder: to forget a lock is to give it back


class Place(NamedTuple):
    """What one stage has of the machine.

    Args:
        slot: its number, from 0 on; None where no slot could be locked.
        workers: how many stages may run at a time.
        lock: of the slot.
    """

    slot: int | None
    workers: int
    lock: FileLock | None = None

    def threads(self, all_threads: int) -> int:
        """Its share of the machine's CPU threads, the same for every slot, so that results do not depend on it."""
        return max(1, all_threads // self.workers)

    def card(self, cards: int) -> int:
        """Which of the machine's `cards` is its own; shared where there are fewer cards than slots."""
        return (self.slot or 0) % cards


def share(device: str, threads: int | None, all_threads: int, cards: int) -> tuple[str, int | None]:
    """Device and threads of a stage: as params say, and where they leave it open (`auto`, None), its share of them.

    Without `BERTRIO_WORKERS` they stay as they are.

    Args:
        device: `runtime.device`.
        threads: `runtime.threads`.
        all_threads: those that the stage would take if it were alone.
        cards: how many CUDA cards there are.

    Raises:
        UserError: as `take_place`.
    """
    place = take_place(max(1, cards))
    if place is None:
        return device, threads
    if device == "auto" and cards > 1:
        device = f"cuda:{place.card(cards)}"
    return device, place.threads(all_threads) if threads is None else threads


def take_place(cards: int = 1) -> Place | None:
    """The place of this process, which keeps it until it ends; None if `BERTRIO_WORKERS` is not set.

    It takes the free slot whose card has the fewest stages. Where more stages run than `BERTRIO_WORKERS` says, that is
    told, and slots from N on share the cards in turn.

    Args:
        cards: how many CUDA cards there are, 1 or more; 1 where there are none.

    Raises:
        UserError: if `BERTRIO_WORKERS` is no whole number from 1 on.
    """
    workers = _workers()
    if workers is None:
        return None
    folder = _folder()
    if folder not in _held:
        _held[folder] = _taken(folder, workers, cards)
    return _held[folder]


def _workers() -> int | None:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UserError(
            f"{VARIABLE}={text}: expected a whole number from 1 on, the N of dvc queue start -j N; or unset it, and "
            "each stage takes the whole machine"
        )
    return int(text)


def _folder() -> Path:
    chosen = os.environ.get(FOLDER)
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("bertrio") / "workers"


def _taken(folder: Path, workers: int, cards: int) -> Place:
    """Locks a slot; none, if the folder can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "door"):  # one at a time looks which slots are free
            slot, lock = _free_slot(folder, workers, cards)
    except OSError as error:
        say(f"{VARIABLE}: no slot can be locked in {folder} ({error.strerror or error}); {FOLDER} names another folder")
        return Place(None, workers)
    if slot >= workers:
        say(f"{VARIABLE}={workers}, and all slots are taken: this stage shares threads and card with another")
    return Place(slot, workers, lock)


def _free_slot(folder: Path, workers: int, cards: int) -> tuple[int, FileLock]:
    """Of the free slots below `workers` the one whose card has the fewest stages; if none is, the first one above."""
    free: dict[int, FileLock] = {}
    busy: Counter[int] = Counter()
    for slot in count():
        if slot >= workers and free:
            break
        lock = FileLock(folder / f"slot-{slot}", thread_local=False)
        try:
            lock.acquire(blocking=False)
            free[slot] = lock
        except Timeout:
            busy[slot % cards] += 1
    slot = min(free, key=lambda slot: (busy[slot % cards], slot))
    lock = free.pop(slot)
    for other in free.values():
        other.release()
    return slot, lock
