"""What sets of extensions come to, on the real recipes; test_stepwise.py runs them."""

import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.bench import DvcBench
from bertrio.experiments.recipes.rows import load_extensions, load_recipes


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
