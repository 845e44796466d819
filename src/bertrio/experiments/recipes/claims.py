"""Claims of the papers, tested on the measured runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field, model_validator

from bertrio.core.errors import UserError
from bertrio.core.options import Group, Positive
from bertrio.evaluation.significance import ALPHA, holm, p_text
from bertrio.experiments.recipes.comparable import Difference, Ratio, Runs, Setting, differ, runs_of, time_ratio
from bertrio.experiments.recipes.measured import Measured
from bertrio.experiments.recipes.rows import NonEmptyText, Recipes, read_file
from bertrio.experiments.recipes.table_text import NAMES, NO_FIGURE, DocumentPart, left_out, signed

FILE = "recipes/claims.yaml"
HELD, REFUTED, INCONCLUSIVE, MISSING = "held", "refuted", "inconclusive", "not measured"
ALONE = " (rows alone)"  # marks a test with a single seed on both sides
HOW = (
    "A difference is the first row minus the second, means over seeds, with its 95 % interval by the paired test over "
    f"rows and seeds. It counts if p, by Holm's correction for the tests of its claim, is below {ALPHA:g}. Rows alone: "
    "both sides have a single seed, and p knows nothing of seeds. A ratio of minutes is of updates in one session, "
    "with the interval of Welch's test, all of which must be within the claim's bounds, or outside. How verdicts are "
    "made: docs/experiments.md."
)
MINUTES = "minutes"  # of training
Direction = Literal["better", "no_better", "no_worse"]
Metric = Literal["sst", "qqp", "sts", "overall_mean", "overall_normalized"]  # a task stands for its main metric


@dataclass
class Part:
    """One comparison of a claim, with its test result.

    Args:
        row, than: full names; the claim is that `row` is better, no better, or no worse than `than`.
        metric: a task, or an overall score.
        direction: better, no_better or no_worse.
        verdict: held, refuted, inconclusive or not measured.
        difference: `row` minus `than`, or for minutes their ratio; None if it was not tested.
        p: p-value with Holm's correction for the tested parts of the claim.
        why: the reason why measured rows can't be compared.
    """

    row: str
    than: str
    metric: str
    direction: str
    verdict: str = MISSING
    difference: Difference | Ratio | None = None
    p: float | None = None
    why: str = ""

    @property
    def rows_alone(self) -> bool:
        """True if the test covers rows alone, because both sides have a single seed."""
        return isinstance(self.difference, Difference) and self.difference.rows_alone


class Claim(Group):
    """A paper's claim, all parts of which must hold; recipes/claims.yaml describes the keys."""

    name: str = ""
    paper: NonEmptyText
    where: NonEmptyText
    claim: NonEmptyText
    rows: Annotated[tuple[NonEmptyText, ...], Field(min_length=2)]
    best: bool = False
    expect: dict[Metric, Direction] = Field(default_factory=dict)
    times_as_long: tuple[Positive, Positive | None] | None = None
    margin: Positive = 0.01
    note: NonEmptyText | None = None

    @model_validator(mode="after")
    def _expects_something(self) -> Claim:
        if not (self.expect or self.times_as_long):
            raise ValueError("expected expect or times_as_long, or both")
        return self

    def parts(self) -> list[Part]:
        """Return the comparisons of the claim: each row with the next one; with `best` the first with every other."""
        expected: list[tuple[str, str]] = [*self.expect.items()]
        if self.times_as_long:
            low, high = self.times_as_long
            expected.append((MINUTES, f"{f'{low:g} to {high:g}' if high else f'at least {low:g}'} times as long"))
        pairs = [(self.rows[0], other) for other in self.rows[1:]] if self.best else list(pairwise(self.rows))
        return [Part(row, than, metric, direction) for metric, direction in expected for row, than in pairs]


@dataclass(frozen=True)
class Judged:
    """A claim and its tested parts."""

    claim: Claim
    parts: Sequence[Part]

    @property
    def verdict(self) -> str:
        """Refuted if any part is; else not measured, or inconclusive, if any part is; held if all are."""
        verdicts = {part.verdict for part in self.parts}
        return next(verdict for verdict in (REFUTED, MISSING, INCONCLUSIVE, HELD) if verdict in verdicts)

    @property
    def rows_alone(self) -> bool:
        """True if the verdict (held or refuted) depends on a test with a single seed on both sides."""
        alone = [part.rows_alone for part in self.parts if part.verdict == self.verdict]
        if self.verdict == REFUTED:  # one refuting part is enough
            return all(alone)
        return self.verdict == HELD and any(alone)


@dataclass(frozen=True)
class Judgement:
    """All judged claims, the runs used, and the rows that are not measured yet."""

    claims: Sequence[Judged]
    runs: Runs
    absent: Sequence[str] = ()


def load_claims(path: str | Path = FILE) -> list[Claim]:
    """Load the claims. Errors are UserErrors that name the claim and the key."""
    claims: dict[str, Claim] = read_file(Path(path), dict[str, Claim])
    return [claim.model_copy(update={"name": name}) for name, claim in claims.items()]


def judge(
    recipes: Recipes, measured: Iterable[Measured], claims: Sequence[Claim], wanted: Setting | None = None
) -> Judgement:
    """Judge all claims by runs of one setting.

    Args:
        recipes: all papers.
        measured: all measured files.
        claims: see `load_claims`.
        wanted: budget, source, encoder and overrides of the runs; None takes all runs, which must share one setting.

    Raises:
        UserError: if a claim names an unknown row, or the runs have several settings.
    """
    run_as = {name: recipes.row(name).run_as for claim in claims for name in claim.rows}
    runs = runs_of(measured, run_as.values(), wanted or Setting(), recipes)
    by_name = {name: runs.of(run) for name, run in run_as.items()}
    absent = sorted(set(run_as.values()) - runs.by_row.keys())
    return Judgement([judge_claim(claim, by_name) for claim in claims], runs, absent)


def judge_claim(claim: Claim, runs: Mapping[str, Sequence[Measured]]) -> Judged:
    """Judge one claim by the runs of its rows, by row name."""
    parts = claim.parts()
    for part in parts:
        if runs[part.row] and runs[part.than]:
            try:
                if part.metric == MINUTES and claim.times_as_long:
                    part.difference = time_ratio(runs[part.than], runs[part.row])
                    part.verdict = within(part.difference, *claim.times_as_long)
                else:
                    part.difference = differ(runs[part.than], runs[part.row], part.metric)
            except UserError as error:
                part.why = str(error)
    tested = [(part, part.difference) for part in parts if isinstance(part.difference, Difference)]
    for (part, difference), p in zip(tested, holm([difference.p for _, difference in tested])):
        part.p, part.verdict = p, verdict(part.direction, difference, p, claim.margin)
    return Judged(claim, parts)


def verdict(direction: str, difference: Difference, p: float, margin: float) -> str:
    """Return the verdict on one comparison.

    A significant difference (p below `ALPHA`) decides, however small it is. Otherwise "no better" holds if the upper
    end of the interval is below the margin, and "no worse" if the lower end is above minus the margin.

    Args:
        direction: the claim.
        difference: the measured difference with its interval.
        p: its p-value, corrected for the number of tests.
        margin: the largest difference that counts as none.
    """
    ahead, behind = (p < ALPHA and sign * difference.difference > 0 for sign in (1, -1))
    if direction == "better":
        return HELD if ahead else REFUTED if behind else INCONCLUSIVE
    if direction == "no_better":
        return REFUTED if ahead else HELD if behind or difference.high < margin else INCONCLUSIVE
    return REFUTED if behind else HELD if ahead or difference.low > -margin else INCONCLUSIVE


def within(ratio: Ratio, low: float, high: float | None) -> str:
    """Return the verdict on a ratio that is claimed to be from `low` to `high` (None: without a limit)."""
    if low <= ratio.low and (high is None or ratio.high <= high):
        return HELD
    return REFUTED if ratio.high < low or (high is not None and ratio.low > high) else INCONCLUSIVE


def claim_document(judgement: Judgement) -> Iterator[DocumentPart]:
    """Yield all claims as a document: verdicts, then tests, then notes."""
    yield "# What the papers claim, and what was measured"
    yield _summary(judgement)
    if judgement.runs.all:
        yield f"Dev rows; {judgement.runs.setting.title}."
    yield from left_out(judgement.runs)
    yield pd.DataFrame(
        {
            "verdict": judged.verdict + ALONE * judged.rows_alone,
            "claim": judged.claim.claim,
            "paper": f"{judged.claim.paper}, {judged.claim.where}",
            "name": judged.claim.name,
        }
        for judged in judgement.claims
    )
    yield "## Tests"
    yield HOW
    yield pd.DataFrame(_test(judged.claim.name, part) for judged in judgement.claims for part in judged.parts)
    if judgement.absent:
        yield f"Not measured yet: {judgement.runs.setting.run_command(*judgement.absent)}"
    for why in dict.fromkeys(part.why for judged in judgement.claims for part in judged.parts if part.why):
        yield f"Not tested: {why}."
    yield from (f"{judged.claim.name}: {judged.claim.note}" for judged in judgement.claims if judged.claim.note)


def _test(claim: str, part: Part) -> dict[str, str]:
    """Return the table cells of one test."""
    difference, text = part.difference, NO_FIGURE
    if isinstance(difference, Ratio):
        text = f"{difference.value:.2f} times [{difference.low:.2f}, {difference.high:.2f}]"
    elif difference:
        text = signed(difference.difference, difference.low, difference.high)
    than = "as" if part.metric == MINUTES else "than"
    return {
        "claim": claim,
        "rows": f"{part.row} {part.direction.replace('_', ' ')} {than} {part.than}",
        "metric": NAMES.get(part.metric, part.metric),
        "difference": text,
        "p": p_text(part.p),
        "seeds": f"{difference.seeds[1]}, {difference.seeds[0]}" if difference else NO_FIGURE,
        "verdict": part.verdict + ALONE * part.rows_alone,
    }


def _summary(judgement: Judgement) -> str:
    """Return a sentence with the number of claims by verdict and of those expected by chance."""
    counts = Counter(judged.verdict for judged in judgement.claims)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (HELD, REFUTED, INCONCLUSIVE, MISSING))
    tested = Counter(judged.claim.name for judged in judgement.claims for part in judged.parts if part.p is not None)
    return (
        f"{len(judgement.claims)} claims: {verdicts}. {tested.total()} tests of {len(tested)} claims, with a "
        f"family-wise error rate of {100 * ALPHA:g} % per claim: without any true difference, at most "
        f"{ALPHA * len(tested):.2g} claims would be significant by chance, on average."
    )
