"""The trials of a search: what each was, what came of it, and the files that say so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.cells import ABSENT
from bertrio.experiments.plan import Plan
from bertrio.experiments.proposer import State
from bertrio.experiments.recipes.params import changes, value_text
from bertrio.experiments.sheets import Sheet
from bertrio.experiments.space import Point, values_at

RECORD = "trials.json"


@dataclass(frozen=True)
class Trial:
    """One point of the space that was tried.

    Args:
        number: from 1 on.
        point: its coordinates.
        values: the params there.
        state: `finished` (it has a score), `pruned` (it was given up), `refused` (its params don't go together, and
            nothing was run) or `failed` (its run broke down; it is tried again).
        experiment: that it was run as; of an earlier trial, if that had the same params.
        score: on dev.
        epochs: the score after each epoch, as far as it was looked at.
        seconds: of training.
        why: it is refused or failed, or was not run.
    """

    number: int
    point: Point
    values: Mapping[str, Any]
    state: State
    experiment: str = ""
    score: float | None = None
    epochs: tuple[float, ...] = ()
    seconds: float | None = None
    why: str = ""

    @property
    def told(self) -> str:
        """What came of it, in words."""
        after = f" after epoch {len(self.epochs)}, at {self.epochs[-1]:.4f}" if self.state == "pruned" else ""
        return f"{self.state}{after}{f': {self.why}' if self.why else ''}"

    @property
    def set(self) -> str:
        """Its params on one line."""
        return ", ".join(f"{param} {value_text(value)}" for param, value in self.values.items())


def best(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest score, of equal ones the first; None if there is no score yet."""
    return max((trial for trial in trials if trial.score is not None), key=lambda trial: trial.score, default=None)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a score, the highest first, and then the others; equal ones by number."""
    return sorted(trials, key=lambda trial: (trial.score is None, -(trial.score or 0), trial.number))


def sheet(trials: Sequence[Trial]) -> Sheet:
    """The trials as a table of text."""
    params = list(trials[0].values) if trials else []
    rows = [
        [
            f"t{trial.number}",
            trial.told,
            ABSENT if trial.score is None else f"{trial.score:.4f}",
            *[value_text(trial.values[param]) for param in params],
            str(len(trial.epochs) or ABSENT),
            ABSENT if trial.seconds is None else f"{trial.seconds:.0f}",
        ]
        for trial in ranked(trials)
    ]
    return Sheet(["trial", "outcome", "score", *params, "epochs", "seconds"], rows, words=2)


def write_trials(trials: Sequence[Trial], folder: Path, plan: Plan, notes: Sequence[str]) -> None:
    """Writes trials.json, from which a search that was stopped goes on, trials.md and trials.csv.

    Args:
        trials: so far, by number.
        folder: where to.
        plan: that they were made by.
        notes: what a reader has to know beside, a paragraph each; the first is the title.
    """
    import pandas as pd

    title, *others = notes
    record = {"plan": plan.as_json(), "trials": [asdict(trial) for trial in trials]}
    write_text(folder / RECORD, json.dumps(record, indent=1, default=str) + "\n")  # points to their last digit
    write_text(folder / "trials.md", "\n\n".join([f"# {title}", sheet(trials).markdown().rstrip(), *others]) + "\n")
    write_csv(pd.DataFrame([_record(trial) for trial in ranked(trials)]), folder / "trials.csv")


def read_trials(folder: Path, plan: Plan) -> list[Trial]:
    """The trials that `write_trials` wrote, by number; empty if there are none.

    Raises:
        UserError: if they were made by another plan, or the file is damaged.
    """
    path = folder / RECORD
    if not path.exists():
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        was, now = record["plan"], plan.as_json()
        trials = [_trial(raw, plan) for raw in record["trials"]] if was == now else []
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is damaged ({error!r}); remove it, and the search begins again") from error
    if was != now:
        wrong = "".join(
            f"\n  {key}: there {value_text(old)}, asked for {value_text(new)}"
            for key, (old, new) in changes(was, now).items()
        )
        raise UserError(f"{path}: is of another search; give this one another name with --study{wrong}")
    return trials


def _trial(raw: Mapping[str, Any], plan: Plan) -> Trial:
    point = {param: raw["point"][param] for param in plan.space}  # in the order of the space
    return Trial(**{**raw, "point": point, "values": values_at(plan.space, point), "epochs": tuple(raw["epochs"])})


def _record(trial: Trial) -> dict[str, Any]:
    """A row of the CSV file."""
    return {
        "trial": trial.number,
        "state": trial.state,
        "score": trial.score,
        **{param: value_text(value) for param, value in trial.values.items()},
        "epochs": len(trial.epochs),
        "last_epoch": trial.epochs[-1] if trial.epochs else None,
        "seconds": trial.seconds,
        "experiment": trial.experiment,
        "why": trial.why,
    }
