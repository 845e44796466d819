"""An export is there whole and right, or not at all, and messages say what to do."""

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch

from bertrio.cli.export import FORMATS as NAMES
from bertrio.cli.export import add_export_commands
from bertrio.core.errors import UserError
from bertrio.inference.export import export
from bertrio.inference.export.export import FORMATS, export_model


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(*words):
    parser = argparse.ArgumentParser()
    add_export_commands(parser.add_subparsers())
    args = parser.parse_args(["export", *map(str, words)])
    return args.run(args)


def test_the_command_writes_what_it_says(models, tmp_path, capsys):
    command("--model", models["mean"], "--to", tmp_path / "out", "--format", "classifier", "--task", "qqp")
    assert json.loads((tmp_path / "out/export.json").read_text()) == {
        "format": "classifier",
        "pooling": "mean",
        "max_length": 24,
        "task": "qqp",
        "kind": "pair",
        "encoding": "cross",
        "classes": ["no", "yes"],
    }
    said = capsys.readouterr().out
    assert f"wrote {tmp_path / 'out'}: task qqp of {models['mean']}, --format classifier" in said
    assert "largest difference from the model: " in said


def test_the_command_knows_every_format():
    assert list(NAMES) == list(FORMATS)


def test_a_model_of_one_task_needs_no_task_named(make_model, tmp_path):
    folder = make_model(tasks={"sst": None, "qqp": None}, sharing={"tasks": []}, schedule={"until": "sts"})
    assert export_model(folder, tmp_path / "out", "classifier").task.name == "sts"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"format": "classifier"}, "--task: found none, expected one of sst, qqp, sts"),
        ({"format": "classifier", "task": "sentiment"}, "--task: found sentiment, expected one of sst, qqp, sts"),
        ({"format": "encoder", "task": "sst"}, "--task: found sst, but --format encoder holds the encoder alone"),
        ({"format": "classifier", "task": "sst", "int8": True}, "--int8: goes with --format onnx"),
    ],
)
def test_wrong_arguments_are_named(models, tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        export_model(models["mean"], tmp_path / "out", **words)
    assert not list(tmp_path.iterdir())


def test_an_untrained_head_is_refused(make_model, tmp_path):
    folder = make_model(schedule={"tasks": ["qqp", "sts"], "until": "sts"}, finetune={"select": "sts"})
    with pytest.raises(UserError, match=r"--task: found sst, which .* was not trained on"):
        export_model(folder, tmp_path / "out", "classifier", "sst")


def test_a_missing_package_is_named_with_its_extra(models, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"needs the package onnx, onnxruntime, onnxscript; install .*'bertrio\[onnx\]'"
    ):
        export_model(models["mean"], tmp_path / "out", "onnx", "sst")


def test_an_ensemble_of_several_names_its_members(models, tmp_path):
    shutil.copytree(models["mean"], tmp_path / "models/members/base")
    (tmp_path / "models/ensemble").mkdir()
    (tmp_path / "models/ensemble/ensemble.json").write_text("{}")
    with pytest.raises(UserError, match=r"combines predictions, not one model; export one model: .*members/base, or"):
        export_model(tmp_path / "models/ensemble", tmp_path / "out", "encoder")
    with pytest.raises(UserError, match=r"has no heads.safetensors, .*; export one model: .*members/base"):
        export_model(tmp_path / "models", tmp_path / "out", "encoder")


def test_a_former_export_is_replaced_and_nothing_else(models, tmp_path):
    export_model(models["mean"], tmp_path / "out", "classifier", "sst")
    export_model(models["mean"], tmp_path / "out", "encoder")
    assert json.loads((tmp_path / "out/export.json").read_text())["format"] == "encoder"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/of-mine").write_text("precious")
    with pytest.raises(UserError, match="is there and no former export"):
        export_model(models["mean"], tmp_path / "notes", "encoder")
    with pytest.raises(UserError, match=r"--to \.: expected the name of a folder that may be made anew"):
        export_model(models["mean"], Path("."), "encoder")
    for place in (models["mean"], models["mean"] / "encoder", models["mean"].parent):
        with pytest.raises(UserError, match="is in or around the model's folder"):
            export_model(models["mean"], place, "encoder")


def test_what_differs_from_the_model_is_not_kept(models, tmp_path, monkeypatch):
    """Not even in place of a former one, and however it differs."""
    export_model(models["mean"], tmp_path / "out", "classifier", "sst")
    before = files(tmp_path / "out")
    right = FORMATS["classifier"].read
    for wrong in (lambda found: found + 0.01, lambda found: found * torch.nan, lambda found: found[:, :1]):
        broken = export.Format(
            FORMATS["classifier"].write, lambda *args, wrong=wrong: wrong(right(*args)), FORMATS["classifier"].expected
        )
        monkeypatch.setitem(FORMATS, "classifier", broken)
        with pytest.raises(UserError, match="the export differs from the model by"):
            export_model(models["mean"], tmp_path / "out", "classifier", "sst")
    assert files(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_written_is_named(models, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--to .*file/out: can't be written"):
        command("--model", models["mean"], "--to", tmp_path / "file/out", "--format", "encoder")
