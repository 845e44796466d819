"""The ladder of a stepwise selection: every set that was tried, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertrio.core.files import write_csv, write_text
from bertrio.experiments.cells import chance
from bertrio.experiments.recipes.extensions import BASE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Names = tuple[str, ...]  # a set of extensions, in the order in which they came to it
COLUMNS = ("step", "on", "tried", "score", "difference", "low", "high", "p", "p_holm", "seconds", "kept", "why")
LINE = 0.24  # inches


@dataclass(frozen=True)
class Gain:
    """What a set's score gained over that of the set it extends: the difference, its 95 % interval, and p of none."""

    difference: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True)
class Step:
    """One set that was tried, or could not be: then it has no score.

    Args:
        names: the set; its last extension is the one that was tried on the others.
        why: in a few words, why it was kept or not.
        score: the mean over its seeds.
        seconds: of training, the mean over its seeds.
        gain: over the set without the last extension; the base has none.
        p_holm: p that allows for the number of sets tried at this depth.
        kept: what comes next is tried on it.
        failed: its run failed, so nothing is known of it.
    """

    names: Names
    why: str
    score: float | None = None
    seconds: float | None = None
    gain: Gain | None = None
    p_holm: float | None = None
    kept: bool = False
    failed: bool = False

    @property
    def depth(self) -> int:
        """How many extensions the set has."""
        return len(self.names)

    @property
    def on(self) -> Names:
        """The set that it extends."""
        return self.names[:-1]


def label(names: Names) -> str:
    """What a set is called."""
    return " + ".join(names) or BASE


def best(ladder: Sequence[Step]) -> Step:
    """The kept set with the highest score; the base, if nothing was kept."""
    return max((step for step in ladder if step.kept), key=lambda step: step.score)


def write_ladder(ladder: Sequence[Step], folder: str | Path, title: str, notes: Sequence[str]) -> None:
    """Writes ladder.md, ladder.csv and ladder.png.

    Args:
        ladder: all steps so far, the base first.
        folder: where to.
        title: what base, budget and seeds they are of.
        notes: what a reader has to know beside, a line each.
    """
    import pandas as pd

    folder = Path(folder)
    top = best(ladder)
    result = f"Best: **{label(top.names)}**, {top.score:.4f}; the base has {ladder[0].score:.4f}."
    parts = [f"# {title}", result, "\n".join(_markdown(ladder)), *notes]
    write_text(folder / "ladder.md", "\n\n".join(parts) + "\n")
    write_csv(pd.DataFrame([_record(step) for step in ladder], columns=list(COLUMNS)), folder / "ladder.csv")
    _draw(ladder, folder / "ladder.png", title)


def _record(step: Step) -> list[object]:
    gain = step.gain
    figures = [gain.difference, *gain.interval, gain.p] if gain else [None] * 4
    tried = step.names[-1] if step.names else ""
    on = " + ".join(step.on)
    return [step.depth, on, tried, step.score, *figures, step.p_holm, step.seconds, step.kept, step.why]


def _markdown(ladder: Sequence[Step]) -> Iterator[str]:
    yield "| step | on | tried | score | difference | 95 % interval | p | Holm's p | seconds | kept | why |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for step in ladder:
        cells = ["", "", "", ""]
        if step.gain:
            low, high = step.gain.interval
            cells = [f"{step.gain.difference:+.4f}", f"{low:+.4f} to {high:+.4f}", chance(step.gain.p)]
            cells.append(chance(step.p_holm))
        tried = step.names[-1] if step.names else ""
        score = "" if step.score is None else f"{step.score:.4f}"
        seconds = "" if step.seconds is None else f"{step.seconds:.1f}"
        on = label(step.on) if step.names else BASE
        line = [str(step.depth), on, tried, score, *cells, seconds, "**yes**" if step.kept else "no", step.why]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


def _draw(ladder: Sequence[Step], path: Path, title: str) -> None:
    """A line for each set that was tried, under the set that it extends, whose score is the dashed line there."""
    from bertrio.evaluation.canvas import LINES, MUTED, picture

    scores = {step.names: step.score for step in ladder if step.score is not None}
    groups = {on: [step for step in ladder if step.names and step.on == on and step.score is not None] for on in scores}
    groups = {on: steps for on, steps in groups.items() if steps}
    lines = 1.5 + sum(len(steps) + 0.8 for steps in groups.values())
    with picture(path, (7.2, LINE * lines + 1.2)) as figure:
        axes = figure.add_subplot()
        heading = {"color": MUTED, "fontsize": 8, "style": "italic", "va": "center", "clip_on": True}
        marks = {0.0: BASE}
        axes.plot(scores[()], 0, "o", color=LINES[0], markersize=6)
        places = {(): 0.0}
        place = 0.0
        for on, steps in groups.items():
            top = place + 0.5
            place += 1.2
            for step in steps:
                places[step.names] = place
                marks[place] = f"+ {step.names[-1]}"
                _mark(axes, step, scores[on], place, LINES[0] if step.kept else MUTED)
                place += 1.0
            place -= 0.4
            axes.plot([scores[on]] * 2, [top, place - 0.1], color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
            if on:
                axes.text(0.005, top + 0.05, f"on {label(on)}", transform=axes.get_yaxis_transform(), **heading)
        _paths(axes, ladder, scores, places, LINES[0])
        axes.set(yticks=list(marks), yticklabels=list(marks.values()), ylim=(place, -0.8), xlabel="overall_normalized")
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        told = "bars: 95 % interval of the difference to the set that is extended (dashed); blue: kept"
        axes.set_title(told, color=MUTED)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)


def _mark(axes: Axes, step: Step, before: float, place: float, colour: str) -> None:
    """A score, with the interval of its difference around the score `before`."""
    low, high = (before + end for end in step.gain.interval)
    axes.plot([low, high], [place, place], color=colour, linewidth=1.5, alpha=0.6)
    axes.plot(step.score, place, "o", color=colour, markersize=6 if step.kept else 4)


def _paths(
    axes: Axes, ladder: Sequence[Step], scores: dict[Names, float], places: dict[Names, float], colour: str
) -> None:
    """From every kept set to the one that it extends: strong on the way to the best one, else faint."""
    top = best(ladder).names
    for step in ladder:
        if step.kept and step.names:
            strong = top[: step.depth] == step.names
            axes.plot(
                [scores[step.on], scores[step.names]],
                [places[step.on], places[step.names]],
                color=colour,
                linewidth=2 if strong else 1,
                alpha=0.9 if strong else 0.3,
                zorder=1,
            )
