"""What the papers claim, and whether the measured runs bear it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pandas as pd
from pydantic import Field, model_validator
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.errors import UserError
from bertrio.core.options import Group, Positive
from bertrio.evaluation.significance import ALPHA, holm, p_text
from bertrio.experiments.recipes.rows import NonEmptyText, nearest, read_file
from bertrio.experiments.recipes.table_text import MISSING as NO_FIGURE
from bertrio.experiments.recipes.table_text import NAMES, left_out, signed, to_markdown
from bertrio.experiments.recipes.tables import METRICS
from bertrio.experiments.runs import Difference, Runs, Setting, differ, runs_of

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured
    from bertrio.experiments.recipes.rows import Recipes

FILE = "recipes/claims.yaml"
HELD, REFUTED, NOISE, MISSING = "held", "refuted", "inside the noise", "not measured"
Direction = Literal["better", "no_better", "no_worse"]


@dataclass
class Part:
    """One comparison of a claim, and what was measured of it.

    Args:
        row, than: full names; `row` is better, no better, or no worse than `than`.
        metric: a task, or an overall score.
        direction: which of them.
        verdict: held, refuted, inside the noise or not measured.
        difference: of `row` from `than`; None if there is none.
        p: with Holm's correction for the parts of the claim that were tested.
        why: what kept measured rows from being compared.
    """

    row: str
    than: str
    metric: str
    direction: Direction
    verdict: str = MISSING
    difference: Difference | None = None
    p: float | None = None
    why: str = ""


class Claim(Group):
    """What a paper claims, of which every part must hold; see recipes/claims.yaml for the keys."""

    name: str = ""
    paper: NonEmptyText
    where: NonEmptyText
    claim: NonEmptyText
    row: NonEmptyText | None = None
    than: NonEmptyText | None = None
    low: NonEmptyText | None = None
    middle: NonEmptyText | None = None
    high: NonEmptyText | None = None
    expect: Annotated[dict[str, Literal[Direction, "between"]], Field(min_length=1)]
    margin: Positive = 0.01
    note: NonEmptyText | None = None

    @model_validator(mode="after")
    def _names_its_rows(self) -> Claim:
        kinds = {direction == "between" for direction in self.expect.values()}
        named = {name for name in ("row", "than", "low", "middle", "high") if getattr(self, name)}
        if len(kinds) > 1 or named != ({"low", "middle", "high"} if True in kinds else {"row", "than"}):
            raise ValueError("expected row and than or, where all that it expects is between, low, middle and high")
        if unknown := [metric for metric in self.expect if metric not in METRICS]:
            raise ValueError(f"expect: {unknown[0]}: no such metric; {nearest(unknown[0], METRICS)}")
        return self

    def parts(self) -> list[Part]:
        """Return the comparisons that it makes, each row with the one before; between is two."""
        rows = [row for row in (self.low, self.middle, self.high, self.than, self.row) if row]
        return [
            Part(row, than, metric, "better" if direction == "between" else direction)
            for metric, direction in self.expect.items()
            for than, row in pairwise(rows)
        ]


@dataclass(frozen=True)
class Judged:
    """A claim and its tested parts."""

    claim: Claim
    parts: Sequence[Part]

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

    @property
    def marked(self) -> str:
        """The verdict, marked where a single seed decided it."""
        return self.verdict + ALONE * self.rows_alone


@dataclass(frozen=True)
class Judgement:
    """All claims, the runs that they were judged by, their budget in words, and the rows that are not measured yet."""

    claims: Sequence[Judged]
    runs: Runs
    budget: str = ""
    absent: Sequence[str] = ()


def load_claims(recipes: Recipes, path: str | Path = FILE) -> list[Claim]:
    """Read the claims, strictly.

    Raises:
        UserError: naming the claim and the key that is wrong, such as a row that there is not, or one that is quoted
            from the literature and has no run.
    """
    claims = []
    for name, claim in read_file(Path(path), dict[str, Claim]).items():
        where = f"{path}: {name}"
        recipes.paper(claim.paper)
        for part in claim.parts():
            row, than = recipes.row(part.row), recipes.row(part.than)
            if row.literature or than.literature:
                quoted = part.row if row.literature else part.than
                raise UserError(f"{where}: {quoted} is quoted from the literature and can't be run; name another row")
            if row.run_as == than.run_as:
                raise UserError(f"{where}: {part.row} and {part.than} are the same run; name two that differ")
        claims.append(claim.model_copy(update={"name": name}))
    return claims


def judge(
    recipes: Recipes, measured: Iterable[Measured], claims: Sequence[Claim], wanted: Setting | None = None
) -> Judgement:
    """Judge all claims by runs of one setting.

    Args:
        recipes: all papers.
        measured: all measured files.
        claims: see `load_claims`.
        wanted: which budget, source, encoder and overrides; None: those that there are, if they are one and the same.

    Raises:
        UserError: if the runs are of several settings.
    """
    names = {row for claim in claims for part in claim.parts() for row in (part.row, part.than)}
    run_as = {name: recipes.row(name).run_as for name in names}
    runs = runs_of(measured, run_as.values(), wanted or Setting(), recipes)
    budget = recipes.budget(runs.setting.budget).title if runs.setting.budget else ""
    by_name = {name: runs.of(run) for name, run in run_as.items()}
    absent = sorted(set(run_as.values()) - runs.by_row.keys())
    return Judgement([judge_claim(claim, by_name) for claim in claims], runs, budget, absent)


def judge_claim(claim: Claim, runs: Mapping[str, Sequence[Measured]]) -> Judged:
    """Judge one claim; `runs` are those of its rows, by name."""
    parts = claim.parts()
    for part in parts:
        if runs[part.row] and runs[part.than]:
            try:
                part.difference = differ(runs[part.than], runs[part.row], part.metric)
            except UserError as error:
                part.why = str(error)
    tested = [(part, part.difference) for part in parts if part.difference]
    for (part, difference), p in zip(tested, holm([difference.p for _, difference in tested])):
        part.p, part.verdict = p, verdict(part.direction, difference, p, claim.margin)
    return Judged(claim, parts)


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


def markdown(judgement: Judgement) -> str:
    """Return all claims in Markdown: each with its verdict, then the tests, then notes."""
    claims = pd.DataFrame(
        {
            "claim": judged.claim.name,
            "in words": judged.claim.claim,
            "paper": f"{judged.claim.paper}, {judged.claim.where}",
            "verdict": judged.marked,
        }
        for judged in judgement.claims
    )
    notes = [f"- {judged.claim.name}: {judged.claim.note}" for judged in judgement.claims if judged.claim.note]
    blocks = [f"# {TITLE}", *head(judgement), *summary(judgement), to_markdown(claims, words=4)]
    blocks += ["## Tests", to_markdown(comparisons(judgement), words=3), *missing(judgement)]
    return "\n\n".join([*blocks, *(["## Notes", "\n".join(notes)] if notes else [])]) + "\n"


def head(judgement: Judgement) -> Iterator[str]:
    """Yield what the runs are, and how verdicts are made."""
    if judgement.runs.all:
        yield f"Dev rows; {judgement.runs.setting.title}. The budget: {judgement.budget}."
        yield from left_out(judgement.runs)
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
        claim, before = f"{judged.claim.name}: {judged.marked}", ""
        for part in judged.parts:
            compared = f"{part.row} {WORDS[part.direction]} {part.than}"
            row = {"claim": claim, "rows": "" if compared == before else compared}
            row |= {"metric": f"overall, {NAMES[part.metric]}" if part.metric in NAMES else part.metric}
            row |= {"difference": NO_FIGURE, "p": NO_FIGURE, "seeds": NO_FIGURE, "verdict": part.verdict}
            if difference := part.difference:
                row["difference"] = signed(difference.difference, difference.low, difference.high)
                row["p"] = p_text(part.p)
                row["seeds"] = f"{difference.seeds[1]}, {difference.seeds[0]}" + ALONE * difference.rows_alone
                row["verdict"] += _size(part, difference.difference, judged.claim.margin)
            rows.append(row)
            claim, before = "", compared
    return pd.DataFrame(rows)


def _size(part: Part, difference: float, margin: float) -> str:
    """By how much a part is refuted."""
    if part.verdict != REFUTED:
        return ""
    if part.direction == "no_better" and abs(difference) < margin:
        return f", by a gain of {abs(difference):.4f} only"
    return f", {'better' if part.direction == 'no_better' else 'worse'} by {abs(difference):.3f}"


def missing(judgement: Judgement) -> Iterator[str]:
    """Yield the command that measures what is missing, and what could not be tested."""
    if judgement.absent:
        command = " ".join(["bertrio recipes run", *judgement.absent, judgement.runs.setting.to_run])
        yield f"Not measured yet: {command.rstrip()}"
    for why in dict.fromkeys(part.why for judged in judgement.claims for part in judged.parts if part.why):
        yield f"Not tested: {why}."


def summary(judgement: Judgement) -> Iterator[str]:
    """Yield how many claims held, and how many verdicts may be chance."""
    counts = Counter(judged.verdict for judged in judgement.claims)
    alone = Counter(judged.verdict for judged in judgement.claims if judged.rows_alone)
    verdicts = ", ".join(
        f"{counts[verdict]} {verdict}" + (f" ({alone[verdict]} by rows alone)" if alone[verdict] else "")
        for verdict in (HELD, REFUTED, NOISE, MISSING)
    )
    tests = [
        (judged.claim.name, found) for judged in judgement.claims for part in judged.parts if (found := part.difference)
    ]
    claims = len({claim for claim, _ in tests})
    yield f"{len(judgement.claims)} claims: {verdicts}."
    if tests:
        yield (
            f"{len(tests)} tests of {claims} claims were made, at {100 * ALPHA:g} % for all tests of a claim together. "
            f"If there were no differences at all, chance would show one in {ALPHA * claims:.2g} claims at most."
        )
    if single := sum(difference.rows_alone for _, difference in tests):
        yield (
            f"{single} of the tests are over rows alone, for a side has a single seed. Their p knows nothing of seeds: "
            "where these differ, far more than one in twenty is false. Give each row two seeds or more."
        )
