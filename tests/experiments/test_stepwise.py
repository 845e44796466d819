"""Selection as a function of scores and tests; then sets of extensions as experiments of a repository."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.experiments import dvc_experiments
from bertrio.experiments.recipes.rows import load_extensions, load_recipes
from bertrio.experiments.stepwise import DvcBench, Gain, Outcome, best, forward_selection, stepwise
from tests.experiments.planted import Planted


class Bench:
    """Sets with given scores; a difference of 0.01 or more has a p of 0.001, and any other of 0.5."""

    def __init__(self, score, refuses=lambda names: None, runs=None, ps=None):
        self.score, self.refuses, self.ps = score, refuses, ps or {}
        self.runs = {} if runs is None else runs  # what is on disk: finished sets
        self.started = []

    def key(self, names):
        if reason := self.refuses(names):
            raise UserError(reason)
        return "+".join(sorted(names))

    def measure(self, names):
        if names not in self.runs:
            self.started.append(names)
            self.runs[names] = self.score(frozenset(names))
        return Outcome(self.runs[names], 1.0)

    def gain(self, before, after):
        difference = self.runs[after] - self.runs[before]
        p = self.ps.get(after, 0.001 if abs(difference) >= 0.01 else 0.5)
        return Gain(difference, (difference - 0.01, difference + 0.01), p)


def adding(**gains):
    """Extensions whose gains add up."""
    return lambda names: 0.5 + sum(gains[name] for name in names)


def drawn(seed, names="abcde"):
    """A score for every set of extensions."""
    generator, memory = np.random.default_rng(seed), {}
    for order in sorted({frozenset(some) for size in range(6) for some in permutations(names, size)}, key=sorted):
        memory[order] = 0.5 + 0.03 * len(order) * generator.uniform(-0.5, 1)
    return memory.__getitem__


def run(bench, candidates="abcde", **options):
    return list(forward_selection(list(candidates), bench, **options))[-1]


def kept(ladder):
    return [step.names for step in ladder if step.kept]


def test_what_helps_is_kept_the_best_first_and_then_it_ends():
    bench = Bench(adding(a=0.02, b=0.04, c=0.001, d=-0.03))
    ladder = run(bench, "abcd")
    assert kept(ladder) == [(), ("b",), ("b", "a")]
    why = {step.names: step.why for step in ladder}
    assert why["a",] == "helps, but others score higher"
    assert why["c",] == "higher, which luck may explain"
    assert why["d",] == "hurts"
    assert best(ladder).names == ("b", "a")


def test_nothing_is_kept_where_nothing_helps():
    ladder = run(Bench(adding(a=0.0, b=-0.02)), "ab")
    assert kept(ladder) == [()] and len(ladder) == 3


def test_luck_is_not_kept_unless_asked_for_and_then_it_is_said():
    gains = adding(a=0.001, b=0.002)
    assert kept(run(Bench(gains), "ab")) == [()]
    ladder = run(Bench(gains), "ab", unproven=True)
    assert kept(ladder) == [(), ("b",), ("b", "a")]
    assert all("luck" in step.why for step in ladder if step.kept and step.names)


def test_of_many_that_were_tried_one_is_lucky():
    """p of 0.03 is kept alone, and not among three."""
    ps = {(name,): 0.03 for name in "abc"}
    assert kept(run(Bench(adding(a=0.02, b=0.01, c=0.01), ps=ps), "a")) == [(), ("a",)]
    assert kept(run(Bench(adding(a=0.02, b=0.01, c=0.01), ps=ps), "abc")) == [()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [1, 2, 10])
def test_the_ladder_is_one(seed, beam):
    """Whatever the scores: a kept set extends a kept one and beats it; no more than the beam at a depth, and those the
    highest of what helped; no set runs twice, in whatever order it comes about; none is left out."""
    bench = Bench(drawn(seed))
    ladder = run(bench, beam=beam)
    scores = {step.names: step.score for step in ladder if step.score is not None}
    stays = set(kept(ladder))
    for depth in range(1, 6):
        there = [step for step in ladder if step.depth == depth and step.gain]
        helped = sorted((step.score for step in there if step.gain.difference > 0 and step.p_holm < 0.05), reverse=True)
        assert [step.score for step in there if step.kept] == helped[:beam]
        for step in there:
            assert step.on in stays
            assert step.gain.difference == pytest.approx(step.score - scores[step.on])
    assert len({frozenset(names) for names in bench.started}) == len(bench.started) == len(scores)
    for names in stays:
        for other in set("abcde") - set(names):
            assert frozenset({*names, other}) in {frozenset(tried) for tried in scores}


def test_a_beam_finds_a_pair_that_the_best_one_alone_hides():
    score = {"": 0.5, "a": 0.55, "b": 0.54, "c": 0.51, "ab": 0.53, "ac": 0.55, "bc": 0.7, "abc": 0.6}
    bench = [Bench(lambda names: score["".join(sorted(names))]) for _ in range(2)]
    assert best(run(bench[0], "abc")).names == ("a",)
    assert set(best(run(bench[1], "abc", beam=2)).names) == {"b", "c"}


def test_what_is_refused_is_told_once_and_not_run():
    def refuses(names):
        return "b and d don't combine" if {"b", "d"} <= set(names) else "e never works" if "e" in names else None

    bench = Bench(adding(a=0.02, b=0.04, d=0.03), refuses)
    ladder = run(bench, "abde")
    assert kept(ladder) == [(), ("b",), ("b", "a")]
    assert [step.why for step in ladder if step.gain is None] == [
        "the base", "not tried: e never works", "not tried: b and d don't combine",
    ]  # fmt: skip
    assert not any({"b", "d"} <= set(names) or "e" in names for names in bench.started)


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("stop", [1, 5, 9])
def test_what_was_stopped_goes_on(beam, stop):
    """Stopped before its n-th run and started again: the same ladder, of which some was there, and no run twice."""
    whole = Bench(drawn(3))
    ladder = run(whole, beam=beam)

    class Stopped(Bench):
        def measure(self, names):
            if len(self.started) == stop and names not in self.runs:
                raise KeyboardInterrupt
            return super().measure(names)

    first, ladders = Stopped(drawn(3)), []
    try:
        ladders.extend(forward_selection(list("abcde"), first, beam))
    except KeyboardInterrupt:
        assert len(first.started) == stop < len(whole.started)
    assert ladder[: len(ladders[-1])] == ladders[-1]
    again = Bench(drawn(3), runs=first.runs)
    assert run(again, beam=beam) == ladder
    assert first.started + again.started == whole.started


def test_a_failed_run_decides_nothing_and_hinders_no_other():
    class Failing(Bench):
        def measure(self, names):
            if names == ("b",):
                raise UserError("b: ran out of memory")
            return super().measure(names)

    bench, ladders = Failing(adding(a=0.02, b=0.04, c=0.03)), []
    with pytest.raises(UserError, match=r"1 of 3 runs failed.*\n.*b: ran out of memory"):
        ladders.extend(forward_selection(list("abc"), bench))
    assert kept(ladders[-1]) == [()] and bench.started == [(), ("a",), ("c",)]


def test_a_name_that_is_none_says_what_would_be(root):
    with pytest.raises(UserError, match="smrt: is not in .*did you mean smart"):
        stepwise(["smrt"], root=root)
    with pytest.raises(UserError, match="bertpp-model-x: is not in"):
        stepwise(["smart"], base="bertpp-model-x", root=root)
    with pytest.raises(UserError, match="--seeds"):
        stepwise(["smart"], overrides={"runtime.seed": 5}, root=root)


@pytest.fixture
def planted(tmp_path, root, make_tables, monkeypatch):
    """A project in which a run is at once done: SMART and round robin help, uncertainty hurts, surgery does nothing."""
    made = Planted(tmp_path, root)
    made.runs = []

    def run_experiment(name, settings, root, queue=False):
        if name in made.names:
            return
        made.runs.append(name)
        skill = 1.0
        skill += 1.0 * bool(settings["smart"]["lambda"])
        skill += 0.5 * (settings["schedule"]["name"] == "round_robin")
        skill -= 0.5 * (settings["weighting"]["method"] == "uncertainty")
        made.experiment(name, settings, make_tables(settings["runtime"]["seed"], skill))

    monkeypatch.setattr(dvc_experiments, "run_experiment", run_experiment)
    return made


def test_a_selection_among_experiments(planted):
    out = planted.folder / "out"
    ladder = stepwise(["uncertainty", "smart", "grad-surg", "round-robin"], out=out, root=planted.folder)
    assert kept(ladder) == [(), ("smart",), ("smart", "round-robin")]
    assert {step.names[-1]: step.why for step in ladder if step.depth == 1}["uncertainty"] == "hurts"
    assert "not tried: surgery.method" in ladder[-1].why
    assert sorted(planted.runs) == sorted(planted.names)
    assert len(planted.runs) == sum(step.score is not None for step in ladder)

    table = pd.read_csv(out / "ladder.csv")
    assert list(table["kept"]) == [step.kept for step in ladder]
    assert table["score"].dropna().to_list() == pytest.approx(
        [s.score for s in ladder if s.score is not None], rel=1e-5
    )
    assert set(table["seconds"].dropna()) == {60}
    assert "**smart + round-robin**" in (out / "ladder.md").read_text()
    assert (out / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_selection_is_read_again_and_not_run(planted):
    out = planted.folder / "out"
    ladder = stepwise(["smart"], seeds=3, out=out, root=planted.folder)
    runs, files = list(planted.runs), {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(runs) == 6 and kept(ladder) == [(), ("smart",)]
    assert stepwise(["smart"], seeds=3, out=out, root=planted.folder) == ladder
    assert planted.runs == runs
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


def bench_of(root, base=None, **options):
    return DvcBench(load_recipes(root / "recipes"), load_extensions(root / "recipes"), base, root=root, **options)


BASES = (None, "bertpp-model-a", "bertpp-model-d")
PARENTS = ((), ("capped",), ("concat",), ("adj-layers-bi",), ("grad-surg",))


def test_every_extension_changes_some_base(root):
    benches = [bench_of(root, base) for base in BASES]
    never = {name: [] for name in load_extensions(root / "recipes")}
    for name in list(never):
        for bench in benches:
            for parent in PARENTS:
                try:
                    if bench.key((*parent, name)) != bench.key(parent):
                        never.pop(name, None)
                except UserError as error:
                    never.get(name, []).append(str(error))
    assert never == {}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("round-robin", "grad-surg"), "surgery.method: found pcgrad"),
        (("cyc-train", "capped"), "capped and cyc-train exclude each other"),
        (("capped", "cyc-train"), "cyc-train and capped exclude each other"),
        (("surgery-mean",), "has no effect without grad-surg"),
        (("round-robin", "annealed"), "takes the place of round-robin"),
        (("shared-layer",), "sharing.layer fusion: "),
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

    bench, names = bench_of(root), tuple(load_extensions(root / "recipes"))
    others = [
        bench_of(root, "bertpp-model-d"),
        bench_of(root, budget="quick"),
        bench_of(root, overrides={"finetune.lr": 1.0}),
    ]
    every = [
        one.experiment(some, seed) for one in (bench, *others) for some in ((), names[:2], names) for seed in (1, 2)
    ]
    assert len(set(every)) == len(every)
    assert bench_of(root).experiment(names, 1) == bench.experiment(names, 1)
    for name in every:
        assert check_ref_format(f"refs/exps/{name}".encode()) and len(name) < 200
