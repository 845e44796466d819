import re

import pytest
from dvc.utils.hydra import apply_overrides

from bertrio.config import build_tasks
from bertrio.config.loading import MEMBER_GROUPS
from bertrio.config.reading import read_yaml
from bertrio.config.root import Params
from bertrio.core.errors import UserError
from bertrio.techniques.regularizers import REGULARIZERS

TASK = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}


def nest(dotted, value):
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(
    ("param", "yaml_value", "expected"),
    [
        ("finetune.max_steps", None, None),
        ("finetune.epochs", "4", 4),
        ("data.split.fractions", [0.8, 0.1, 0.1], (0.8, 0.1, 0.1)),
        ("encoder.frozen", "true", True),
        ("smart.norm", 2, "2"),  # -S smart.norm=2
        ("smart.norm", float("inf"), "inf"),  # -S smart.norm=inf
        ("weighting.weights", {"sst": "0.5"}, {"sst": 0.5}),
        ("schedule.cap", "500", 500),
    ],
)
def test_values_as_dvc_writes_them(load, param, yaml_value, expected):
    value = load(nest(param, yaml_value))
    for key in param.split("."):
        value = getattr(value, key)
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        # unknown names
        ("finetune.lrr", 1, "finetune.lrr: unknown param; did you mean finetune.lr?"),
        ("runtime.zz[z]", 1, "runtime.zz[z]: unknown param; known here: seed, device"),
        ("tasks.sst.loss_options.labelsmoothing", 0, "did you mean label_smoothing?"),
        ("tasks.sst.loss_options.label_smoothing", "x", "label_smoothing: expected a number, found 'x'"),
        ("data.extra_train.sst.columns", {"txt": "b"}, "columns.txt: expected id, text, text_a, text_b or label,"),
        ("tasks.kind", {"kid": "single"}, "tasks.kind.kid: unknown param; did you mean tasks.kind.kind?"),
        ("surgery.method", "pc_grad", "surgery.method: expected one of none, pcgrad"),
        ("tasks.sst.head", "siamse", "did you mean siamese"),
        # types and ranges
        ("finetune.epochs", 0, "finetune.epochs: expected a number greater than or equal to 1, found 0"),
        ("finetune.lr", True, "finetune.lr: expected a number, found true"),
        ("smart.weight", 1, "smart.weight: unknown param"),
        ("finetune.lr", float("nan"), "finetune.lr: expected a number, found nan"),
        ("encoder.frozen", "maybe", "encoder.frozen: expected true or false, found 'maybe'"),
        ("runtime.device", "gpu", "runtime.device: expected auto, cpu, mps, cuda or cuda:N, found 'gpu'"),
        ("encoder.name", "", "encoder.name: expected a path, found empty text"),
        ("encoder.name", None, "encoder.name: expected text (no, on and null in quotes), found null"),
        ("encoder.dropout", 1, "encoder.dropout: expected a number less than 1, found 1"),
        ("weighting.weights", {"sst": "x"}, "weighting.weights.sst: expected a number, found 'x'"),
        ("data.source", "hubb", "data.source: expected sample, cs224n, files or hub, found 'hubb'; did you mean hub?"),
        ("data.split.fractions", [0.5, 0.1, 0.1], "data.split: fractions are train, dev, test"),
        ("data.split.fractions", [0.7, 0.3], "data.split.fractions.2: is missing"),
        ("encoder", {"frozen": True, "lora": {"rank": 2}}, "encoder.lora.rank: found 2, but encoder.frozen"),
        ("encoder.tiny.heads", 3, "is not a multiple of heads 3"),
        # a param of two types
        ("finetune.one_pass", "x", "finetune.one_pass: expected true or false, or auto, found 'x'"),
        ("schedule.until", {}, "in quotes), or a list, found {}"),
        ("schedule.cap", "shortes", "expected a whole number, or shortest, found 'shortes'; did you mean shortest?"),
        ("data.path", "~nobody-at-all/a", "data.path: expected a path"),
        ("tasks", {"../t": {}}, "tasks.../t"),  # used as a file name
        # members
        ("ensemble.members.b", {"data": {}}, "ensemble.members.b.data: a member may override runtime"),
        ("ensemble.members.b", {"finetune": {"lr": -1}}, "ensemble.members.b.finetune.lr: expected"),
        ("ensemble.members.b", {"encoder": {"name": "x"}}, "members.b.encoder.name: can't differ between members"),
        ("ensemble.members.b", {"tasks": {"sst": {"classes": list("abcde")}}}, "b.tasks.sst.classes: can't differ"),
        ("ensemble.members.b", {"tasks": {"nli": {}}}, "members.b.tasks.nli: there is no task nli; remove it here"),
        ("ensemble.members.b", {"tasks": {"sst": 3}}, "members.b.tasks.sst: expected a block of params, found 3"),
        ("ensemble.members.b", {"encoder": {"frozen": True}, "surgery": {"method": "cagrad"}}, "method: found cagrad"),
        ("ensemble.members", {"a/b": {}}, "ensemble.members.a/b"),
        ("ensemble.members", {1: {}}, "ensemble.members.1"),  # DVC drops stages with numbers for names
        *(
            ("ensemble.members.b", {"answers": answers}, "members.b.answers: found [^,]*, expected a list of tasks out")
            for answers in (["x"], [], "sst", [["sst"]])
        ),
    ],
)
def test_bad_param_error_names_it_and_what_is_expected(load, param, value, message):
    pattern = message if "[^,]" in message else re.escape(message)
    with pytest.raises(UserError, match=pattern) as caught:
        load(nest(param, value))
    assert not re.search(r"function|literal\[|Input|valid|should|pars", str(caught.value))


def test_tasks_with_equal_column_names_are_an_error(load):
    tasks = dict.fromkeys(("x", "x_balanced"), TASK | {"target": "classes", "classes": 2, "loss": "cross_entropy"})
    with pytest.raises(UserError, match="tasks.x_balanced: its column .* is one of task x, too; take another"):
        load({"tasks": tasks})


def test_all_errors_are_reported_at_once(load):
    with pytest.raises(UserError) as caught:
        load({"finetune": {"lr": -1, "epochs": 0}, "runtime": {"threads": 0}})
    assert len(str(caught.value).splitlines()) == 3


def test_tasks_train_in_the_order_of_the_schedule(load):
    assert list(build_tasks(load({"tasks": {"cfimdb": TASK}}))) == ["sst", "qqp", "sts", "cfimdb"]
    assert load({"schedule": {"tasks": ["sts", "sst"]}}).trains == ["sts", "sst"]


def test_member_overrides_the_base(load):
    changes = {"smart": {"lambda": "5"}, "tasks": {"sst": {"dropout": 0.5}}, "schedule": {"tasks": ["sst"]}}
    overrides = {"ensemble": {"members": {"a": {}, "b": {**changes, "answers": ["sst"]}}}}
    base, member = load(overrides), load(overrides, member="b")
    assert (member.smart.weight, member.trains, member.tasks["sst"].dropout) == (5, ["sst"], 0.5)
    assert (base.smart.weight, base.trains, base.tasks["sst"].dropout) == (0, ["sst", "qqp", "sts"], 0.1)
    changed = {name for name in Params.model_fields if getattr(member, name) != getattr(base, name)}
    assert changed == {"smart", "tasks", "schedule"} <= set(MEMBER_GROUPS)
    assert base.answers("a") == ("sst", "qqp", "sts") and base.answers("b") == ("sst",)
    with pytest.raises(UserError, match="has no member 'c', expected one of"):
        load(overrides, member="c")


SST_ONLY = {"schedule": {"tasks": ["sst"]}, "finetune": {"select": "sst"}}


def test_member_may_not_answer_a_task_that_only_others_train(load):
    with pytest.raises(UserError, match=r"members\.b: it predicts qqp, as base does, .* set its answers without it"):
        load({"ensemble": {"members": {"b": SST_ONLY}}})
    changes = {"answers": ["sts"], "schedule": {"tasks": ["sts"], "until": "longest"}, "finetune": {"select": "last"}}
    with pytest.raises(UserError, match=r"members\.base: it predicts sts, as b does, .* name sts in its schedule"):
        load({**SST_ONLY, "prefinetune": {"epochs": 1}, "ensemble": {"members": {"base": {}, "b": changes}}})
    with pytest.raises(UserError, match="set combine vote or mean and its answers without it"):
        load({"ensemble": {"combine": "uniform_soup", "members": {"b": SST_ONLY}}})
    members = {"base": {}, "b": {"runtime": {"seed": 2}}}
    load({**SST_ONLY, "prefinetune": {"epochs": 1}, "ensemble": {"members": members}})


def test_regularizer_is_named_only_in_its_file_and_the_table(root):
    assert all(Params.model_fields[name].annotation is kind.Options for name, kind in REGULARIZERS.items())
    naming = [path for path in (root / "src").rglob("*.py") if re.search(r"\br_drop\b|RDrop", path.read_text())]
    assert {path.name for path in naming} == {"r_drop.py", "__init__.py"}


def test_dvc_override_changes_one_line_and_no_comment(tmp_path, root):
    before = (root / "params.yaml").read_text().splitlines()
    for group, param, value in (("smart", "lambda", 5), ("finetune", "lr", 3e-5), ("finetune", "max_steps", 7)):
        path = tmp_path / f"{param}.yaml"
        path.write_text("\n".join(before) + "\n")
        apply_overrides(path, [f"{group}.{param}={value}"])
        changed = [pair for pair in zip(before, path.read_text().splitlines(), strict=True) if len({*pair}) > 1]
        assert len(changed) == 1 and f"{param}:" in changed[0][1]
        assert {line.partition("#")[2] for line in changed[0]} == {changed[0][0].partition("#")[2]}


@pytest.mark.parametrize("param", ["tracking.to", "sharing.tasks"])
def test_dvc_override_empties_a_list(tmp_path, root, param):
    """DVC joins lines after a comment on the line of a list's name."""
    (tmp_path / "params.yaml").write_text((root / "params.yaml").read_text())
    apply_overrides(tmp_path / "params.yaml", [f"{param}=[]"])
    group, name = param.split(".")
    before, after = read_yaml(root / "params.yaml"), read_yaml(tmp_path / "params.yaml")
    assert after == {**before, group: {**before[group], name: []}}
