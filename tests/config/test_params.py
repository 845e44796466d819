import re

import pytest

from bertrio.config import build_tasks, load_params
from bertrio.config.loading import MEMBER_GROUPS
from bertrio.config.root import Params
from bertrio.core.errors import UserError
from bertrio.techniques.regularizers import REGULARIZERS

TASK = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}


def nested(dotted, value):
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(
    ("param", "written", "meant"),
    [
        ("finetune.lr", "2e-05", 2e-5),  # how DVC writes it; YAML 1.1 reads text
        ("finetune.lr", 1, 1.0),
        ("finetune.max_steps", None, None),
        ("finetune.epochs", "4", 4),
        ("optimizer.max_grad_norm", "1e0", 1.0),
        ("data.split.fractions", [0.8, 0.1, 0.1], (0.8, 0.1, 0.1)),
        ("encoder.dropout", None, None),
        ("encoder.frozen", "true", True),
        ("runtime.device", "cuda:1", "cuda:1"),
        ("encoder.revision", 123, "123"),
    ],
)
def test_what_dvc_writes_is_understood(load, param, written, meant):
    value = load(nested(param, written))
    for key in param.split("."):
        value = getattr(value, key)
    assert value == meant


def test_the_text_that_dvc_itself_writes_for_a_small_number_is_understood(tmp_path, root):
    text = (root / "params.yaml").read_text()
    changed = re.sub(r"(?m)^(finetune:\n(?:  .*\n)*?  lr: )\S+", r"\g<1>2e-05", text)
    assert changed != text
    path = tmp_path / "params.yaml"
    path.write_text(changed)
    assert load_params(path).finetune.lr == 2e-5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"finetune": {"lrr": 1}}, r"finetune\.lrr: unknown param; did you mean finetune\.lr\?"),
        ({"finetun": {}}, r"finetun: unknown param; did you mean finetune\?"),
        ({"tasks": {"sst": {"batchsize": 1}}}, r"tasks\.sst\.batchsize: .*did you mean tasks\.sst\.batch_size\?"),
        ({"runtime": {"zzz": 1}}, r"runtime\.zzz: unknown param; known here: seed, device"),
        ({"finetune": {"epochs": 0}}, r"finetune\.epochs: expected greater than or equal to 1, found 0"),
        ({"finetune": {"epochs": 1.5}}, r"finetune\.epochs: .*found 1\.5"),
        ({"finetune": {"lr": "fast"}}, r"finetune\.lr: .*number.*found 'fast'"),
        ({"finetune": {"lr": True}}, r"finetune\.lr: expected a number, found true or false"),
        ({"finetune": {"lr": float("nan")}}, r"finetune\.lr: "),
        ({"encoder": {"dropout": 1.0}}, r"encoder\.dropout: expected less than 1, found 1\.0"),
        ({"data": {"source": "hubb"}}, r"data\.source: expected 'sample', 'cs224n', 'files' or 'hub', found 'hubb'"),
        ({"data": {"source": "cs224n"}}, r"data\.path: found null, expected the folder"),
        ({"data": {"source": "files"}}, r"data\.files: found no block for task sst"),
        ({"data": {"split": {"fractions": [0.5, 0.1, 0.1]}}}, r"data\.split: .*a sum of 1"),
        (
            {"data": {"split": {"tasks": {"foo": {"strategy": "random", "fractions": [1, 0, 0]}}}}},
            r"data\.split\.tasks",
        ),
        ({"tasks": {"qqp": {"loss": "mse"}}}, r"tasks\.qqp: loss mse does not fit target binary: expected bce"),
        ({"tasks": {"sst": {"encoding": "cross"}}}, r"tasks\.sst: encoding goes with kind pair"),
        ({"tasks": {"sst": {"classes": None}}}, r"tasks\.sst: classes \(how many\) goes with"),
        ({"tasks": {"sts": {"range": [5, 0]}}}, r"tasks\.sts: range: expected \[lowest, highest\]"),
        ({"schedule": {"until": "cola"}}, r"schedule\.until: found 'cola', expected one of sst, qqp, sts"),
        (
            {"finetune": {"select": "cola"}},
            r"finetune\.select: found 'cola', expected one of sst, .*overall_mean, last",
        ),
        ({"prefinetune": {"epochs": 1, "task": "x"}}, r"prefinetune\.task: found 'x'"),
        ({"encoder": {"tiny": {"heads": 3}}}, r"encoder\.tiny: hidden_size \d+ is not a multiple of heads 3"),
        ({"ensemble": {"members": {"b": {"data": {}}}}}, r"ensemble\.members\.b\.data: a member may override runtime"),
        ({"ensemble": {"members": {"b": {"finetune": {"lr": -1}}}}}, r"ensemble\.members\.b\.finetune\.lr: .*found -1"),
        ({"ensemble": {"members": {"b": {"encoder": {"name": "x"}}}}}, r"members\.b\.encoder\.name: can't differ"),
        ({"ensemble": {"members": {"b": 3}}}, r"ensemble\.members\.b: "),
        ({"ensemble": {"members": {"a/b": {}}}}, r"ensemble\.members\.a/b"),
        ({"ensemble": {"members": {1: {}}}}, r"ensemble\.members\.1"),  # DVC drops stages with numbers for names
        (
            {"ensemble": {"members": {"b": {"tasks": {"x": {}}}}}},
            r"members\.b\.tasks\.x: no such task, expected one of",
        ),
        ({"ensemble": {"members": {"b": {"tasks": {"sst": {"kind": "pair"}}}}}}, r"b\.tasks\.sst\.kind: can't differ"),
        ({"data": {"split": {"fractions": [0.7, 0.3]}}}, r"data\.split\.fractions: expected more values, found"),
        ({"tasks": {"last": TASK}}, r"tasks\.last: is a word of its own here"),
    ],
)
def test_a_mistake_is_an_error_that_names_the_param_and_what_was_expected(load, overrides, message):
    with pytest.raises(UserError, match=message):
        load(overrides)


def test_all_mistakes_are_told_at_once(load):
    with pytest.raises(UserError) as caught:
        load({"finetune": {"lr": -1, "epochs": 0}, "runtime": {"threads": 0}})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n- 2\n", "found list, expected groups"),
        ("", "is empty, expected groups"),
        ("runtime: {seed: 1}\nruntime: {seed: 2}\n", "key 'runtime' is given twice"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("runtime: {}\n", "data: is missing"),
    ],
)
def test_a_file_that_is_no_params_file_says_so(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_params(path)


def test_a_missing_file_says_where_to_run(tmp_path):
    with pytest.raises(UserError, match="run this from the folder that holds params.yaml"):
        load_params(tmp_path / "params.yaml")


def test_a_member_sees_its_own_overrides_on_top_of_the_base(load):
    overrides = {"ensemble": {"members": {"b": {"runtime": {"seed": 7}, "tasks": {"sst": {"dropout": 0.5}}}}}}
    base, member = load(overrides), load(overrides, member="b")
    assert (member.runtime.seed, member.tasks["sst"].dropout) == (7, 0.5)
    assert member.tasks["qqp"] == base.tasks["qqp"]
    assert member.finetune == base.finetune
    with pytest.raises(UserError, match="has no member 'c', expected one of"):
        load(overrides, member="c")


def test_tasks_can_be_removed_and_added_by_params_alone(load):
    assert list(build_tasks(load({"tasks": {"cfimdb": TASK}}))) == ["sst", "qqp", "sts", "cfimdb"]


@pytest.mark.parametrize(
    ("param", "written", "meant"),
    [
        ("smart.lambda", "5", 5.0),
        ("smart.radius", "1e-05", 1e-5),
        ("smart.eta", "0", 0.0),
        ("smart.norm", "2", "2"),
        ("smart.norm", 2, "2"),  # how DVC writes -S smart.norm=2
        ("smart.norm", float("inf"), "inf"),  # and -S smart.norm=inf
        ("smart.tasks", ["sst"], ["sst"]),
        ("bregman.mu", "1e-3", 1e-3),
        ("r_drop.alpha", "1", 1.0),
        ("penalties.l1", "1e-06", 1e-6),
        ("weighting.weights", {"sst": "0.5"}, {"sst": 0.5}),
        ("surgery.log_conflicts", "true", True),
        ("schedule.cap", "500", 500),
        ("schedule.cap", "shortest", "shortest"),
        ("schedule.until", ["sst", "sts"], ["sst", "sts"]),
        ("schedule.max_batches", "3", 3),
        ("encoder.lora.rank", "8", 8),
        ("optimizer.layer_decay", "95e-2", 0.95),
        ("finetune.ema", "0.999", 0.999),
        ("finetune.patience", "2", 2),
    ],
)
def test_what_dvc_writes_for_a_technique_is_understood(load, param, written, meant):
    value = load(nested(param, written))
    for key in param.split("."):
        value = getattr(value, "weight" if key in ("lambda", "mu", "alpha") else key)
    assert value == meant and type(value) is type(meant)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"smart": {"lamda": 1}}, r"smart\.lamda: unknown param; did you mean smart\.lambda\?"),
        ({"smart": {"strength": 1}}, r"smart\.strength: unknown param; known here: lambda, tasks, every, eta"),
        ({"smart": {"epsilon": 1}}, r"smart\.epsilon: unknown param"),
        ({"bregman": {"momentun": 1}}, r"bregman\.momentun: .*did you mean bregman\.momentum\?"),
        ({"r_drop": {"alfa": 1}}, r"r_drop\.alfa: .*did you mean r_drop\.alpha\?"),
        ({"rdrop": {"alpha": 1}}, r"rdrop: unknown param; did you mean r_drop\?"),
        ({"penalties": {"l3": 1}}, r"penalties\.l3: unknown param; did you mean penalties\.l2\?"),
        ({"surgery": {"metod": "pcgrad"}}, r"surgery\.metod: .*did you mean surgery\.method\?"),
        ({"weighting": {"weight": {}}}, r"weighting\.weight: .*did you mean weighting\.weights\?"),
        ({"schedule": {"task": ["sst"]}}, r"schedule\.task: .*did you mean schedule\.tasks\?"),
        ({"sharing": {"layers": "none"}}, r"sharing\.layers: .*did you mean sharing\.layer\?"),
        ({"encoder": {"lora": {"r": 8}}}, r"encoder\.lora\.r: unknown param; "),
        (
            {"tasks": {"sst": {"head": "mlp", "head_options": {"dept": 1}}}},
            r"tasks\.sst\.head_options: dept: .*did you mean depth\?",
        ),
        (
            {"tasks": {"sst": {"loss_options": {"labelsmoothing": 0}}}},
            r"tasks\.sst\.loss_options: labelsmoothing: .*did you mean label_smoothing\?",
        ),
    ],
)
def test_an_unknown_option_of_a_technique_is_answered_by_the_nearest_one(load, overrides, message):
    with pytest.raises(UserError, match=message):
        load(overrides)


@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        ("smart.lambda", -1, "greater than or equal to 0, found -1"),
        ("smart.radius", 0, "greater than 0, found 0"),
        ("smart.eps", 0, "greater than 0, found 0"),
        ("smart.sigma", -1, "greater than or equal to 0"),
        ("smart.eta", -1, "greater than or equal to 0"),
        ("smart.steps", -1, "greater than or equal to 0"),
        ("smart.norm", "1", "'inf' or '2', found '1'"),
        ("smart.projection", "sphere", "'ball' or 'rescale', found 'sphere'"),
        ("bregman.mu", -1, "greater than or equal to 0"),
        ("bregman.momentum", 1.1, "less than or equal to 1, found 1.1"),
        ("bregman.late_momentum", -0.1, "greater than or equal to 0"),
        ("r_drop.alpha", -1, "greater than or equal to 0"),
        ("penalties.l1", -1, "greater than or equal to 0"),
        ("penalties.l2", -1, "greater than or equal to 0"),
        ("penalties.parameters", "head", "'all', 'encoder' or 'heads', found 'head'"),
        ("weighting.method", "learned", "one of fixed, uncertainty, found 'learned'"),
        ("weighting.weights.sst", -1, "greater than or equal to 0"),
        ("weighting.lr", 0, "greater than 0"),
        ("surgery.method", "pc_grad", "one of none, pcgrad, .*found 'pc_grad'; did you mean pcgrad\\?"),
        ("surgery.reduction", "max", "'sum' or 'mean'"),
        ("schedule.name", "zipped", "one of joint, .*found 'zipped'"),
        ("schedule.temperature", 0.5, "greater than or equal to 1"),
        ("schedule.max_batches", 0, "greater than or equal to 1"),
        ("schedule.base_batch", 0, "greater than or equal to 1"),
        ("schedule.batch_sizes", "even", "'fixed' or 'proportional'"),
        ("schedule.steps", 0, "greater than or equal to 1"),
        ("schedule.tasks", [], "at least 1 item"),
        ("sharing.layer", "all", "'none', 'projection', 'fusion' or 'both'"),
        ("encoder.lora.rank", -1, "greater than or equal to 0"),
        ("encoder.lora.alpha", 0, "greater than 0"),
        ("encoder.lora.dropout", 1, "less than 1"),
        ("encoder.lora.targets", "query", "list"),
        ("optimizer.layer_decay", 0, "greater than 0"),
        ("optimizer.layer_decay", 1.1, "less than or equal to 1"),
        ("optimizer.gamma", 2, "less than or equal to 1"),
        ("optimizer.step_epochs", 0, "greater than or equal to 1"),
        ("optimizer.lr_schedule", "exp", "'constant', 'linear', 'cosine' or 'step'"),
        ("finetune.ema", 1.0, "less than 1"),
        ("finetune.ema", 0, "greater than 0"),
        ("finetune.patience", 0, "greater than or equal to 1"),
        ("ensemble.combine", "median", "'vote'"),
        ("tasks.sst.epochs", 0, "greater than or equal to 1"),
        ("tasks.sst.head", "siamse", "one of .*did you mean siamese"),
        ("tasks.sst.loss", "oll", "one of .*ordinal_log_loss"),
        ("tasks.sst.loss_options.label_smoothing", 1, "less than 1"),
        ("tasks.sst.loss_options.class_weights", "balanced", "one of inverse"),
    ],
)
def test_what_is_out_of_range_is_an_error_that_says_what_was_expected(load, param, value, message):
    with pytest.raises(UserError, match=rf"params\.yaml: {re.escape(param)}: .*{message}"):
        load(nested(param, value))


@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        ("schedule.cap", "shortes", r"schedule\.cap: .*'shortest'.*found 'shortes'"),
        ("schedule.cap", 0, r"schedule\.cap: .*greater than or equal to 1, found 0"),
        ("schedule.until", [], r"schedule\.until: .*found \[\]"),
    ],
)
def test_a_param_of_two_types_is_named_as_it_stands_in_the_file(load, param, value, message):
    with pytest.raises(UserError, match=message) as caught:
        load(nested(param, value))
    assert "function" not in str(caught.value) and "literal[" not in str(caught.value)


def test_tasks_train_in_the_order_that_is_given_and_else_in_their_own(load):
    assert load({}).trains == ["sst", "qqp", "sts"]
    assert load({"schedule": {"tasks": ["sts", "sst"]}}).trains == ["sts", "sst"]


MEMBER = {"smart": {"lambda": 5}, "schedule": {"tasks": ["sst"]}, "tasks": {"sst": {"head": "mlp"}}}


def test_members_may_override_the_groups_of_techniques_and_say_what_they_answer(load):
    overrides = {"ensemble": {"members": {"a": {}, "b": {**MEMBER, "answers": ["sst"]}}}}
    base, member = load(overrides), load(overrides, member="b")
    assert (member.smart.weight, member.trains, member.tasks["sst"].head) == (5, ["sst"], "mlp")
    assert (base.smart.weight, base.trains, base.tasks["sst"].head) == (0, ["sst", "qqp", "sts"], "linear")
    assert base.answers("a") == ("sst", "qqp", "sts") and base.answers("b") == ("sst",)


ALONE = {"schedule": {"tasks": ["sst"]}, "finetune": {"select": "sst"}}


def test_a_member_has_no_say_in_what_it_does_not_train_beside_one_that_does(load):
    with pytest.raises(UserError, match=r"members\.b: it answers qqp beside base, .* set its answers without it"):
        load({"ensemble": {"members": {"b": ALONE}}})
    own = {"answers": ["sts"], "schedule": {"tasks": ["sts"], "until": "longest"}, "finetune": {"select": "last"}}
    with pytest.raises(UserError, match=r"members\.base: it answers sts beside b, .* name sts in its schedule"):
        load({**ALONE, "prefinetune": {"epochs": 1}, "ensemble": {"members": {"base": {}, "b": own}}})
    with pytest.raises(UserError, match="set combine vote or mean and its answers without it"):
        load({"ensemble": {"combine": "uniform_soup", "members": {"b": ALONE}}})
    load({**ALONE, "prefinetune": {"epochs": 1}, "ensemble": {"members": {"base": {}, "b": {"runtime": {"seed": 2}}}}})


@pytest.mark.parametrize(
    ("group", "block"),
    [
        ("sharing", {"layer": "none"}),
        ("schedule", {"name": "round_robin"}),
        ("weighting", {"method": "uncertainty"}),
        ("surgery", {"method": "pcgrad"}),
        ("smart", {"lambda": "5"}),
        ("bregman", {"mu": 1}),
        ("r_drop", {"alpha": 1}),
        ("distill", {"weight": 1, "teacher": "models"}),
        ("penalties", {"l2": 1}),
        ("tracking", {"every": 3}),
    ],
)
def test_every_group_that_fine_tuning_reads_can_differ_by_member(load, group, block):
    overrides = {"ensemble": {"members": {"b": {group: block}}}}
    member, base = load(overrides, "b"), load({})
    changed = [name for name in Params.model_fields if getattr(member, name) != getattr(base, name)]
    assert set(changed) <= {group, "ensemble"} and (group == "sharing" or group in changed)
    assert group in MEMBER_GROUPS


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ({"smart": {"lamda": 3}}, r"members\.b\.smart\.lamda: unknown param; did you mean smart\.lambda\?"),
        ({"smart": {"lambda": -3}}, r"members\.b\.smart\.lambda: expected greater than or equal to 0, found -3"),
        ({"surgery": {"method": "pcgrad"}, "encoder": {"frozen": True}}, r"members\.b: surgery\.method: found pcgrad"),
        ({"answers": ["x"]}, r"members\.b\.answers: found \['x'\], expected a list of tasks out of sst, qqp, sts"),
        ({"answers": []}, r"members\.b\.answers: found \[\], expected a list"),
        ({"answers": "sst"}, r"members\.b\.answers: found 'sst', expected a list"),
        ({"answers": [["sst"]]}, r"members\.b\.answers: found \[\['sst'\]\], expected a list"),
        ({"tasks": {"sst": 3}}, r"members\.b\.tasks\.sst"),
    ],
)
def test_a_mistake_in_a_member_is_told_with_its_name(load, member, message):
    with pytest.raises(UserError, match=message):
        load({"ensemble": {"members": {"b": member}}})


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (
            {"task": "qpq", "path": "a.tsv"},
            r"challenges\.paws\.task: found 'qpq', expected one of .*did you mean qqp\?",
        ),
        ({"task": "qqp", "pth": "a.tsv"}, r"unknown param; did you mean evaluate\.challenges\.paws\.path\?"),
        ({"task": "qqp"}, r"challenges\.paws\.path: is missing"),
        (
            {"task": "sst", "path": "a", "columns": {"text_a": "x"}},
            r"paws\.columns: found 'text_a', .* id, text, label",
        ),
        ({"task": "sst", "path": "a", "columns": {"txt": "x"}}, r"challenges\.paws\.columns\.txt"),
        ({"task": "sst", "path": "a", "delimiter": "||"}, r"paws\.delimiter: .*at most 1 character"),
    ],
)
def test_a_challenge_is_checked_before_any_work(load, challenge, message):
    with pytest.raises(UserError, match=message):
        load({"evaluate": {"challenges": {"paws": challenge}}})


@pytest.mark.parametrize("name", ["dev", "selection"])
def test_a_challenge_has_no_name_of_a_split(load, name):
    with pytest.raises(UserError, match=rf"evaluate\.challenges\.{name}: is a word of its own here"):
        load({"evaluate": {"challenges": {name: {"task": "sst", "path": "a"}}}})


def test_a_regularizer_stands_in_its_file_the_table_and_params_alone(root):
    assert {name: Params.model_fields[name].annotation for name in REGULARIZERS} == {
        name: kind.Options for name, kind in REGULARIZERS.items()
    }
    naming = [path for path in (root / "src").rglob("*.py") if re.search(r"\br_drop\b|RDrop", path.read_text())]
    assert {path.name for path in naming} == {"r_drop.py", "__init__.py"}
