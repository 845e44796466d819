"""The ladder of a forward selection: every set that was tried, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertrio.core.files import write_csv, write_text
from bertrio.experiments.recipes.rows import BASE

Names = tuple[str, ...]  # a set of extensions, in the order in which they came to it
COLUMNS = ("step", "on", "tried", "score", "difference", "low", "high", "p", "p_holm", "seconds", "kept", "why")
LINE = 0.24  # inches


@dataclass(frozen=True)
class Gain:
    """Gain of a set over the set that it extends: the difference, its 95 % interval, and its p-value."""

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
    return max((step for step in ladder if step.kept), key=lambda step: step.score or 0.0)


def write_ladder(ladder: Sequence[Step], folder: str | Path, title: str, notes: Sequence[str]) -> None:
    """Write ladder.md, ladder.csv and ladder.png.

    Args:
        ladder: all steps so far, the base first.
        folder: where to write.
        title: base, budget and seeds.
        notes: other paragraphs below the table.
    """
    import pandas as pd

    folder, top = Path(folder), best(ladder)
    frame = pd.DataFrame([_record(step) for step in ladder], columns=list(COLUMNS))
    write_csv(frame, folder / "ladder.csv")
    result = f"Best: **{label(top.names)}**, {top.score:.4f}; the base has {ladder[0].score:.4f}."
    table = frame.to_markdown(index=False, floatfmt=".4f", missingval="")
    write_text(folder / "ladder.md", "\n\n".join([f"# {title}", result, table, *notes]) + "\n")
    _draw(ladder, folder / "ladder.png", title)


def _record(step: Step) -> list[object]:
    gain = step.gain
    figures = [gain.difference, *gain.interval, gain.p] if gain else [None] * 4
    tried = step.names[-1] if step.names else ""
    on = " + ".join(step.on)
    return [step.depth, on, tried, step.score, *figures, step.p_holm, step.seconds, step.kept, step.why]


def _draw(ladder: Sequence[Step], path: Path, title: str) -> None:
    """Draw the gain of every set over the set that it extends, with its interval; kept sets in colour."""
    from bertrio.evaluation.canvas import LINES, MUTED, picture

    steps = [(step, step.gain) for step in ladder if step.gain]
    with picture(path, (7.2, LINE * len(steps) + 1.5)) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        for place, (step, gain) in enumerate(steps):
            colour = LINES[0] if step.kept else MUTED
            axes.plot(gain.interval, [place, place], color=colour, linewidth=1.5, alpha=0.6)
            axes.plot(gain.difference, place, "o", color=colour, markersize=6 if step.kept else 4)
        axes.set(yticks=range(len(steps)), yticklabels=[label(step.names) for step, _ in steps])
        axes.set(
            ylim=(max(len(steps), 1) - 0.5, -0.5), xlabel="gain in overall_normalized over the set without the last one"
        )
        axes.set_title("bars: 95 % interval; blue: kept", color=MUTED)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
