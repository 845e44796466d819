"""YAML as DVC reads and writes it."""

import io

import pytest
import yaml
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from bertrio.cli.main import main
from bertrio.config.reading import read_yaml, yaml_text
from bertrio.core.errors import UserError

SCALARS = [
    "no", "No", "yes", "on", "off", "y", "n", "true", "True", "TRUE", "tRUE", "false", "~", "null", "Null", "nULL", "0",
    "1", "-1", "+1", "007", "0777", "0o17", "0x1F", "1:30", "1e5", "2e-05", "-2E+3", "1.", ".5", "-.5", "1.5", ".inf",
    "-.INF", ".nan", "inf", "nan", "1e", "0x", "1.2.3", "a-b", "08", "-0", "'1'", '"null"', "2020", "[no, 2e-05]",
    "{on: , no: 1}",
]  # fmt: skip
REFUSED = [
    "1_0", "0b11", "-0x1F", "2020-01-01", "2020-99-99", "=", "1e400", "0x" + "f" * 5000, "86e8312", "!!int x",
    "!!omap [a: 1]", "!!set {a}", "!!binary aGk=",
]  # fmt: skip


@pytest.mark.parametrize("text", SCALARS)
def test_plain_values_are_those_that_dvc_reads_and_what_is_written_reads_the_same(text):
    value = read_yaml("x.yaml", f"x: {text}".encode())["x"]
    assert repr(value) == repr(YAML(typ="safe").load(f"x: {text}")["x"])  # nan is not equal to itself
    written = io.StringIO()
    YAML().dump({"x": value, "y": text}, written)
    for content in (written.getvalue(), yaml_text({"x": value, "y": text})):
        assert repr(read_yaml("x.yaml", content.encode())) == repr({"x": value, "y": text})
    assert repr(yaml.safe_load(yaml_text([value, text]))) == repr([value, text])


@pytest.mark.parametrize("text", REFUSED)
def test_what_yaml_libraries_read_as_different_types_is_refused(text):
    with pytest.raises(UserError, match=r"^x\.yaml: is not valid YAML:\n(found|could not)"):
        read_yaml("x.yaml", f"x: {text}".encode())


def test_names_of_classes_such_as_no_survive_an_override_by_dvc(root, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text((root / "params.yaml").read_text().replace("  qqp:", "  qqp:\n    classes: ['no', 'yes']"))
    apply_overrides(path, ["finetune.lr=2e-5"])
    assert "- no\n" in path.read_text()
    assert read_yaml(path)["tasks"]["qqp"]["classes"] == ["no", "yes"]


@pytest.mark.parametrize("damage", ["x: 2020-99-99", "x: " + "[" * 100_000, "a: &a [*a]"])
@pytest.mark.parametrize("command", ["check", "report", "search finetune.lr=1,2", "recipes show smart-concat"])
def test_every_command_reads_params_by_the_same_reader(root, tmp_path, monkeypatch, capsys, command, damage):
    for name in ("dvc.yaml", "recipes"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "params.yaml").write_text(damage)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert "params.yaml: is not valid YAML:" in capsys.readouterr().err
