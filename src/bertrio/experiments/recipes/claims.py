"""What the papers claim, and whether the measured runs bear it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pandas as pd
from pydantic import Field, model_validator
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.errors import UserError
from bertrio.core.files import write_text
from bertrio.core.options import Group, Positive
from bertrio.evaluation.significance import ALPHA, holm, p_text
from bertrio.experiments.recipes.rows import NonEmptyText, nearest, read_file
from bertrio.experiments.recipes.table_text import MISSING as NO_FIGURE
from bertrio.experiments.recipes.table_text import NAMES, signed, to_markdown
from bertrio.experiments.recipes.tables import METRICS
from bertrio.experiments.runs import Difference, Runs, Setting, differ, runs_of

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured
    from bertrio.experiments.recipes.rows import Recipes

FILE = "recipes/claims.yaml"
HELD, REFUTED, NOISE, MISSING = "held", "refuted", "inside the noise", "not measured"
Direction = Literal["better", "no_better", "no_worse"]


@dataclass(frozen=True)
class Part:
    """One comparison: `row` is better, no better, or no worse than `than` in a metric, both full names."""

    row: str
    than: str
    metric: str
    direction: Direction


@dataclass(frozen=True)
class Claim:
    """What a paper claims, of which every part must hold; see recipes/claims.yaml for the keys."""

    name: str
    paper: str
    where: str
    claim: str
    parts: tuple[Part, ...]
    margin: float
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """A part with what was measured of it.

    Args:
        part: the comparison.
        verdict: held, refuted, inside the noise or not measured.
        difference: of `row` from `than`; None if there is none, and `why` says why.
        p: with Holm's correction for the parts of the claim that were tested.
        why: what was missing.
    """

    part: Part
    verdict: str
    difference: Difference | None = None
    p: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim and its tested parts."""

    claim: Claim
    parts: tuple[Outcome, ...]

    @property
    def verdict(self) -> str:
        """Refuted if any part is; else not measured, or inside the noise, if any part is; held if all are."""
        found = {part.verdict for part in self.parts}
        return next(verdict for verdict in (REFUTED, MISSING, NOISE, HELD) if verdict in found)

    @property
    def rows_alone(self) -> bool:
        """Whether held or refuted rests on a test that knows nothing of seeds, for a side has a single one."""
        deciding = [part.difference for part in self.parts if part.difference and part.verdict == self.verdict]
        if self.verdict == REFUTED:  # any one of the parts that refute it would do
            return all(difference.rows_alone for difference in deciding)
        return self.verdict == HELD and any(difference.rows_alone for difference in deciding)


@dataclass(frozen=True)
class Judgement:
    """All claims, and the runs that they were judged by; `run_as` has the run of each row that they name."""

    claims: tuple[Judged, ...]
    runs: Runs
    run_as: Mapping[str, str]
    budget: str = ""


class ClaimFile(Group):
    """A claim as it stands in the file."""

    paper: NonEmptyText
    where: NonEmptyText
    claim: NonEmptyText
    row: NonEmptyText | None = None
    than: NonEmptyText | None = None
    low: NonEmptyText | None = None
    middle: NonEmptyText | None = None
    high: NonEmptyText | None = None
    expect: Annotated[dict[str, Literal["better", "no_better", "no_worse", "between"]], Field(min_length=1)]
    margin: Positive = 0.01
    note: NonEmptyText | None = None

    @model_validator(mode="after")
    def _names_its_rows(self) -> ClaimFile:
        between = set(self.expect.values()) == {"between"}
        named = {name for name in ("row", "than", "low", "middle", "high") if getattr(self, name)}
        mixed = "between" in self.expect.values() and not between
        if mixed or named != ({"low", "middle", "high"} if between else {"row", "than"}):
            raise ValueError("expected row and than or, where all that it expects is between, low, middle and high")
        if unknown := [metric for metric in self.expect if metric not in METRICS]:
            raise ValueError(f"expect: {unknown[0]}: no such metric; {nearest(unknown[0], METRICS)}")
        return self

    def parts(self) -> tuple[Part, ...]:
        """The comparisons that it makes; between is two."""
        pairs = [(self.middle, self.low), (self.high, self.middle)] if self.middle else [(self.row, self.than)]
        return tuple(
            Part(row, than, metric, "better" if direction == "between" else direction)
            for metric, direction in self.expect.items()
            for row, than in pairs
            if row and than
        )


def load_claims(recipes: Recipes, path: str | Path = FILE) -> tuple[Claim, ...]:
    """Reads the claims, strictly.

    Raises:
        UserError: naming the claim and the key that is wrong, such as a row that there is not, or one that is quoted
            from the literature and has no run.
    """
    claims = []
    for name, given in read_file(Path(path), dict[str, ClaimFile]).items():
        where = f"{path}: {name}"
        recipes.paper(given.paper)
        for part in given.parts():
            rows = [recipes.row(row) for row in (part.row, part.than)]
            if quoted := [row.name for row in rows if row.literature]:
                raise UserError(
                    f"{where}: {quoted[0]} is quoted from the literature and can't be run; name another row"
                )
            if rows[0].run_as == rows[1].run_as:
                raise UserError(f"{where}: {part.row} and {part.than} are the same run; name two that differ")
        text = " ".join((given.note or "").split())
        claim = " ".join(given.claim.split())
        claims.append(Claim(name, given.paper, given.where, claim, given.parts(), given.margin, text))
    return tuple(claims)


def judge(
    recipes: Recipes, measured: Iterable[Measured], claims: Sequence[Claim], wanted: Setting | None = None
) -> Judgement:
    """Judges all claims by runs of one setting.

    Args:
        recipes: all papers.
        measured: all measured files.
        claims: see `load_claims`.
        wanted: which budget, source, encoder and overrides; None: those that there are, if they are one and the same.

    Raises:
        UserError: if the runs are of several settings.
    """
    names = {row for claim in claims for part in claim.parts for row in (part.row, part.than)}
    run_as = {name: recipes.row(name).run_as for name in names}
    runs = runs_of(measured, run_as.values(), wanted or Setting(), recipes)
    budget = recipes.budget(runs.setting.budget).title if runs.setting.budget else ""
    by_name = {name: runs.of(run) for name, run in run_as.items()}
    return Judgement(tuple(judge_claim(claim, by_name) for claim in claims), runs, run_as, budget)


def judge_claim(claim: Claim, runs: Mapping[str, Sequence[Measured]]) -> Judged:
    """Judges one claim; `runs` are those of its rows, by name."""
    compared = [_compared(part, runs) for part in claim.parts]
    differences = [found for found in compared if isinstance(found, Difference)]
    corrected = iter(holm([difference.p for difference in differences]))
    tested = []
    for part, found in zip(claim.parts, compared):
        if isinstance(found, str):
            tested.append(Outcome(part, MISSING, why=found))
        else:
            p = next(corrected)
            tested.append(Outcome(part, verdict(part.direction, found, p, claim.margin), found, p))
    return Judged(claim, tuple(tested))


def verdict(direction: Direction, difference: Difference, p: float, margin: float) -> str:
    """What a difference says of what was claimed.

    A difference below `ALPHA` decides first, however small it is. Without one, "no better" holds if no gain as large as
    the margin is left in the interval, and "no worse" if no such loss is.

    Args:
        direction: what was claimed.
        difference: what was found.
        p: its p-value, corrected for the number of tests.
        margin: what counts as no difference.
    """
    ahead, behind = (p < ALPHA and sign * difference.difference > 0 for sign in (1, -1))
    if direction == "better":
        return HELD if ahead else REFUTED if behind else NOISE
    if direction == "no_better":
        return REFUTED if ahead else HELD if behind or difference.high < margin else NOISE
    return REFUTED if behind else HELD if ahead or difference.low > -margin else NOISE


def _compared(part: Part, runs: Mapping[str, Sequence[Measured]]) -> Difference | str:
    """The difference, or why there is none."""
    if absent := [row for row in (part.row, part.than) if not runs[row]]:
        return f"{' and '.join(absent)} not measured yet"
    try:
        return differ(runs[part.than], runs[part.row], part.metric)
    except UserError as error:
        return str(error)


TITLE = "What the papers claim, and what was measured"
ALONE = " (rows alone)"  # beside what a single seed decided
WORDS = {"better": "better than", "no_better": "no better than", "no_worse": "no worse than"}


def show_claims(judgement: Judgement, console: Console | None = None) -> None:
    """Print all claims to standard output."""
    console = console or output_console()
    console.print(Text(TITLE), style="bold")
    for line in head(judgement):
        console.print(Text(line))
    print_table(comparisons(judgement), to=console)
    for line in [*missing(judgement), *summary(judgement)]:
        console.print(Text(line), soft_wrap=True)  # a command is one line


def write_claims(judgement: Judgement, path: str | Path) -> None:
    """Write all claims as Markdown."""
    write_text(path, markdown(judgement))


def markdown(judgement: Judgement) -> str:
    """Return all claims in Markdown: each with its verdict, then the tests, then notes."""
    claims = pd.DataFrame(
        {
            "claim": judged.claim.name,
            "in words": judged.claim.claim,
            "paper": f"{judged.claim.paper}, {judged.claim.where}",
            "verdict": _judged(judged),
        }
        for judged in judgement.claims
    )
    notes = [f"- {judged.claim.name}: {judged.claim.note}" for judged in judgement.claims if judged.claim.note]
    blocks = [f"# {TITLE}", *head(judgement), *summary(judgement), to_markdown(claims, words=4)]
    blocks += ["## Tests", to_markdown(comparisons(judgement), words=3), *missing(judgement)]
    return "\n\n".join([*blocks, *(["## Notes", "\n".join(notes)] if notes else [])]) + "\n"


def head(judgement: Judgement) -> Iterator[str]:
    """Yield what the runs are, and how verdicts are made."""
    setting = judgement.runs.setting
    if judgement.runs.all:
        changed = "".join(f", {one}" for one in setting.changed)
        yield (
            f"Budget {setting.budget} ({judgement.budget}), source {setting.source}, encoder {setting.encoder}"
            f"{changed}; dev rows."
        )
        if left_out := judgement.runs.left_out:
            yield f"Left out are runs with other overrides (-S), {left_out} of them; name these with -S to see them."
    yield (
        "A difference is the first row minus the second, means over seeds, with its 95 % interval by the paired test "
        f"over rows and seeds. It counts if p is below {ALPHA:g} after Holm's correction for the tests of its claim. "
        "No better and no worse also hold where the interval leaves no room for a difference of the claim's margin. "
        "A claim is held if all its parts are, and refuted if one is."
    )


def comparisons(judgement: Judgement) -> pd.DataFrame:
    """Return every test of every claim; claim and rows stand in the first line that they apply to."""
    rows = []
    for judged in judgement.claims:
        claim, before = f"{judged.claim.name}: {_judged(judged)}", ""
        for tested in judged.parts:
            part, difference = tested.part, tested.difference
            compared = f"{part.row} {WORDS[part.direction]} {part.than}"
            row = {"claim": claim, "rows": "" if compared == before else compared}
            row |= {"metric": f"overall, {NAMES[part.metric]}" if part.metric in NAMES else part.metric}
            row |= {"difference": NO_FIGURE, "p": NO_FIGURE, "seeds": NO_FIGURE, "verdict": _verdict(tested, judged)}
            if difference:
                row["difference"] = signed(difference.difference, difference.low, difference.high)
                row["p"] = p_text(tested.p)
                row["seeds"] = f"{difference.seeds[1]}, {difference.seeds[0]}" + ALONE * difference.rows_alone
            rows.append(row)
            claim, before = "", compared
    return pd.DataFrame(rows)


def _judged(judged: Judged) -> str:
    """The verdict of a claim, marked where a single seed decided it."""
    return judged.verdict + ALONE * judged.rows_alone


def _verdict(tested: Outcome, judged: Judged) -> str:
    """The verdict on a part; of a refuted one also by how much."""
    if tested.verdict != REFUTED or tested.difference is None:
        return tested.verdict
    size = abs(tested.difference.difference)
    if tested.part.direction == "no_better" and size < judged.claim.margin:
        return f"{REFUTED}, by a gain of {size:.4f} only"
    return f"{REFUTED}, {'better' if tested.part.direction == 'no_better' else 'worse'} by {size:.3f}"


def missing(judgement: Judgement) -> list[str]:
    """Return what could not be tested, and the command that measures it."""
    untested = [part for judged in judgement.claims for part in judged.parts if part.verdict == MISSING]
    rows = {judgement.run_as[row] for part in untested for row in (part.part.row, part.part.than)}
    absent = sorted(rows - {run.row for run in judgement.runs.all})
    reasons = dict.fromkeys(part.why for part in untested if "not measured yet" not in part.why)
    command = " ".join(["bertrio recipes run", *absent, judgement.runs.setting.to_run]).rstrip()
    return [*([f"Not measured yet: {command}"] if absent else []), *[f"Not tested: {why}." for why in reasons]]


def summary(judgement: Judgement) -> list[str]:
    """Return how many claims held, and how many verdicts may be chance."""
    counts = Counter(judged.verdict for judged in judgement.claims)
    alone = Counter(judged.verdict for judged in judgement.claims if judged.rows_alone)
    verdicts = ", ".join(
        f"{counts[verdict]} {verdict}" + (f" ({alone[verdict]} by rows alone)" if alone[verdict] else "")
        for verdict in (HELD, REFUTED, NOISE, MISSING)
    )
    tests = [[part.difference for part in judged.parts if part.difference] for judged in judgement.claims]
    count, claims = sum(map(len, tests)), sum(map(bool, tests))
    lines = [f"{len(judgement.claims)} claims: {verdicts}."]
    if count:
        lines.append(
            f"{count} tests of {claims} claims were made, at {100 * ALPHA:g} % for all tests of a claim together. "
            f"If there were no differences at all, chance would show one in {ALPHA * claims:.2g} claims at most."
        )
    if single := sum(difference.rows_alone for differences in tests for difference in differences):
        lines.append(
            f"{single} of the tests are over rows alone, for a side has a single seed. Their p knows nothing of seeds: "
            "where these differ, far more than one in twenty is false. Give each row two seeds or more."
        )
    return lines
