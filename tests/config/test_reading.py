"""YAML as DVC reads and writes it."""

import io

import pytest
import yaml
from dvc.utils.serialize import parse_yaml
from ruamel.yaml import YAML

from bertrio.cli.main import main
from bertrio.config.reading import read_yaml, yaml_text
from bertrio.core.errors import UserError

SCALARS = [
    "no", "No", "yes", "on", "off", "y", "n", "true", "True", "TRUE", "tRUE", "false", "~", "null", "Null", "nULL", "0",
    "1", "-1", "+1", "007", "0777", "0o17", "0x1F", "1:30", "1e5", "2e-05", "-2E+3", "1.", ".5", "-.5", "1.5", ".inf",
    "-.INF", ".nan", "inf", "nan", "1e", "0x", "1.2.3", "a-b", "08", "-0", "'1'", '"null"', "2020", "[no, 2e-05]",
    "{on: , no: 1}", "1_0", "0b11", "-0x1F", "2020-01-01", "1e400", "-0o17", "1_0e5", "08_1", "._1", "'._'", "'-_'",
]  # fmt: skip
INVALID = ["2020-99-99", "=", "9" * 5000, "!!int x", "!!bool x", "!!python/name:os.system", "{a, a}"]


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_are_read_as_by_dvc_and_round_trip(text):
    value = read_yaml("x.yaml", f"x: {text}".encode())["x"]
    assert repr(value) == repr(parse_yaml(f"x: {text}", "x.yaml")["x"])  # nan is not equal to itself
    stream = io.StringIO()
    YAML().dump({"x": value, "y": text}, stream)
    for content in (stream.getvalue(), yaml_text({"x": value, "y": text})):
        assert repr(read_yaml("x.yaml", content.encode())) == repr({"x": value, "y": text})
    assert repr(yaml.safe_load(yaml_text([value, text]))) == repr([value, text])


@pytest.mark.parametrize("text", INVALID)
def test_invalid_values_are_errors(text):
    with pytest.raises(UserError, match=r"^x\.yaml: is not valid YAML:\n(.*\n)+ *at line 1, column"):
        read_yaml("x.yaml", f"x: {text}".encode())


def test_unknown_yaml_version_is_an_error():
    with pytest.raises(UserError, match="is not valid YAML"):
        read_yaml("x.yaml", b"%YAML 1.3\n---\nx: 1")


@pytest.mark.parametrize("damage", ["x: 2020-99-99", "x: " + "[" * 1000])
@pytest.mark.parametrize("command", ["check", "report", "search finetune.lr=1,2", "recipes show smart-concat"])
def test_every_command_reports_invalid_yaml(root, tmp_path, monkeypatch, capsys, command, damage):
    for name in ("dvc.yaml", "recipes"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "params.yaml").write_text(damage)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert "params.yaml: is not valid YAML:" in capsys.readouterr().err
