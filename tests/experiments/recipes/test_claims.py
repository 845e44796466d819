"""Verdicts on claims of papers: from differences, from simulated runs, and as text."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from rich.console import Console
from scipy.special import stdtrit

from bertrio.core.errors import UserError
from bertrio.evaluation.significance import holm
from bertrio.experiments.recipes.claims import (
    HELD,
    INCONCLUSIVE,
    MISSING,
    REFUTED,
    Claim,
    Judged,
    claim_document,
    judge,
    judge_claim,
    load_claims,
    verdict,
    within,
)
from bertrio.experiments.recipes.comparable import Difference, Ratio
from bertrio.experiments.recipes.rows import Recipes, load_recipes
from bertrio.experiments.recipes.table_text import show, to_markdown
from tests.experiments.simulated import seeds

BI, MIXED, CROSS = "beyond-bi-encoding", "beyond-mixed-cosine", "beyond-cross-encoding"
SHARED, RUN = "beyond-lambda-0.45", "beyond-sft-smart-dual"  # a row, and the row that it shares a run with
CLAIM = {"paper": "beyond", "where": "table 1", "claim": "A claim.", "note": "What else differs."}
CLAIM |= {"rows": [CROSS, BI], "expect": {"qqp": "better"}}


@pytest.fixture(scope="module")
def papers(request) -> Recipes:
    """The project's recipes."""
    return load_recipes(request.config.rootpath / "recipes")


@pytest.fixture
def judged(papers, tmp_path):
    """Judge `CLAIM`, with some keys replaced, on runs."""

    def judged(runs, **keys):
        path = tmp_path / "claims.yaml"
        path.write_text(yaml.safe_dump({"c": CLAIM | keys}))
        return judge(papers, runs, load_claims(path))

    return judged


def claim(**expect: str) -> Claim:
    """Return a claim about row `a` compared with row `b`."""
    return Claim(name="c", paper="p", where="table 1", claim="A claim.", rows=("a", "b"), expect=expect)


def difference_of(value: float, reach: float = 0.005) -> Difference:
    return Difference(0.5, 0.5 + value, (3, 3), value - reach, value + reach, 0.5)


def text_of(judgement) -> str:
    """Return Markdown without the padding of its tables."""
    return re.sub(" {2,}", " ", to_markdown(claim_document(judgement)))


def test_claims_name_runnable_rows_and_agree_with_their_papers(papers, root):
    claims = load_claims(root / "recipes/claims.yaml")
    assert {one.paper for one in claims} == {name for name, paper in papers.papers.items() if not paper.own}
    for one in claims:
        rows = [papers.row(name) for name in one.rows]
        assert not any(row.literature for row in rows), one.name
        assert len({row.run_as for row in rows}) == len(rows), one.name
        assert {row.paper for row in rows} == {one.paper} == {one.name.split("-")[0]}
        for part in one.parts():
            row, than = (papers.row(name).reported.get(part.metric) for name in (part.row, part.than))
            contradicts = row is not None and than is not None and part.direction == "better" and row <= than
            assert one.note or not contradicts, one.name


def test_effect_is_held_and_refuted_when_reversed():
    runs = {"a": seeds("a", skill=1.2), "b": seeds("b", skill=0.2)}
    every = claim(sst="better", qqp="better", sts="better", overall_normalized="better")
    judged = judge_claim(every, runs)
    assert judged.verdict == HELD
    assert [part.p for part in judged.parts] == holm([part.difference.p for part in judged.parts])
    swapped = judge_claim(every, {"a": runs["b"], "b": runs["a"]})
    assert {part.verdict for part in swapped.parts} == {REFUTED}


@pytest.mark.parametrize(
    ("direction", "difference", "p", "expected"),
    [
        ("better", 0.02, 0.01, HELD),
        ("better", -0.02, 0.01, REFUTED),
        ("better", 0.02, 0.06, INCONCLUSIVE),
        ("no_better", 0.002, 0.01, REFUTED),  # a gain of any size
        ("no_better", 0.002, 0.3, HELD),  # any gain is below the margin
        ("no_better", -0.02, 0.01, HELD),
        ("no_better", 0.008, 0.3, INCONCLUSIVE),
        ("no_worse", -0.002, 0.01, REFUTED),
        ("no_worse", -0.002, 0.3, HELD),
        ("no_worse", 0.02, 0.01, HELD),
        ("no_worse", -0.008, 0.3, INCONCLUSIVE),
    ],
)
def test_verdicts(direction, difference, p, expected):
    assert verdict(direction, difference_of(difference), p, margin=0.01) == expected


@pytest.mark.parametrize(
    ("low", "high", "bounds", "expected"),
    [
        (1.4, 1.6, (1.25, 1.75), HELD), (1.4, 1.9, (1.25, 1.75), INCONCLUSIVE), (1.8, 1.9, (1.25, 1.75), REFUTED),
        (1.0, 1.2, (1.25, 1.75), REFUTED), (2.1, 9.0, (2, None), HELD), (1.9, 9.0, (2, None), INCONCLUSIVE),
    ],
)  # fmt: skip
def test_verdicts_on_ratios(low, high, bounds, expected):
    assert within(Ratio(1.5, low, high, (3, 3)), *bounds) == expected


def test_minutes_are_compared_as_ratios_within_a_session(judged):
    keys = {"expect": {}, "times_as_long": [1.8, 2.2]}
    slow = [replace(run, update_seconds=200 + run.seed, session="a") for run in seeds(CROSS)]
    fast = [replace(run, update_seconds=100 + run.seed, session="a") for run in seeds(BI)]
    judgement = judged([*slow, *fast], **keys)
    [part] = judgement.claims[0].parts
    logs = [np.log([run.update_seconds for run in side]) for side in (slow, fast)]
    error = np.sqrt(sum(side.var(ddof=1) / 3 for side in logs))
    freedom = error**4 / sum((side.var(ddof=1) / 3) ** 2 / 2 for side in logs)
    reach = stdtrit(freedom, 0.975) * error
    ends = np.exp(logs[0].mean() - logs[1].mean() + np.array([0, -reach, reach]))
    assert (part.difference.value, part.difference.low, part.difference.high) == pytest.approx(ends)
    assert part.verdict == HELD and part.p is None
    assert f"| {CROSS} 1.8 to 2.2 times as long as {BI} | minutes | 1.98 times [1.9" in text_of(judgement)
    assert judged([*slow[:1], *fast], **keys).claims[0].verdict == INCONCLUSIVE  # a single run gives no interval
    restarted = [replace(run, session="b", update_seconds=50) for run in fast[:1]]  # without the other side
    [part] = judged([*slow, *restarted, *fast[1:]], **keys).claims[0].parts
    assert part.difference.seeds == (2, 3) and part.verdict == HELD
    for other in ({"session": "b"}, {"session": None}, {"update_seconds": None}):
        judgement = judged([*slow, *[replace(run, **other) for run in fast]], **keys)
        assert judgement.claims[0].verdict == MISSING and "not timed in one session" in text_of(judgement)
    with pytest.raises(UserError, match="c: expected expect or times_as_long"):
        judged([], expect={})


def test_best_row_is_compared_with_each_other_row(judged):
    one = judged([], rows=[CROSS, MIXED, BI], best=True).claims[0]
    assert [(part.row, part.than) for part in one.parts] == [(CROSS, MIXED), (CROSS, BI)]


def test_chain_of_rows_holds_if_every_step_does(judged):
    chain = {"rows": [SHARED, MIXED, BI], "expect": {"sts": "better"}}
    runs = [*seeds(BI, skill=0.1), *seeds(MIXED, skill=0.6)]
    one = judged([*runs, *seeds(RUN, skill=1.2)], **chain).claims[0]
    assert [(part.row, part.than) for part in one.parts] == [(SHARED, MIXED), (MIXED, BI)]
    assert one.verdict == HELD
    one = judged([*runs, *seeds(RUN, skill=0.1)], **chain).claims[0]
    assert [part.verdict for part in one.parts] == [REFUTED, HELD]
    assert one.verdict == REFUTED


def test_untestable_claim_has_a_reason(judged):
    unmeasured = judged(seeds(BI))
    assert f"Not measured yet: bertrio recipes run {CROSS} --budget quick\n" in text_of(unmeasured)
    other_rows = judged([*seeds(BI), *seeds(CROSS, data=1)])
    assert f"Not tested: {CROSS} and {BI} were measured on other dev rows" in text_of(other_rows)
    assert unmeasured.claims[0].verdict == other_rows.claims[0].verdict == MISSING


@pytest.mark.parametrize(("count", "alone"), [(1, " (rows alone)"), (3, "")])
def test_text_of_a_claim(judged, count, alone):
    text = text_of(judged([*seeds(CROSS, count, skill=2.0), *seeds(BI, count, skill=0.1)]))
    for part in (
        f"| held{alone} | A claim. | beyond, table 1 | c |",
        f"| c | {CROSS} better than {BI} | qqp | +0.",
        f"| {count}, {count} | held{alone} |",
        "c: What else differs.",
        "1 claims: 1 held, 0 refuted, 0 inconclusive, 0 not measured. 1 tests of 1 claims, with",
    ):
        assert part in text


def test_command_for_missing_runs_is_one_line(papers, root):
    console = Console(width=80, record=True, file=io.StringIO())
    show(claim_document(judge(papers, [], load_claims(root / "recipes/claims.yaml"))), console)
    [command] = [line for line in console.export_text().splitlines() if line.startswith("Not measured yet: ")]
    assert len(command) > 80


@pytest.mark.parametrize(
    ("verdicts", "single", "alone"),
    [
        ((REFUTED, REFUTED), (True, False), False),  # the other part refutes it anyway
        ((REFUTED, HELD), (True, False), True),
        ((HELD, HELD), (True, False), True),
        ((HELD, HELD), (False, False), False),
        ((INCONCLUSIVE, HELD), (True, True), False),
    ],
)
def test_rows_alone_marks_verdicts_that_need_a_single_seed(verdicts, single, alone):
    both = claim(sst="better", qqp="better")
    differences = [replace(difference_of(0.1), seeds=(1, 1) if one else (1, 3)) for one in single]
    decided = zip(both.parts(), verdicts, differences)
    parts = [replace(part, verdict=verdict, difference=difference) for part, verdict, difference in decided]
    assert Judged(both, parts).rows_alone == alone


def test_invalid_claim_is_an_error(judged):
    with pytest.raises(UserError, match="did you mean beyond-cross-encoding"):
        judged([], rows=["beyond-cros-encoding", BI])
    with pytest.raises(UserError, match="c.expect.sstt"):
        judged([], expect={"sstt": "worse"})
