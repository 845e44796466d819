"""The verdicts on the papers' claims, on the terminal and in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.files import write_text
from bertrio.evaluation.significance import ALPHA, p_text
from bertrio.experiments.recipes.claims import HELD, MISSING, NOISE, REFUTED, Judged, Judgement, Outcome
from bertrio.experiments.recipes.table_text import MISSING as ABSENT
from bertrio.experiments.recipes.table_text import NAMES, signed, to_markdown

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
            row |= {"difference": ABSENT, "p": ABSENT, "seeds": ABSENT, "verdict": _verdict(tested, judged)}
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
