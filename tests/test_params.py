import re

import pytest
import yaml

from bertrio.errors import UserError
from bertrio.params import build_tasks, load_member, load_params, merged, read_yaml

TASK = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}


@pytest.fixture
def load(tmp_path, root):
    """Loads the project's params.yaml with overrides on top."""

    def run(overrides, member=None):
        path = tmp_path / "params.yaml"
        path.write_text(yaml.safe_dump(merged(read_yaml(root / "params.yaml"), overrides), sort_keys=False))
        return load_member(member, path) if member else load_params(path)

    return run


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
        ("optimizer.betas", [0.9, "0.99"], (0.9, 0.99)),
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
        ("", "found NoneType"),
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
