"""Verdicts on what the papers claim: from differences, from simulated runs, and as they are written."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from rich.console import Console

from bertrio.core.errors import UserError
from bertrio.evaluation.significance import holm
from bertrio.experiments.recipes.claims import (
    HELD,
    MISSING,
    NOISE,
    REFUTED,
    Claim,
    Judged,
    Judgement,
    Part,
    comparisons,
    judge,
    judge_claim,
    load_claims,
    markdown,
    show_claims,
    verdict,
)
from bertrio.experiments.recipes.rows import Recipes, load_recipes
from bertrio.experiments.runs import Difference, Runs, Setting
from tests.experiments.simulated import seeds, simulate

BI, MIXED, CROSS = "beyond-bi-encoding", "beyond-mixed-cosine", "beyond-cross-encoding"
CLAIM = {"paper": "beyond", "where": "table 1", "claim": "A claim.", "note": "What else differs."}
CLAIM |= {"row": CROSS, "than": BI, "expect": {"qqp": "better"}}


@pytest.fixture(scope="module")
def papers(request) -> Recipes:
    """The project's own recipes."""
    return load_recipes(request.config.rootpath / "recipes")


@pytest.fixture
def loaded(papers, tmp_path):
    """Loads a file with the claim c: `CLAIM`, with what is given in place of its keys."""

    def loaded(**given):
        path = tmp_path / "claims.yaml"
        path.write_text(yaml.safe_dump({"c": CLAIM | given}))
        return load_claims(papers, path)

    return loaded


@pytest.fixture
def judged(papers, loaded):
    """Judges such a claim by runs."""
    return lambda runs, wanted=None, **given: judge(papers, runs, loaded(**given), wanted)


def claim(**expect: str) -> Claim:
    """That `a` is something or other than `b`."""
    return Claim(name="c", paper="p", where="table 1", claim="A claim.", row="a", than="b", expect=expect)


def found(difference: float, reach: float = 0.005) -> Difference:
    return Difference("sst", 0.5, 0.5 + difference, (3, 3), difference - reach, difference + reach, 0.5)


def text_of(judgement: Judgement) -> str:
    """Markdown without the padding of its tables."""
    return re.sub(" {2,}", " ", markdown(judgement))


def test_all_claims_of_the_papers_name_rows_that_can_be_run(papers, root):
    claims = load_claims(papers, root / "recipes/claims.yaml")
    assert {claim.paper for claim in claims} == {name for name, paper in papers.papers.items() if not paper.own}
    for one in claims:
        assert one.name.startswith(f"{one.paper}-")
        assert all(part.row.startswith(f"{one.paper}-") for part in one.parts())


def test_a_reported_figure_that_a_claim_rests_on_speaks_for_it_or_its_note_says_otherwise(papers, root):
    against = []
    for one in load_claims(papers, root / "recipes/claims.yaml"):
        for part in one.parts():
            row, than = (papers.row(name).reported.get(part.metric) for name in (part.row, part.than))
            if row is not None and than is not None and part.direction == "better" and row <= than and not one.note:
                against.append((one.name, part.metric))
    assert not against


def test_an_effect_is_held_and_the_other_way_round_refuted():
    runs = {"a": seeds("a", skill=1.2), "b": seeds("b", skill=0.2)}
    every = claim(sst="better", qqp="better", sts="better", overall_normalized="better")
    assert judge_claim(every, runs).verdict == HELD
    turned = judge_claim(every, {"a": runs["b"], "b": runs["a"]})
    assert {part.verdict for part in turned.parts} == {REFUTED}
    assert judge_claim(claim(sst="no_better"), runs).verdict == REFUTED
    assert judge_claim(claim(sst="no_worse"), runs).verdict == HELD


def test_without_an_effect_a_claim_of_several_metrics_is_rarely_decided():
    several = claim(sst="better", qqp="better", sts="better")
    judged = [
        judge_claim(several, {name: seeds(name, data=data, rows=100) for name in ("a", "b")}) for data in range(200)
    ]
    false = np.mean([any(part.verdict in (HELD, REFUTED) for part in one.parts) for one in judged])
    assert false <= 0.1  # 5 %, and three standard errors
    assert all(one.verdict in (NOISE, REFUTED) for one in judged)


def test_p_is_corrected_for_the_metrics_of_the_claim():
    runs = {"a": seeds("a", skill=0.7), "b": seeds("b", skill=0.5)}
    judged = judge_claim(claim(sst="better", qqp="better", sts="no_better"), runs)
    assert [part.p for part in judged.parts] == holm([part.difference.p for part in judged.parts])


@pytest.mark.parametrize(
    ("direction", "difference", "p", "expected"),
    [
        ("better", 0.02, 0.01, HELD),
        ("better", -0.02, 0.01, REFUTED),
        ("better", 0.02, 0.06, NOISE),
        ("no_better", 0.002, 0.01, REFUTED),  # a gain of any size
        ("no_better", 0.002, 0.3, HELD),  # whatever gain there is, it is below the margin
        ("no_better", -0.02, 0.01, HELD),
        ("no_better", 0.008, 0.3, NOISE),
        ("no_worse", -0.002, 0.01, REFUTED),
        ("no_worse", -0.002, 0.3, HELD),
        ("no_worse", 0.02, 0.01, HELD),
        ("no_worse", -0.008, 0.3, NOISE),
    ],
)
def test_verdicts(direction, difference, p, expected):
    assert verdict(direction, found(difference), p, margin=0.01) == expected


def test_between_holds_in_both_halves(judged):
    between = {"row": None, "than": None, "low": BI, "middle": MIXED, "high": CROSS, "expect": {"sts": "between"}}
    runs = [*seeds(BI, skill=0.1), *seeds(MIXED, skill=0.6)]
    one = judged([*runs, *seeds(CROSS, skill=1.2)], **between).claims[0]
    assert [(part.row, part.than) for part in one.parts] == [(MIXED, BI), (CROSS, MIXED)]
    assert one.verdict == HELD
    one = judged([*runs, *seeds(CROSS, skill=0.1)], **between).claims[0]
    assert [part.verdict for part in one.parts] == [HELD, REFUTED]
    assert one.verdict == REFUTED


def test_what_can_not_be_tested_is_not_measured_and_the_text_says_why(judged):
    absent = judged(seeds(BI))
    assert f"Not measured yet: bertrio recipes run {CROSS} --budget quick\n" in markdown(absent)
    other_rows = judged([*seeds(BI), *seeds(CROSS, data=1)])
    assert f"Not tested: {CROSS} and {BI} were measured on other dev rows" in markdown(other_rows)
    assert absent.claims[0].verdict == other_rows.claims[0].verdict == MISSING


def test_settings_are_not_mixed_and_runs_with_other_overrides_are_counted(judged):
    mixed = [*seeds(BI), *seeds(CROSS, budget="paper")]
    with pytest.raises(UserError, match="several settings"):
        judged(mixed)
    assert judged(mixed, Setting(budget="paper")).claims[0].verdict == MISSING
    other = simulate(CROSS, overrides={"finetune.lr": 3e-5})
    assert "Left out are runs with other overrides (-S), 1 of them" in markdown(judged([*seeds(BI), other]))


def test_rows_that_share_a_run_are_found(judged):
    rows = {"row": "beyond-lambda-0.45", "than": "beyond-staggered"}  # the first is the run of beyond-sft-smart-dual
    runs = [*seeds("beyond-sft-smart-dual", skill=1.2), *seeds("beyond-staggered", skill=0.2)]
    assert judged(runs, **rows).claims[0].verdict == HELD


def test_the_text_says_what_was_found_and_how_much_of_it_may_be_luck(judged):
    judgement = judged([*seeds(BI, skill=0.2), *seeds(CROSS, skill=1.2)], expect={"qqp": "better", "sts": "no_better"})
    text = text_of(judgement)
    for part in (
        "| c | A claim. | beyond, table 1 | refuted |",
        f"{CROSS} better than {BI} | qqp | +0.",
        "| refuted, better by 0.",
        "- c: What else differs.",
        "1 claims: 0 held, 1 refuted, 0 inside the noise, 0 not measured.",
        "2 tests of 1 claims were made, at 5 %",
        "in 0.05 claims at most",
    ):
        assert part in text
    shown = shown_on(140, judgement)
    assert "c: refuted" in shown
    assert "no better than" in shown


def shown_on(width: int, judgement: Judgement) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    show_claims(judgement, console)
    return console.export_text()


def test_the_command_that_measures_what_is_missing_is_one_line(papers, root):
    shown = shown_on(80, judge(papers, [], load_claims(papers, root / "recipes/claims.yaml")))
    [command] = [line for line in shown.splitlines() if line.startswith("Not measured yet: ")]
    assert len(command) > 80


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_single_seed_decided_is_marked_wherever_it_is_told(judged, count):
    judgement = judged([*seeds(CROSS, count, skill=2.0), *seeds(BI, skill=0.1)])
    text, alone = text_of(judgement), count == 1
    assert judgement.claims[0].verdict == HELD
    assert f"1 claims: 1 held{' (1 by rows alone)' * alone}, 0 refuted," in text
    assert f"| beyond, table 1 | held{' (rows alone)' * alone} |" in text
    assert f"| c: held{' (rows alone)' * alone} |" in text
    assert f"| {count}, 3{' (rows alone)' * alone} |" in text
    assert ("1 of the tests are over rows alone" in text) == alone


@pytest.mark.parametrize(
    ("verdicts", "single", "alone"),
    [
        ((REFUTED, REFUTED), (True, False), False),  # the other part refutes it without
        ((REFUTED, HELD), (True, False), True),
        ((HELD, HELD), (True, False), True),
        ((HELD, HELD), (False, False), False),
        ((NOISE, HELD), (True, True), False),
    ],
)
def test_a_verdict_rests_on_a_single_seed_if_it_would_not_stand_without(verdicts, single, alone):
    given = claim(sst="better", qqp="better")
    differences = [replace(found(0.1), seeds=(1, 3) if one else (3, 3)) for one in single]
    parts = [replace(part, verdict=of, difference=one) for part, of, one in zip(given.parts(), verdicts, differences)]
    assert Judged(given, parts).rows_alone == alone


def test_a_gain_below_the_margin_where_none_was_claimed_is_called_small():
    given = claim(sst="no_better")
    part = Part("a", "b", "sst", "no_better", REFUTED, found(0.004), 0.01)
    table = comparisons(Judgement([Judged(given, [part])], Runs(Setting(), {})))
    assert table["verdict"][0] == "refuted, by a gain of 0.0040 only"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"row": "beyond-cros-encoding"}, "did you mean beyond-cross-encoding"),
        ({"row": "beyond-literature"}, "c: beyond-literature is quoted from the literature"),
        (
            {"row": "beyond-lambda-0", "than": "beyond-staggered"},
            "c: beyond-lambda-0 and beyond-staggered are the same",
        ),
        ({"expect": {"sst": "worse"}}, "c.expect.sst: Input should be 'better', 'no_better', 'no_worse' or 'between'"),
        ({"expect": {"sstt": "better"}}, "did you mean sst?"),
        ({"expect": {"sst": "between"}}, "expected row and than or"),
        ({"middle": MIXED}, "expected row and than or"),
        ({"paper": "beyon"}, "beyon: is not in papers of"),
        ({"margins": 0.1}, "c.margins: unknown key"),
        ({"margin": 0}, "c.margin: Input should be greater than 0"),
    ],
)
def test_a_claim_that_is_wrong_is_named(loaded, wrong, message):
    with pytest.raises(UserError) as caught:
        loaded(**wrong)
    assert message in str(caught.value)
