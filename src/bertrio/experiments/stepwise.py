"""Forward stepwise selection of extensions, as in "BERT++: Trustworthy MultiTask Learning with BERT", section 4.3.

From a base, every remaining extension is tried on top of it; the best one is kept where the paired test says that it
is not luck; and so on from there, until none helps. With a beam, several sets are kept at each depth.

Every set that is tried is a DVC experiment. Nothing else is remembered: what was stopped is started again with the same
command, finds its finished experiments, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.evaluation.significance import ALPHA, holm
from bertrio.experiments.bench import METRIC, DvcBench, Outcome
from bertrio.experiments.ladder import Gain, Names, Step, best, label, write_ladder
from bertrio.experiments.machine_paths import settings_text
from bertrio.experiments.recipes.rows import Extension, find, load_extensions, load_recipes


class Bench(Protocol):
    """Where sets of extensions are tried; each method raises `UserError` with the reason if it can't."""

    def key(self, names: Names) -> str:
        """What the set comes to: equal for sets that run alike."""

    def measure(self, names: Names) -> Outcome:
        """Runs the set, unless it has run."""

    def gain(self, before: Names, after: Names) -> Gain:
        """Whether one set that has run is better than another."""


def forward_selection(
    candidates: Sequence[str], bench: Bench, beam: int = 1, unproven: bool = False
) -> Iterator[list[Step]]:
    """Select extensions step by step, and yield the ladder so far at the start and after every depth.

    At each depth every candidate is tried on every set that was kept. Sets that score higher than the one they extend,
    with p below 5 % by Holm's correction over all sets of this depth, are kept, up to `beam` of them. It ends where
    none is. A set is tried once, however it came about.

    Args:
        candidates: the extensions, in the order in which they are tried; of equal scores the earlier is kept.
        bench: runs and compares sets.
        beam: how many sets to keep at each depth.
        unproven: keep what scores higher even where luck may explain it.

    Raises:
        UserError: if the base can't be run; or, after all others of its depth, if any set's run failed, since what
            would be kept is not known then.
    """
    outcome = bench.measure(())
    ladder = [Step((), "the base", outcome.score, outcome.seconds, kept=True)]
    yield ladder
    tried: dict[str, Names] = {bench.key(()): ()}
    kept = list(ladder)
    while kept:
        pairs = [(parent.names, name) for parent in kept for name in candidates if name not in parent.names]
        steps = [_try(parent, name, bench, tried) for parent, name in pairs]
        failed = [step for step in steps if step.failed]
        if not failed:
            steps = _judged(steps, beam, unproven)
        kept = [step for step in steps if step.kept]
        if news := _without_repeats(steps, ladder):
            ladder = ladder + news
            yield ladder
        if failed:
            reasons = "\n".join(f"  {label(step.names)}: {step.why}" for step in failed)
            raise UserError(
                f"{len(failed)} of {len(steps)} runs failed, so nothing was decided at this step:\n{reasons}\n"
                "  The same command tries them again; all others are done. Or leave them out of --candidates"
            )


def _try(parent: Names, name: str, bench: Bench, tried: dict[str, Names]) -> Step:
    names = (*parent, name)
    try:
        key = bench.key(names)
    except UserError as error:
        return Step(names, f"not tried: {'; '.join(str(error).splitlines())}")
    if key in tried:
        same = f"runs like {label(tried[key])}, which was tried" if tried[key] != parent else "changes nothing here"
        return Step(names, f"not tried: {same}")
    tried[key] = names
    try:
        outcome, gain = bench.measure(names), bench.gain(parent, names)
    except UserError as error:
        return Step(names, f"failed: {'; '.join(str(error).splitlines())}", failed=True)
    return Step(names, "not decided", outcome.score, outcome.seconds, gain)


def _without_repeats(steps: Sequence[Step], ladder: Sequence[Step]) -> list[Step]:
    """The steps, less those that could not be tried for a reason that was given before."""
    said = {(step.names[-1:], step.why) for step in ladder}
    news = []
    for step in steps:
        told = step.names[-1:], step.why
        if step.gain or step.failed or told not in said:
            news.append(step)
        said.add(told)
    return news


def _judged(steps: Sequence[Step], beam: int, unproven: bool) -> list[Step]:
    """Decide the steps of one depth: those that ran come first, the best at the top."""
    ran = [(step, step.gain) for step in steps if step.gain]
    corrected = holm([gain.p for _, gain in ran])
    ran = [(replace(step, p_holm=p), gain) for (step, gain), p in zip(ran, corrected)]
    ran.sort(key=lambda pair: -(pair[0].score or 0.0))  # stable: of equals the earlier stays first
    shown = {step.names: step.p_holm is not None and step.p_holm < ALPHA for step, _ in ran}
    better = [step.names for step, gain in ran if gain.difference > 0 and (unproven or shown[step.names])]
    kept = better[:beam]
    judged = [
        replace(step, kept=step.names in kept, why=_why(gain.difference, shown[step.names], step.names in kept))
        for step, gain in ran
    ]
    return judged + [step for step in steps if not step.gain]


def _why(difference: float, shown: bool, kept: bool) -> str:
    if difference <= 0:
        return "hurts" if shown else "no better"
    if not shown:
        return "kept, though luck may explain it" if kept else "higher, which luck may explain"
    return "helps" if kept else "helps, but others score higher"


def stepwise(
    candidates: Sequence[str],
    base: str | None = None,
    beam: int = 1,
    budget: str = "paper",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    unproven: bool = False,
    out: str | Path = "recipes/stepwise",
    root: str | Path = ".",
) -> list[Step]:
    """Selects extensions, and writes the ladder so far to `out` at the start and after every depth.

    Args:
        candidates: names of recipes/extensions.yaml.
        base: the row to start from; None: params.yaml as it is.
        beam, unproven: see `forward_selection`.
        budget, seeds, overrides: of every run, see `DvcBench`.
        out: the folder of ladder.md, ladder.csv and ladder.png.
        root: the folder that holds dvc.yaml and recipes/.

    Returns:
        The ladder.

    Raises:
        UserError: if a name is unknown, the base is wrong or can't be run, or runs fail.
    """
    folder = Path(root) / "recipes"
    extensions = load_extensions(folder)
    candidates = list(dict.fromkeys(candidates))
    for name in candidates:
        find(name, extensions, "recipes/extensions.yaml")
    bench = DvcBench(load_recipes(folder), extensions, base, budget, seeds, overrides, root)
    title = f"Stepwise selection on {base or 'params.yaml'}, budget {budget}, {seeds} seed{'s' if seeds > 1 else ''}"
    ladder: list[Step] = []
    for ladder in forward_selection(candidates, bench, beam, unproven):
        write_ladder(ladder, out, title, _notes(ladder, extensions, bench, beam, unproven, overrides or {}))
        for step in ladder:
            if step.depth == ladder[-1].depth:
                say(_line(step))
    top = best(ladder)
    say(f"best: {label(top.names)}, {top.score:.4f}; dvc exp apply {bench.experiment(top.names, 1)}")
    return ladder


def _notes(
    ladder: Sequence[Step],
    extensions: Mapping[str, Extension],
    bench: DvcBench,
    beam: int,
    unproven: bool,
    overrides: Mapping[str, Any],
) -> list[str]:
    tested = "a higher score is kept, proven or not" if unproven else "kept where p after Holm is below 0.05"
    seconds = "differences are to the set under `on`; Holm's p allows for all sets of a step; seconds are of training"
    names = dict.fromkeys(step.names[-1] for step in ladder if step.names)
    return [
        f"Scores are {METRIC} on dev, {seconds}; {tested}; beam {beam}{settings_text(overrides)}.",
        "Sets were chosen on these rows, which flatters the best of them; test or other seeds say what it is worth.",
        f"The best set is the experiment `{bench.experiment(best(ladder).names, 1)}`.",
        "\n".join(f"- {name}: {extensions[name].what}" for name in names),
    ]


def _line(step: Step) -> str:
    if step.gain is None:
        figures = "" if step.score is None else f" {step.score:.4f}"
        return f"step {step.depth}: {label(step.names)}{figures}: {step.why}"
    low, high = step.gain.interval
    figures = f"{step.score:.4f} ({step.gain.difference:+.4f}, {low:+.4f} to {high:+.4f})"
    return f"step {step.depth}: {label(step.names)} {figures}: {step.why}"
