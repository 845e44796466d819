"""Valid combinations of params, and the errors of invalid ones."""

import pytest

from bertrio.core.errors import UserError

TASK = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}
COSINE = {"encoding": "bi", "head": "cosine"}
SIAMESE = {"encoding": "bi", "head": "siamese"}
PAIRS = ("qqp", "sts")
EMBEDDING = {"loss": "cosine_embedding", "loss_options": {"threshold": 7}}
UNLIKE = {"tasks": {"qqp": SIAMESE, "sts": {"encoding": "bi", "head": "concat"}}}
NLI = {"target": "classes", "classes": 3, "loss": "cross_entropy"}
TURNS = {"schedule": {"name": "round_robin"}}
SMART = {"smart": {"lambda": 1, "tasks": ["sst", "qqp"]}}
HALF = {"task": "sst", "path": "a", "share": 0.5}
PROPORTIONAL = {"batch_sizes": "proportional", "base_batch": 1}
HELD_OUT = {"finetune": {"select_on": "holdout"}, "prefinetune": {"epochs": 2}}
RESCALED = {"smart": {"lambda": 1, "projection": "rescale"}}


def pairs(**options):
    return {"tasks": {name: options for name in PAIRS}}


def task(name, *blocks, **options):
    for block in blocks:
        options = block | options
    return {"tasks": {name: options}}


def ensemble(combine, **members):
    return {"ensemble": {"combine": combine, "members": members}}


def sharing(layer, tasks=PAIRS):
    return {"sharing": {"layer": layer, "tasks": list(tasks)}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # heads and encodings
        (pairs(head="siamese"), r"tasks\.qqp: head siamese does not fit encoding cross, which gives one vector a row"),
        (pairs(encoding="bi"), r"tasks\.qqp: head linear does not fit encoding bi, .*expected concat or siam"),
        (task("sst", head="cosine"), r"tasks\.sst: head cosine does not fit kind single, .*linear or mlp"),
        (task("qqp", encoding=None), r"tasks\.qqp: encoding: is missing; kind pair needs cross or bi"),
        # labels
        (task("sst", classes=None), r"tasks\.sst: classes: is missing; target ordered needs"),
        (task("sst", classes=["a", "b", "a"]), r"tasks\.sst: classes: expected 3 different names .*'a', 'b', 'a'"),
        (task("sst", classes=["a", True]), r"tasks\.sst\.classes\.1: expected text \(no, on .*found true"),
        (task("sts", classes=["a", "b"]), r"tasks\.sts: classes \(how many, .*with target classes, ordered"),
        (task("qqp", classes=2), r"tasks\.qqp: classes \(how many, .*; with binary, names"),
        (task("qqp", classes=["a", "b", "c"]), r"tasks\.qqp: classes: expected 2 different names"),
        (task("sts", range=[5, 0]), r"tasks\.sts: range: expected \[lowest, highest\]"),
        (task("sst", metric="f1"), r"tasks\.sst: metric: found 'f1', expected one of accuracy, macro_f1"),
        # losses, targets and heads
        (task("sst", loss="bce"), r"tasks\.sst: loss bce does not fit target ordered: expected cross_entr"),
        (task("sts", SIAMESE, loss="cosine_mse"), r"cosine_mse: expected a head that gives the raw cosine"),
        (task("qqp", COSINE, loss="siamese_softmax"), r"tasks\.qqp: head cosine has 1 output, and 2 are needed"),
        (task("qqp", COSINE, **NLI), r"qqp: head cosine needs a Score or Binary target, .*; use siamese"),
        # options
        (task("sst", head_options={"depth": 1}), "depth: unknown option of head linear; known here: none"),
        (task("sst", head="mlp", head_options={"depth": 0}), r"head_options\.depth: expected 1 or more, found 0"),
        (task("sts", COSINE, head_options={"scaling": "logit"}), r"scaling of a Score target: expected .*'logit'"),
        (task("sts", COSINE, **EMBEDDING), r"a label above .*found 7"),
        # sharing
        (sharing("projection"), r"sharing\.layer projection: task qqp: head linear can't share a projection"),
        (sharing("fusion") | pairs(**COSINE), r"sharing\.layer fusion: task qqp: head cosine can't share a fusion"),
        (sharing("fusion") | UNLIKE, r"need the same widths, found qqp .*; give them the same head"),
        (sharing("both", ["qqp", "qqp"]), r"sharing\.tasks: found \['qqp', 'qqp'\], expected two or more"),
        # names of tasks
        *(
            (overrides, rf"{param}: found 'x', expected one of sst, qqp, sts")
            for param, overrides in {
                r"schedule\.tasks": {"schedule": {"tasks": ["x"]}},
                r"weighting\.weights": {"weighting": {"weights": {"x": 1}}},
                r"smart\.tasks": {"smart": {"tasks": ["x"]}},
                r"prefinetune\.task": {"prefinetune": {"epochs": 1, "task": "x"}},
                r"finetune\.select": {"finetune": {"select": "x"}},
                r"challenges\.paws\.task": {"evaluate": {"challenges": {"paws": {"task": "x", "path": "a"}}}},
            }.items()
        ),
        ({"data": {"extra_train": {"qpp": {"train": "a"}}}}, r"data\.extra_train: found 'qpp', .*did you mean qqp\?"),
        *(
            (task(name, TASK), rf"tasks\.{name}: is a reserved name; choose")
            for name in ("longest", "overall", "changed")
        ),
        ({"evaluate": {"challenges": {"dev": {"task": "sst", "path": "a"}}}}, r"dev: is a reserved name"),
        # data sources
        (task("sst", data={"train": None}), r"tasks\.sst\.data: expected either train .* or hub"),
        ({"data": {"source": "files"}}, r"data\.files: found no block for task sst"),
        # schedules
        ({"schedule": {"tasks": ["sst", "sst"]}}, r"schedule\.tasks: found \['sst', 'sst'\], expected each task once"),
        ({"schedule": {"tasks": ["qqp", "sts"]}}, r"until: found 'sst', .* of qqp, sts, shortest, longest, steps$"),
        ({"schedule": {"until": "steps"}}, r"schedule: steps: found null, expected the number of steps in an epoch"),
        ({"schedule": {"first": {"qqp": 2}, "tasks": ["sst"]}}, r"schedule\.first: found 'qqp', expected one of sst"),
        # techniques
        ({"surgery": {"method": "pcgrad"}} | TURNS, r"method: found pcgrad, but .* it needs schedule\.name joint"),
        ({"surgery": {"log_conflicts": True}, "schedule": {"tasks": ["sst"]}}, "found true, .*two or more tasks"),
        (SMART | {"schedule": {"tasks": ["sst"]}}, r"smart\.tasks: found \['sst', 'qqp'\], .* tasks that train: sst"),
        ({"smart": {"lambda": 1, "sigma": 0}}, r"smart\.sigma: found 0, but .*the penalty would always be 0"),
        (task("sts", loss="pearson", batch_size=2), r"sts\.batch_size: found 2, .*pearson .*fewer than 3"),
        ({"schedule": PROPORTIONAL} | task("sts", COSINE, loss="cosent"), r"base_batch: found 1, .*cosent .*than 2"),
        ({"schedule": {"cap": 2}} | task("sts", loss="pearson"), r"schedule\.cap: found 2, but loss pearson"),
        ({"data": {"unlabelled": dict.fromkeys("ab", HALF)}}, r"shares of task sst, .*sum to 1, expected below 1"),
        ({"data": {"unlabelled": {"a": {"task": "qpp", "path": "a"}}}}, r"a\.task: found 'qpp', .*mean qqp\?"),
        ({"distill": {"weight": 1}}, r"distill\.teacher: found null, expected the folder models of a finished run"),
        (HELD_OUT, "select_on: found holdout, but prefinetune .*; or use schedule.first"),
        ({"finetune": {"accumulate": 2}} | task("sts", loss="pearson"), r"accumulate: found 2, but loss pearson"),
        ({"finetune": {"accumulate": 2}} | RESCALED, r"accumulate: found 2, but smart\.projection rescale"),
        ({"encoder": {"frozen": True}} | task("sts", COSINE), r"encoder\.frozen: leaves task sts nothing to learn"),
        (ensemble("vote", base={"answers": ["sst"]}), "ensemble.members: no member predicts task qqp"),
        (ensemble("uniform_soup", base={}, b={"answers": ["sst"]}), r"b\.answers: lacks qqp, sts, but a soup is one"),
        (ensemble("greedy_soup", base={}, b={"encoder": {"pooling": "cls"}}), "cls, and mean in member base"),
    ],
)
def test_invalid_combination_is_an_error(load, overrides, message):
    with pytest.raises(UserError, match=message):
        load(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"schedule": {"tasks": ["qqp"]}},  # until stays at sst: a single task defines its own epoch
        {"schedule": {"name": "sequential", "tasks": ["qqp", "sts"]}} | task("sts", epochs=4),
        {"schedule": {"name": "per_epoch", "until": "steps"}},  # per_epoch does not read until
        {"smart": {"tasks": ["sts"]}, "schedule": {"tasks": ["sst"]}},  # SMART is off
        {"encoder": {"frozen": True}} | task("sts", COSINE, head_options={"projection": True}),
        sharing("projection") | {"tasks": {"qqp": SIAMESE, "sts": COSINE}},
        sharing("fusion") | pairs(head="mlp"),
        sharing("both") | pairs(encoding="bi", head="siamese_cosine", head_options={"activation": "leaky_relu"}),
        sharing("none", ["x"]),
        task("cfimdb", TASK) | {"schedule": {"tasks": ["cfimdb"]}},
        {"smart": {"lambda": 5}, "bregman": {"mu": 1}, "r_drop": {"alpha": 1}, "surgery": {"method": "cagrad"}},
    ],
)
def test_valid_combination_loads(load, overrides):
    load(overrides)
