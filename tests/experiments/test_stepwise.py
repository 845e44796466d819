"""Forward selection on given scores and p-values, then on experiments of a repository."""

from contextlib import suppress
from functools import partial

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.experiments import stepwise as module
from bertrio.experiments.recipes.rows import load_extensions, load_recipes
from bertrio.experiments.stepwise import SetRunner, Step, forward_selection, stepwise
from tests.experiments.conftest import tables
from tests.experiments.planted import Planted


class Bench:
    """Sets with given scores; differences of at least 0.01 have p = 0.001, others p = 0.5."""

    def __init__(self, score, refuses=lambda names: None, ps=None):
        self.score, self.refuses, self.ps = score, refuses, ps or {}
        self.started = []

    def key(self, names):
        if why := self.refuses(names):
            raise UserError(why)
        return "+".join(sorted(names))

    def measure(self, names):
        self.started.append(names)
        score = self.score(frozenset(names))
        difference = score - self.score(frozenset(names[:-1])) if names else 0.0
        p = self.ps.get(names, 0.001 if abs(difference) >= 0.01 else 0.5)
        return Step(names, score=score, difference=difference, p=p)


def additive(**gains):
    """Return a score that is the sum of gains."""
    return lambda names: 0.5 + sum(gains[name] for name in names)


def random_score(seed, names):
    """Return a random score of a set of extensions."""
    generator = np.random.default_rng([seed, *map(ord, sorted(names))])
    return 0.5 + 0.03 * len(names) * generator.uniform(-0.5, 1)


def run(bench, candidates="abcde", **options):
    return list(forward_selection(list(candidates), bench, **options))[-1]


def kept(steps):
    """Return the sets that the selection keeps."""
    return [step.names for step in steps if step.kept]


def test_extensions_that_help_are_kept_best_first():
    def refuses(names):
        return "b and d don't combine" if {"b", "d"} <= set(names) else "e never works" if "e" in names else None

    bench = Bench(additive(a=0.02, b=0.04, c=0.001, d=0.03, f=-0.03), refuses)
    steps = run(bench, "abcdef")
    assert kept(steps) == [(), ("b",), ("b", "a")]
    why = {step.names: step.why for step in steps}
    assert (why["a",], why["c",], why["f",]) == ("helps", "luck may explain it", "hurts")
    assert why["e",] == "not tried: e never works" and why["b", "d"] == "not tried: b and d don't combine"
    assert not {step.names for step in steps if not step.tried} & set(bench.started)


def test_insignificant_gains_are_kept_only_if_unproven():
    bench = Bench(additive(a=0.001, b=0.002, c=0.0))
    assert kept(run(bench, "abc")) == [()]
    steps = run(bench, "abc", unproven=True)
    assert kept(steps) == [(), ("b",), ("b", "a")] and "luck" in steps[1].why
    bench = Bench(additive(a=0.02, b=0.01, c=0.01), ps={(name,): 0.03 for name in "abc"})
    assert kept(run(bench, "a")) == [(), ("a",)]  # p = 0.03 is significant alone, but not among three
    assert kept(run(bench, "abc")) == [()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [1, 2, 10])
def test_selection_invariants(seed, beam):
    """For any scores: a kept set extends and beats a kept one; each depth keeps the best of those that helped, at most
    the beam; every extension of a kept set runs exactly once, in whatever order it is built."""
    bench = Bench(partial(random_score, seed))
    steps = run(bench, beam=beam)
    tried, stays = [step for step in steps if step.tried], set(kept(steps))
    for depth in range(1, 6):
        ran = [step for step in tried if len(step.names) == depth]
        helped = sorted((step.score for step in ran if step.difference > 0 and step.p_holm < 0.05), reverse=True)
        assert [step.score for step in ran if step.kept] == helped[:beam]
        assert all(step.names[:-1] in stays for step in ran)
    sets = {frozenset(step.names) for step in tried}
    assert len(sets) == len(bench.started) == len(tried)
    assert all(frozenset({*names, other}) in sets for names in stays for other in set("abcde") - set(names))


def test_invalid_arguments_are_errors(root, monkeypatch):
    monkeypatch.chdir(root)
    for message, options in (
        ("smart-x: is not in", {"candidates": ["smart-x"]}),
        ("bertpp-model-x: is not in", {"base": "bertpp-model-x"}),
        ("--seeds", {"overrides": {"runtime.seed": 5}}),
    ):
        with pytest.raises(UserError, match=message):
            stepwise(**{"candidates": ["smart"], **options})


@pytest.fixture
def planted(tmp_path, root, monkeypatch):
    """A project with fake runs: SMART and round robin help, uncertainty hurts, surgery has no effect."""
    project = Planted(tmp_path, root)
    monkeypatch.chdir(tmp_path)
    project.runs, project.stop_before = [], None

    def run_experiment(name, settings):
        if name in project.names:
            return
        if len(project.runs) == project.stop_before:
            raise KeyboardInterrupt
        project.runs.append(name)
        skill = 1.0 + bool(settings["smart"]["lambda"])
        skill += 0.5 * (settings["schedule"]["name"] == "round_robin")
        skill -= 0.5 * (settings["weighting"]["method"] == "uncertainty")
        project.experiment(name, settings, tables(settings["runtime"]["seed"], skill))

    monkeypatch.setattr(module, "run_experiment", run_experiment)
    return project


def test_selection_resumes_after_a_stop(planted):
    candidates = ["uncertainty", "smart", "grad-surg", "round-robin"]
    planted.stop_before = 3
    with pytest.raises(KeyboardInterrupt):
        stepwise(candidates, out="out")
    planted.stop_before = None
    steps = stepwise(candidates, out="out")
    assert kept(steps) == [(), ("smart",), ("smart", "round-robin")]
    assert {step.names: step.why for step in steps}["uncertainty",] == "hurts"
    assert steps[-1].why.startswith("not tried: params.yaml: surgery.method")
    assert len(planted.runs) == len(set(planted.runs)) == sum(step.tried for step in steps)
    assert sorted(planted.runs) == sorted(planted.names)

    table = pd.read_csv(planted.folder / "out/steps.csv")
    assert list(table["kept"]) == [step.kept for step in steps]
    assert "Best: smart + round-robin" in (planted.folder / "out/steps.md").read_text()

    planted.runs.clear()
    assert kept(stepwise(["smart"], seeds=3, out="out")) == [(), ("smart",)]
    assert len(planted.runs) == 4, "two more seeds of each set"


def bench_of(root, base=None, budget="paper", overrides=None):
    recipes, extensions = load_recipes(root / "recipes"), load_extensions(root / "recipes")
    return SetRunner(recipes, extensions, recipes.base_row(base), budget, 1, overrides or {})


def test_every_extension_changes_some_base(root):
    unused = set(load_extensions(root / "recipes"))
    parents = [(base, ()) for base in (None, "bertpp-model-a", "bertpp-model-d")]
    for base, parent in [*parents, *((None, (name,)) for name in ("capped", "concat", "adj-layers-bi", "grad-surg"))]:
        bench = bench_of(root, base)
        before = bench.key(parent)
        for name in sorted(unused):
            with suppress(UserError):
                if bench.key((*parent, name)) != before:
                    unused.remove(name)
    assert not unused


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("cyc-train", "capped"), "capped and cyc-train exclude each other"),
        (("surgery-mean",), "has no effect without grad-surg"),
        (("shared-layer",), "params.yaml: sharing.layer fusion: "),
        (("adj-layers", "grad-surg", "adj-layers-bi"), "takes the place of adj-layers"),
    ],
)
def test_incompatible_extensions_are_an_error(root, names, why):
    bench = bench_of(root)
    assert bench.key(names[:-1])
    with pytest.raises(UserError) as error:
        bench.key(names)
    assert str(error.value).startswith(why)


def test_extensions_apply_after_the_base_and_before_the_budget(root):
    settings = bench_of(root, "bertpp-model-d", budget="quick").settings(("staggered", "ema"))
    assert settings["surgery"]["method"] == "pcgrad"
    assert settings["schedule"]["first"] == {"qqp": 1}  # two epochs, a fifth of them
    settings = bench_of(root, overrides={"finetune.ema": 0.5}).settings(("ema",), seed=3)
    assert settings["finetune"]["ema"] == 0.5 and settings["runtime"]["seed"] == 3


def test_experiment_names_are_unique_valid_refs(root):
    from dulwich.refs import check_ref_format

    benches = [bench_of(root), bench_of(root, budget="quick"), bench_of(root, overrides={"finetune.lr": 1.0})]
    names = ("ema", "round-robin", "smart") * 20
    experiments = [bench.experiment(some, seed) for bench in benches for some in ((), names) for seed in (1, 2)]
    assert len(set(experiments)) == len(experiments)
    for name in experiments:
        assert check_ref_format(f"refs/exps/{name}".encode()) and len(name) < 200
