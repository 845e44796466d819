"""Selection as a function of scores and tests; then sets of extensions as experiments of a repository."""

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments import stepwise as module
from bertrio.experiments.recipes.rows import load_extensions, load_recipes
from bertrio.experiments.stepwise import DvcBench, Step, forward_selection, stepwise
from tests.experiments.conftest import tables
from tests.experiments.planted import Planted


class Bench:
    """Sets with given scores; a difference of 0.01 or more has a p of 0.001, and any other of 0.5."""

    def __init__(self, score, refuses=lambda names: None, ps=None):
        self.score, self.refuses, self.ps = score, refuses, ps or {}
        self.started = []

    def key(self, names):
        if reason := self.refuses(names):
            raise UserError(reason)
        return "+".join(sorted(names))

    def measure(self, names):
        self.started.append(names)
        score = self.score(frozenset(names))
        difference = score - self.score(frozenset(names[:-1])) if names else 0.0
        p = self.ps.get(names, 0.001 if abs(difference) >= 0.01 else 0.5)
        return Step(names, score=score, difference=difference, p=p)


def adding(**gains):
    """Extensions whose gains add up."""
    return lambda names: 0.5 + sum(gains[name] for name in names)


def drawn(seed):
    """A score for every set of extensions."""

    def score(names):
        generator = np.random.default_rng([seed, *map(ord, sorted(names))])
        return 0.5 + 0.03 * len(names) * generator.uniform(-0.5, 1)

    return score


def run(bench, candidates="abcde", **options):
    return list(forward_selection(list(candidates), bench, **options))[-1]


def kept(ladder):
    return [step.names for step in ladder if step.kept]


def test_what_helps_is_kept_the_best_first_and_then_it_ends():
    def refuses(names):
        return "b and d don't combine" if {"b", "d"} <= set(names) else "e never works" if "e" in names else None

    bench = Bench(adding(a=0.02, b=0.04, c=0.001, d=0.03, f=-0.03), refuses)
    ladder = run(bench, "abcdef")
    assert kept(ladder) == [(), ("b",), ("b", "a")]
    why = {step.names: step.why for step in ladder}
    assert (why["a",], why["c",], why["f",]) == ("helps", "luck may explain it", "hurts")
    assert why["e",] == "not tried: e never works" and why["b", "d"] == "not tried: b and d don't combine"
    assert not {step.names for step in ladder if not step.tried} & set(bench.started)


def test_luck_is_not_kept_unless_asked_for_and_of_many_that_were_tried_one_is_lucky():
    bench = Bench(adding(a=0.001, b=0.002, c=0.0))
    assert kept(run(bench, "abc")) == [()]
    ladder = run(bench, "abc", unproven=True)
    assert kept(ladder) == [(), ("b",), ("b", "a")] and "luck" in ladder[1].why
    bench = Bench(adding(a=0.02, b=0.01, c=0.01), ps={(name,): 0.03 for name in "abc"})
    assert kept(run(bench, "a")) == [(), ("a",)]  # a p of 0.03 is enough alone, and not among three
    assert kept(run(bench, "abc")) == [()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [1, 2, 10])
def test_the_ladder_is_one(seed, beam):
    """Whatever the scores: a kept set extends a kept one and beats it; no more than the beam at a depth, and those the
    highest of what helped; no set runs twice, in whatever order it comes about; none is left out."""
    bench = Bench(drawn(seed))
    ladder = run(bench, beam=beam)
    tried, stays = [step for step in ladder if step.tried], set(kept(ladder))
    for depth in range(1, 6):
        steps = [step for step in tried if len(step.names) == depth]
        helped = sorted((step.score for step in steps if step.difference > 0 and step.p_holm < 0.05), reverse=True)
        assert [step.score for step in steps if step.kept] == helped[:beam]
        assert all(step.names[:-1] in stays for step in steps)
    sets = {frozenset(step.names) for step in tried}
    assert len(sets) == len(bench.started) == len(tried)
    assert all(frozenset({*names, other}) in sets for names in stays for other in set("abcde") - set(names))


def test_wrong_arguments_are_errors(root):
    for message, options in (
        ("smart-x: is not in", {"candidates": ["smart-x"]}),
        ("bertpp-model-x: is not in", {"base": "bertpp-model-x"}),
        ("--seeds", {"overrides": {"runtime.seed": 5}}),
    ):
        with pytest.raises(UserError, match=message):
            stepwise(**{"candidates": ["smart"], "root": root, **options})


@pytest.fixture
def planted(tmp_path, root, monkeypatch):
    """A project in which a run is at once done: SMART and round robin help, uncertainty hurts, surgery does nothing."""
    made = Planted(tmp_path, root)
    made.runs, made.stop_before = [], None

    def run_experiment(name, settings, root):
        if name in made.names:
            return
        if len(made.runs) == made.stop_before:
            raise KeyboardInterrupt
        made.runs.append(name)
        skill = 1.0 + bool(settings["smart"]["lambda"])
        skill += 0.5 * (settings["schedule"]["name"] == "round_robin")
        skill -= 0.5 * (settings["weighting"]["method"] == "uncertainty")
        made.experiment(name, settings, tables(settings["runtime"]["seed"], skill))

    monkeypatch.setattr(module, "run_experiment", run_experiment)
    return made


def test_a_selection_among_experiments_is_continued_after_a_stop(planted):
    options = {"out": planted.folder / "out", "root": planted.folder}
    candidates = ["uncertainty", "smart", "grad-surg", "round-robin"]
    planted.stop_before = 3
    with pytest.raises(KeyboardInterrupt):
        stepwise(candidates, **options)
    planted.stop_before = None
    ladder = stepwise(candidates, **options)
    assert kept(ladder) == [(), ("smart",), ("smart", "round-robin")]
    assert {step.names: step.why for step in ladder}["uncertainty",] == "hurts"
    assert ladder[-1].why.startswith("not tried: params.yaml: surgery.method")
    assert len(planted.runs) == len(set(planted.runs)) == sum(step.tried for step in ladder)
    assert sorted(planted.runs) == sorted(planted.names)

    table = pd.read_csv(planted.folder / "out/ladder.csv")
    assert list(table["kept"]) == [step.kept for step in ladder]
    assert "Best: smart + round-robin" in (planted.folder / "out/ladder.md").read_text()

    planted.runs.clear()
    assert kept(stepwise(["smart"], seeds=3, **options)) == [(), ("smart",)]
    assert len(planted.runs) == 4, "for each set one of two more seeds"


def bench_of(root, base=None, budget="paper", overrides=None):
    recipes, extensions = load_recipes(root / "recipes"), load_extensions(root / "recipes")
    params = read_yaml(root / "params.yaml")
    return DvcBench(recipes, extensions, recipes.base_row(base), budget, 1, overrides or {}, params, root)


def test_every_extension_changes_some_base(root):
    idle = set(load_extensions(root / "recipes"))
    parents = [(base, ()) for base in (None, "bertpp-model-a", "bertpp-model-d")]
    for base, parent in [*parents, *((None, (name,)) for name in ("capped", "concat", "adj-layers-bi", "grad-surg"))]:
        bench = bench_of(root, base)
        before = bench.key(parent)
        for name in sorted(idle):
            with suppress(UserError):
                if bench.key((*parent, name)) != before:
                    idle.remove(name)
    assert not idle


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("cyc-train", "capped"), "capped and cyc-train exclude each other"),
        (("surgery-mean",), "has no effect without grad-surg"),
        (("shared-layer",), "params.yaml: sharing.layer fusion: "),
        (("adj-layers", "grad-surg", "adj-layers-bi"), "takes the place of adj-layers"),
    ],
)
def test_what_does_not_go_together_is_refused(root, names, why):
    bench = bench_of(root)
    assert bench.key(names[:-1])
    with pytest.raises(UserError) as error:
        bench.key(names)
    assert str(error.value).startswith(why)


def test_extensions_come_after_the_base_and_before_the_budget(root):
    settings = bench_of(root, "bertpp-model-d", budget="quick").settings(("staggered", "ema"))
    assert settings["surgery"]["method"] == "pcgrad"
    assert settings["schedule"]["first"] == {"qqp": 1}  # two epochs, a fifth of them
    settings = bench_of(root, overrides={"finetune.ema": 0.5}).settings(("ema",), seed=3)
    assert settings["finetune"]["ema"] == 0.5 and settings["runtime"]["seed"] == 3


def test_names_of_experiments_are_refs_of_their_own(root):
    from dulwich.refs import check_ref_format

    benches = [bench_of(root), bench_of(root, budget="quick"), bench_of(root, overrides={"finetune.lr": 1.0})]
    names = ("ema", "round-robin", "smart") * 20
    every = [bench.experiment(some, seed) for bench in benches for some in ((), names) for seed in (1, 2)]
    assert len(set(every)) == len(every)
    for name in every:
        assert check_ref_format(f"refs/exps/{name}".encode()) and len(name) < 200
