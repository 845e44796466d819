"""What a search tries next, and which run it gives up: Optuna's samplers and pruners, without Optuna's storage.

An Optuna study in memory goes through all trials in order, those of an earlier process as well as those run now. What
it proposes for a trial depends on seed, number and the trials before alone, so that a search that was stopped and
started again proposes what it would have proposed without the stop. Nothing is pickled.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal

from bertrio.core.errors import missing_package
from bertrio.experiments.space import Choice, Point, Range, Space

if TYPE_CHECKING:
    import optuna

Prune = Literal["median", "hyperband", "none"]
State = Literal["finished", "pruned", "refused", "failed"]  # of a trial
PRUNERS: dict[str, str] = {"median": "MedianPruner", "hyperband": "HyperbandPruner", "none": "NopPruner"}  # of optuna
NAME = "search"  # of the study, by which Hyperband gives trials their brackets: one for all, so that seeds alone decide


class Proposer:
    """Goes through the trials of one search: `propose`, then `stops` after each epoch, then `close`.

    Points are drawn by a tree-structured Parzen estimator (Bergstra et al. 2011, "Algorithms for Hyper-Parameter
    Optimization"), the first ten at random. `median` gives up a run whose best epoch is below the median that finished
    ones had by then, from the sixth on; `hyperband` (Li et al. 2018) gives runs epochs by successive halving.

    Args:
        space: what may be set.
        seed: of the search.
        prune: median, hyperband or none.

    Raises:
        UserError: if Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int, prune: Prune) -> None:
        optuna = _optuna()
        self._distributions = {param: _distribution(of) for param, of in space.items()}
        pruner = getattr(optuna.pruners, PRUNERS[prune])()
        self._study = optuna.create_study(direction="maximize", study_name=NAME, pruner=pruner)
        self._seed, self._number, self._epoch = seed, 0, 0
        self._trial: optuna.trial.Trial | None = None

    def propose(self, point: Point | None = None) -> Point:
        """Begins the next trial.

        Args:
            point: of a trial that was begun before; None draws one.

        Returns:
            The trial's point.
        """
        if point is not None:
            self._study.enqueue_trial(dict(point))
        seed = zlib.crc32(f"{self._seed} {self._number}".encode())
        self._study.sampler = _optuna().samplers.TPESampler(seed=seed)
        self._trial, self._epoch = self._study.ask(self._distributions), 0
        return dict(self._trial.params)

    def stops(self, score: float, last: bool = False) -> bool:
        """Takes the trial's score after its next epoch, and says whether to give the trial up.

        Args:
            score: on dev; higher is better.
            last: no epoch comes after it, so there is nothing to give up.
        """
        self._epoch += 1
        self._trial.report(score, self._epoch)
        return self._trial.should_prune() and not last  # Hyperband has to be asked, for it keeps what it has seen

    def close(self, state: State, score: float | None = None) -> None:
        """Ends the trial.

        Args:
            state: what came of it. Points near a pruned or refused one are taken for bad ones; of a failed one nothing
                is known.
            score: of a finished one.
        """
        states = _optuna().trial.TrialState
        as_there = {"finished": states.COMPLETE, "pruned": states.PRUNED, "refused": states.PRUNED}
        self._study.tell(self._trial, score, state=as_there.get(state, states.FAIL))
        self._number += 1


def _distribution(of: Range | Choice) -> Any:
    distributions = _optuna().distributions
    if isinstance(of, Choice):
        return distributions.CategoricalDistribution(range(len(of.values)))
    if of.kind == "int":
        return distributions.IntDistribution(int(of.low), int(of.high))
    return distributions.FloatDistribution(of.low, of.high, log=of.kind == "log")


def _optuna() -> Any:
    """Optuna, silent but for what goes wrong."""
    try:
        import optuna
    except ImportError as error:
        raise missing_package("search", ["optuna"], "search") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
