"""What the papers claim, and whether the measured runs bear it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from bertrio.core.errors import UserError
from bertrio.core.options import Group, Positive
from bertrio.evaluation.significance import ALPHA, holm
from bertrio.experiments.recipes.rows import Text, nearest, read_file
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

    paper: Text
    where: Text
    claim: Text
    row: Text | None = None
    than: Text | None = None
    low: Text | None = None
    middle: Text | None = None
    high: Text | None = None
    expect: Annotated[dict[str, Literal["better", "no_better", "no_worse", "between"]], Field(min_length=1)]
    margin: Positive = 0.01
    note: Text | None = None

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
