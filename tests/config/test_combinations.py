"""Which params can stand together, and what is said of those that can't."""

import pytest

from bertrio.core.errors import UserError

FILES = {"sst": {"train": "a"}, "qqp": {"train": "b", "columns": {"text": "body"}}, "sts": {"train": "c"}}
TASK = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}
COSINE = {"encoding": "bi", "head": "cosine"}
SIAMESE = {"encoding": "bi", "head": "siamese"}
PAIRS = ("qqp", "sts")


def pairs(**options):
    return {"tasks": {name: options for name in PAIRS}}


def sharing(layer, tasks=PAIRS):
    return {"sharing": {"layer": layer, "tasks": list(tasks)}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # which head fits which encoding
        (pairs(head="siamese"), r"tasks\.qqp: head siamese does not fit encoding cross, which gives one vector a row"),
        (pairs(encoding="bi"), r"tasks\.qqp: head linear does not fit encoding bi, which gives two vectors a row"),
        (pairs(encoding="bi", head="mlp"), r"tasks\.sts: head mlp does not fit encoding bi, .*expected concat or siam"),
        ({"tasks": {"sst": {"head": "cosine"}}}, r"tasks\.sst: head cosine does not fit kind single, .*linear or mlp"),
        ({"tasks": {"qqp": {"encoding": None}}}, r"tasks\.qqp: encoding goes with kind pair \(cross or bi\)"),
        # which loss fits which target and head
        ({"tasks": {"sst": {"loss": "bce"}}}, r"tasks\.sst: loss bce does not fit target ordered: expected cross_entr"),
        (
            {"tasks": {"sst": {"target": "classes", "loss": "ordinal_log_loss"}}},
            r"does not fit target classes: expected",
        ),
        (
            {"tasks": {"sts": {"loss": "cosent"}}},
            r"tasks\.sts: cosent: expected a head that gives the raw cosine",
        ),
        (
            {"tasks": {"sts": SIAMESE | {"loss": "cosine_mse"}}},
            r"cosine_mse: expected a head that gives the raw cosine .*; head cosine, for pairs with encoding bi, does",
        ),
        (
            {"tasks": {"qqp": COSINE | {"loss": "siamese_softmax"}}},
            r"tasks\.qqp: head cosine has 1 output, and 2 are needed",
        ),
        (
            {"tasks": {"qqp": COSINE | {"target": "classes", "classes": 3, "loss": "cross_entropy"}}},
            r"tasks\.qqp: head cosine needs a Score or Binary target, found Classes; use siamese",
        ),
        # options
        (
            {"tasks": {"sst": {"head_options": {"depth": 1}}}},
            r"tasks\.sst\.head_options: depth: head linear has no such option; it takes none",
        ),
        (
            pairs(**COSINE, head_options={"depth": 1}),
            r"tasks\.qqp\.head_options: depth: head cosine has no such option; it takes activation, pro",
        ),
        (
            {"tasks": {"sst": {"loss_options": {"alpha": 1.0}}}},
            r"loss_options: alpha: loss cross_entropy has no such option; it takes label_smoothing, class_weights",
        ),
        (
            {"tasks": {"sts": {"loss_options": {"class_weights": "inverse"}}}},
            r"loss mse has no such option; it takes sc",
        ),
        (
            {"tasks": {"sst": {"head": "mlp", "head_options": {"depth": 0}}}},
            r"tasks\.sst: head_options\.depth: expected 1 or more, found 0",
        ),
        (
            {"tasks": {"sts": COSINE | {"head_options": {"scaling": "logit"}}}},
            r"tasks\.sts: head_options\.scaling of a Score target: expected one of relu, .*'logit'",
        ),
        (
            {"tasks": {"qqp": COSINE | {"head_options": {"scaling": "affine"}}}},
            r"head_options\.scaling of a Binary target: expected one of relu, logit",
        ),
        (
            {"tasks": {"sts": COSINE | {"loss": "cosine_embedding", "loss_options": {"threshold": 7}}}},
            r"tasks\.sts: loss_options\.threshold: expected a label above 0\.0 and at most 5\.0, found 7",
        ),
        (
            {"tasks": {"qqp": COSINE | {"loss": "cosine_embedding", "loss_options": {"threshold": 7}}}},
            r"tasks\.qqp: loss_options\.threshold: expected a label above 0\.0 and at most 1\.0",
        ),
        (
            {"tasks": {"sts": COSINE | {"loss": "cosine_embedding", "loss_options": {"margin": 1}}}},
            r"tasks\.sts.*loss_options\.margin",
        ),
        # sharing
        (
            sharing("projection"),
            r"sharing\.layer projection: task qqp: head linear can't share a projection",
        ),
        (sharing("both") | pairs(head="mlp"), r"sharing\.layer both: task qqp: head mlp can't share a projection"),
        (sharing("fusion"), r"sharing\.layer fusion: task qqp: head linear can't share a fusion"),
        (sharing("fusion") | pairs(**COSINE), r"sharing\.layer fusion: task qqp: head cosine can't share a fusion"),
        (
            sharing("fusion") | pairs(**SIAMESE, head_options={"depth": 0}),
            r"sharing\.layer fusion: head_options\.depth: expected 1 or more",
        ),
        (
            sharing("projection") | pairs(**SIAMESE, head_options={"projection": False}),
            r"sharing\.layer projection: head_options\.projection: expected true",
        ),
        (
            sharing("fusion") | {"tasks": {"qqp": SIAMESE, "sts": {"encoding": "bi", "head": "concat"}}},
            r"need the same widths, found qqp .*; give them the same head",
        ),
        (
            sharing("both") | {"tasks": {"qqp": SIAMESE, "sts": SIAMESE | {"head_options": {"width": 9}}}},
            r"need the same widths, found .*the same head and head_options\.width",
        ),
        (sharing("both", ["qqp"]), r"sharing\.tasks: found \['qqp'\], expected two or more of sst, qqp, sts"),
        (sharing("both", ["qqp", "qqp"]), r"sharing\.tasks: found \['qqp', 'qqp'\], expected two or more"),
        (sharing("both", ["qqp", "x"]), r"sharing\.tasks: found \['qqp', 'x'\], expected two or more"),
        # names of tasks
        ({"schedule": {"tasks": ["x"]}}, r"schedule\.tasks: found 'x', expected one of sst, qqp, sts"),
        ({"schedule": {"tasks": ["sst", "sst"]}}, r"schedule\.tasks: found \['sst', 'sst'\], expected each task once"),
        ({"weighting": {"weights": {"x": 1}}}, r"weighting\.weights: found 'x', expected one of sst, qqp, sts"),
        ({"smart": {"tasks": ["x"]}}, r"smart\.tasks: found 'x', expected one of sst"),
        ({"bregman": {"tasks": ["x"]}}, r"bregman\.tasks: found 'x', expected one of sst"),
        ({"r_drop": {"tasks": ["x"]}}, r"r_drop\.tasks: found 'x', expected one of sst"),
        ({"distill": {"tasks": ["x"]}}, r"distill\.tasks: found 'x', expected one of sst"),
        ({"distill": {"weight": 1}}, r"distill\.teacher: found null, expected the folder models of a finished run"),
        (
            {"data": {"extra_train": {"qpp": {"train": "a.tsv"}}}},
            r"data\.extra_train: found 'qpp', .*did you mean qqp\?",
        ),
        (
            {"data": {"extra_train": {"sst": {"train": "a.tsv", "columns": {"text_a": "review"}}}}},
            r"data\.extra_train\.sst\.columns: found 'text_a', expected one of id, text, label; did you mean text\?",
        ),
        (
            {"data": {"source": "files", "files": FILES}},
            r"data\.files\.qqp\.columns: found 'text', expected one of id, text_a, text_b, label",
        ),
        (
            {"finetune": {"select_on": "holdout"}, "prefinetune": {"epochs": 2}},
            r"select_on: found holdout, but prefinetune .*; set prefinetune\.epochs to 0; schedule\.first has",
        ),
        ({"tasks": {"longest": TASK}}, r"tasks\.longest: is a word of its own here; call the task otherwise"),
        # schedules
        (
            {"schedule": {"tasks": ["qqp", "sts"]}},
            r"schedule\.until: found 'sst', expected one of qqp, sts, shortest, longest, steps",
        ),
        (
            {"schedule": {"until": ["sst", "longest"]}},
            r"schedule\.until: found 'longest', expected one of sst, qqp, sts",
        ),
        (
            {"schedule": {"until": "steps"}},
            r"schedule: steps: found null, expected the number of steps in an epoch, for",
        ),
        (
            {"tasks": {"sst": {"epochs": 3}}},
            r"tasks\.sst\.epochs: only schedule sequential reads it, and schedule\.name is joint; use finetune\.epochs",
        ),
        ({"finetune": {"patience": 2, "select": "last"}}, r"finetune: patience: stops when .*select can't be last"),
        ({"schedule": {"first": {"x": 2}}}, r"schedule\.first: found 'x', expected one of sst, qqp, sts"),
        (
            {"schedule": {"first": {"qqp": 2}, "tasks": ["sst"]}},
            r"schedule\.first: task qqp does not train; expected some of sst",
        ),
        ({"schedule": {"first": {"qqp": 0}}}, r"schedule\.first\.qqp: expected greater than or equal to 1, found 0"),
        (
            {"schedule": {"name": "sequential", "tasks": ["sst"]}, "tasks": {"qqp": {"epochs": 2}}},
            r"epochs: task qqp does not train; expected some of sst",
        ),
        # techniques that would do nothing
        (
            {"surgery": {"method": "pcgrad"}, "schedule": {"name": "round_robin"}},
            r"surgery\.method: found pcgrad, but it takes a step of several tasks: it needs schedule\.name joint",
        ),
        (
            {"surgery": {"log_conflicts": True}, "schedule": {"tasks": ["sst"]}},
            r"surgery\.log_conflicts: found true, but it takes a step of several tasks: .*found joint and sst",
        ),
        (
            {"smart": {"lambda": 1, "tasks": ["sst", "qqp"]}, "schedule": {"tasks": ["sst"]}},
            r"smart\.tasks: found \['sst', 'qqp'\], expected one or more of the tasks that train: sst",
        ),
        (
            {"bregman": {"mu": 1, "tasks": []}},
            r"bregman\.tasks: found \[\], expected one or more of the tasks that train",
        ),
        (
            {"r_drop": {"alpha": 1, "tasks": ["sts"]}, "schedule": {"tasks": ["sst"]}},
            r"r_drop\.tasks: found \['sts'\], expected one or more of the tasks that train: sst",
        ),
        (
            {"weighting": {"method": "uncertainty", "weights": {"sst": 2}}},
            r"weighting\.weights: only weighting\.method fixed reads it",
        ),
        (
            {"bregman": {"mu": 1, "momentum": 0}},
            r"bregman\.momentum: found 0, which makes the teacher the model itself",
        ),
        # a frozen encoder
        (
            {"encoder": {"frozen": True}, "surgery": {"method": "pcgrad"}},
            r"surgery\.method: found pcgrad, but it acts on the encoder's gradients, and encoder\.frozen",
        ),
        (
            {"encoder": {"frozen": True}, "surgery": {"log_conflicts": True}},
            r"surgery\.log_conflicts: found true, but it acts on the encoder's gradients, and encoder\.frozen",
        ),
        (
            {"finetune": {"accumulate": 2}, "tasks": {"sts": {"loss": "pearson"}}},
            r"finetune\.accumulate: found 2, but loss pearson of task sts compares the rows of a whole batch",
        ),
        (
            {"encoder": {"compile": True}, "bregman": {"mu": 1}},
            r"encoder\.compile: found true, but the teacher of bregman",
        ),
        (
            {"encoder": {"compile": True, "checkpointing": True}},
            "encoder: compile: found true, and so is checkpointing",
        ),
        (
            {"finetune": {"accumulate": 2}, "smart": {"lambda": 1, "projection": "rescale"}},
            r"finetune\.accumulate: found 2, but smart\.projection rescale",
        ),
        (
            {"bregman": {"mu": 1, "late_momentum": 0}},
            r"bregman\.late_momentum: found 0, which makes the teacher the model itself",
        ),
        ({"encoder": {"frozen": True, "lora": {"rank": 2}}}, r"encoder: frozen: a frozen encoder has no use for lora"),
        (
            {"encoder": {"frozen": True}, "tasks": {"sts": COSINE}},
            r"encoder\.frozen: leaves task sts nothing to learn: ",
        ),
        (
            {
                "encoder": {"frozen": True},
                "tasks": {"sts": COSINE},
                "schedule": {"tasks": ["sst"]},
                "prefinetune": {"task": "sts", "epochs": 1},
            },
            r"encoder\.frozen: leaves task sts nothing to learn",
        ),
    ],
)
def test_a_combination_that_can_not_be_is_an_error_that_says_why(load, overrides, message):
    with pytest.raises(UserError, match=message):
        load(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"schedule": {"tasks": ["qqp"]}},  # until stays at sst: one task alone is what its epochs are counted by
        {"schedule": {"name": "annealed", "tasks": ["sts"]}},
        {"schedule": {"name": "sequential", "tasks": ["qqp", "sts"]}, "tasks": {"sts": {"epochs": 4}}},
        {"schedule": {"name": "per_epoch", "until": "steps"}},  # which does not read it
        {"schedule": {"until": "steps", "steps": 5}},
        {"schedule": {"name": "round_robin", "until": ["sst", "sts"]}},
        {"smart": {"tasks": ["sts"]}, "schedule": {"tasks": ["sst"]}},  # it is off
        {"schedule": {"first": {"qqp": 2, "sst": 1}}},
        {"encoder": {"frozen": True}, "tasks": {"sts": COSINE | {"head_options": {"projection": True}}}},
        sharing("projection") | {"tasks": {"qqp": SIAMESE, "sts": COSINE}},
        sharing("fusion") | pairs(head="mlp"),
        sharing("both") | pairs(encoding="bi", head="siamese_cosine", head_options={"activation": "leaky_relu"}),
        sharing("none", ["x"]),
        {"tasks": {"sts": COSINE | {"loss": "cosine_embedding", "loss_options": {"threshold": 4}}}},
        {"tasks": {"cfimdb": TASK}, "schedule": {"tasks": ["cfimdb"]}},
        {"smart": {"lambda": 5}, "bregman": {"mu": 1}, "r_drop": {"alpha": 1}, "surgery": {"method": "cagrad"}},
    ],
)
def test_what_goes_together_is_let_through(load, overrides):
    load(overrides)
