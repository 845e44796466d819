"""What became of the papers' claims, as text: on the terminal and in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from bertrio.core.files import write_text
from bertrio.evaluation.significance import ALPHA
from bertrio.experiments.cells import ABSENT, chance
from bertrio.experiments.recipes.claims import HELD, MISSING, NOISE, REFUTED, Judged, Judgement, Outcome
from bertrio.experiments.recipes.tables import CONVENTIONS
from bertrio.experiments.sheets import Sheet, console_for_sheets, signed

TITLE = "What the papers claim, and what was measured"
SHORT = {metric: f"overall, {name}" for name, metric in CONVENTIONS.items()}
ALONE = " (rows alone)"  # beside what a single seed decided
WORDS = {"better": "better than", "no_better": "no better than", "no_worse": "no worse than"}


def show_claims(judgement: Judgement, console: Console | None = None) -> None:
    """Prints all claims to standard output."""
    console = console or console_for_sheets()
    console.print(Text(TITLE), style="bold")
    for line in head(judgement):
        console.print(Text(line))
    for judged in judgement.claims:
        _show_claim(judged, console)
    for line in missing(judgement):
        console.print(Text(line), soft_wrap=True)  # a command is one line
    for line in summary(judgement):
        console.print(Text(line))


def write_claims(judgement: Judgement, path: str | Path) -> None:
    """Writes all claims as Markdown."""
    write_text(path, markdown(judgement))


def markdown(judgement: Judgement) -> str:
    """All claims in Markdown: each with its verdict, then the tests behind them, then notes."""
    notes = [f"- {judged.claim.name}: {judged.claim.note}" for judged in judgement.claims if judged.claim.note]
    blocks = [f"# {TITLE}", *head(judgement), *summary(judgement), claims_sheet(judgement).markdown().rstrip()]
    blocks += ["## Tests", comparisons_sheet(judgement).markdown().rstrip(), *missing(judgement)]
    return "\n\n".join([*blocks, *(["## Notes", "\n".join(notes)] if notes else [])]) + "\n"


def head(judgement: Judgement) -> Iterator[str]:
    """What the runs are, and how verdicts are made."""
    setting = judgement.runs.setting
    if judgement.runs.all:
        title = f" ({judgement.budget})" if judgement.budget else ""
        changed = "".join(f", {one}" for one in setting.changed)
        yield f"Budget {setting.budget}{title}, source {setting.source}, encoder {setting.encoder}{changed}; dev rows."
        if left_out := judgement.runs.left_out:
            yield f"Left out are runs with other overrides (-S), {left_out} of them; name these with -S to see them."
    yield (
        "A difference is the first row minus the second, means over seeds, with its 95 % interval by the paired test "
        f"over rows and seeds. It counts if p is below {ALPHA:g} after Holm's correction for the tests of its claim. "
        "No better and no worse also hold where the interval leaves no room for a difference of the claim's margin. "
        "A claim is held if all its parts are, and refuted if one is."
    )


def claims_sheet(judgement: Judgement) -> Sheet:
    """Every claim in words, and its verdict."""
    rows = [
        [judged.claim.name, judged.claim.claim, f"{judged.claim.paper}, {judged.claim.where}", _judged(judged)]
        for judged in judgement.claims
    ]
    return Sheet(["claim", "in words", "paper", "verdict"], rows, words=4)


def comparisons_sheet(judgement: Judgement) -> Sheet:
    """Every test of every claim."""
    rows = []
    for judged in judgement.claims:
        said = ""
        for place, tested in enumerate(judged.parts):
            part, compared = tested.part, _compared(tested)
            name = f"{judged.claim.name}: {_judged(judged)}" if place == 0 else ""
            rows.append([name, compared if compared != said else "", SHORT.get(part.metric, part.metric)])
            rows[-1] += _cells(tested, judged)
            said = compared
    header = ["claim", "rows", "metric", "difference", "p", "seeds", "verdict"]
    return Sheet(header, rows, words=3)


def _show_claim(judged: Judged, console: Console) -> None:
    """Prints a claim, its comparisons, and a line for each test, which fit a terminal of any width."""
    console.print(Text(f"{judged.claim.name}: {_judged(judged)}"), style="bold")
    said = ""
    for tested in judged.parts:
        compared = _compared(tested)
        if compared != said:
            console.print(Padding(Text(compared), (0, 0, 0, 2), expand=False))
        said = compared
        figures = ""
        if tested.difference:
            found, p, seeds, _ = _cells(tested, judged)
            figures = f"{found}, p {p}, seeds {seeds}: "
        verdict = _verdict(tested, judged.claim.margin) if tested.difference else MISSING
        line = f"{SHORT.get(tested.part.metric, tested.part.metric)}: {figures}{verdict}"
        console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


def _compared(tested: Outcome) -> str:
    return f"{tested.part.row} {WORDS[tested.part.direction]} {tested.part.than}"


def _judged(judged: Judged) -> str:
    """The verdict of a claim, marked where a single seed decided it."""
    return judged.verdict + (ALONE if judged.rows_alone else "")


def _cells(tested: Outcome, judged: Judged) -> list[str]:
    difference = tested.difference
    if difference is None:
        return [ABSENT, ABSENT, ABSENT, MISSING]
    seeds = f"{difference.seeds[1]}, {difference.seeds[0]}" + (ALONE if difference.rows_alone else "")
    found = signed(difference.difference, difference.low, difference.high)
    return [found, chance(tested.p), seeds, _verdict(tested, judged.claim.margin)]


def _verdict(tested: Outcome, margin: float) -> str:
    """The verdict, with what it does not say of itself."""
    size = abs(tested.difference.difference)
    if tested.verdict == REFUTED and tested.part.direction == "no_better" and size < margin:
        return f"{REFUTED}, by a gain of {size:.4f} only"
    if tested.verdict == REFUTED:
        return f"{REFUTED}, {'better' if tested.part.direction == 'no_better' else 'worse'} by {size:.3f}"
    return tested.verdict


def missing(judgement: Judgement) -> list[str]:
    """What could not be tested, and what would measure it."""
    tested = [part for judged in judgement.claims for part in judged.parts if part.verdict == MISSING]
    rows = {row for part in tested for row in (part.part.row, part.part.than)}
    measured = {run.row for run in judgement.runs.all}
    absent = sorted(judgement.run_as[row] for row in rows if judgement.run_as[row] not in measured)
    others = dict.fromkeys(part.why for part in tested if "not measured yet" not in part.why)
    command = " ".join(["bertrio recipes run", *dict.fromkeys(absent), judgement.runs.setting.to_run]).rstrip()
    lines = [f"Not measured yet: {command}"] if absent else []
    return lines + [f"Not tested: {why}." for why in others]


def summary(judgement: Judgement) -> list[str]:
    """How many claims held, and how many verdicts luck alone may have made."""
    counts = Counter(judged.verdict for judged in judgement.claims)
    alone = Counter(judged.verdict for judged in judgement.claims if judged.rows_alone)
    told = ", ".join(
        f"{counts[verdict]} {verdict}" + (f" ({alone[verdict]} by rows alone)" if alone[verdict] else "")
        for verdict in (HELD, REFUTED, NOISE, MISSING)
    )
    tests = [part for judged in judgement.claims for part in judged.parts if part.difference]
    claims = sum(any(part.difference for part in judged.parts) for judged in judgement.claims)
    lines = [f"{len(judgement.claims)} claims: {told}."]
    if tests:
        lines.append(
            f"{len(tests)} tests of {claims} claims were made, at {100 * ALPHA:g} % for all tests of a claim together. "
            f"If there were no differences at all, luck would show one in {ALPHA * claims:.2g} claims at most."
        )
    single = sum(part.difference.rows_alone for part in tests)
    if single:
        lines.append(
            f"{single} of the tests are over rows alone, for a side has a single seed. Their p knows nothing of seeds: "
            "where these differ, far more than one in twenty is false. Give each row two seeds or more."
        )
    return lines
