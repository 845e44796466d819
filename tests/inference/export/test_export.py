"""Exports are complete and correct, or not written at all."""

import dataclasses
import json
import signal
import sys

import pytest
import torch
from safetensors import SafetensorError

from bertrio.cli.main import main
from bertrio.cli.models import EXPORTS as NAMES
from bertrio.core.errors import UserError
from bertrio.inference.export.export import FORMATS, export_model


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(*words):
    return main(["export", *map(str, words)])


def test_command_writes_the_files_it_lists(models, tmp_path, capsys):
    assert list(NAMES) == list(FORMATS)
    assert command("--model", models["mean"], "--to", tmp_path / "out", "--format", "classifier", "--task", "qqp") == 0
    written = json.loads((tmp_path / "out/export.json").read_text())
    assert written.pop("files").keys() == {path.as_posix() for path in files(tmp_path / "out")} - {"export.json"}
    about = {"format": "classifier", "pooling": "mean", "max_length": 24, "task": "qqp", "kind": "pair"}
    assert written == about | {"encoding": "cross", "classes": ["no", "yes"]}
    assert f"wrote {tmp_path / 'out'}; largest difference from {models['mean']}: " in capsys.readouterr().out


def test_the_only_trained_task_is_the_default(make_model, tmp_path):
    folder = make_model(schedule={"tasks": ["sts"], "until": "sts"}, finetune={"select": "sts"})
    export_model(folder, tmp_path / "out", "classifier")
    assert json.loads((tmp_path / "out/export.json").read_text())["task"] == "sts"
    with pytest.raises(UserError, match=r"--task: found sst, expected one of sts, which base was trained on"):
        export_model(folder, tmp_path / "out", "classifier", "sst")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"format": "classifier"}, "--task: found none, expected one of sst, qqp, sts"),
        ({"format": "encoder", "task": "sst"}, "--task: found sst, but --format encoder holds the encoder alone"),
        ({"format": "classifier", "task": "sst", "int8": True}, "--int8: goes with --format onnx"),
        ({"format": "cross-encoder", "task": "sst"}, "has kind single, .* holds kind pair; --format onnx"),
        ({"format": "sentence-transformer", "task": "sts"}, "has encoding cross, .* holds encoding bi; "),
    ],
)
def test_unsupported_exports_are_an_error(models, tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        export_model(models["mean"], tmp_path / "out", **words)
    assert not list(tmp_path.iterdir())


def test_an_ensemble_is_an_error(tmp_path):
    (tmp_path / "ensemble").mkdir()
    with pytest.raises(UserError, match=r"--model .*ensemble: is no model folder .*makes members, such as models/mem"):
        export_model(tmp_path / "ensemble", tmp_path / "out", "onnx")


def test_only_an_earlier_export_is_replaced(models, tmp_path):
    export_model(models["mean"], tmp_path / "out", "classifier", "sst")
    export_model(models["mean"], tmp_path / "out", "encoder")
    assert json.loads((tmp_path / "out/export.json").read_text())["format"] == "encoder"
    before = files(models["mean"])
    with pytest.raises(UserError, match="is there and no former export"):
        export_model(models["mean"], models["mean"], "encoder")
    assert files(models["mean"]) == before


def full_disk(*_):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (full_disk, 2, "No space left on device (os error 28); make room there"),
        (lambda *_: signal.raise_signal(signal.SIGTERM), 143, ""),
    ],
)
def test_an_interrupted_export_keeps_the_earlier_one(models, tmp_path, monkeypatch, capsys, end, code, words):
    export_model(models["mean"], tmp_path / "out", "encoder")
    before = files(tmp_path)
    monkeypatch.setattr("bertrio.inference.export.export.write_json", end)
    assert command("--model", models["mean"], "--to", tmp_path / "out", "--format", "encoder") == code
    shown = capsys.readouterr().err
    assert words in shown and (not words or str(tmp_path / "out") in shown)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", [".git/HEAD", "NOTES.md", "README.md", "link", "export.json"])
def test_files_that_a_user_added_or_changed_are_kept(models, tmp_path, name):
    export_model(models["mean"], tmp_path / "out", "encoder")
    path = tmp_path / "out" / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("nowhere") if name == "link" else path.write_text('{"mine": true}')
    before = files(tmp_path / "out")
    with pytest.raises(UserError, match="holds .*, which no export has written so; move the folder away"):
        export_model(models["mean"], tmp_path / "out", "encoder")
    assert files(tmp_path / "out") == before and path.is_symlink() == (name == "link")


@pytest.mark.parametrize("wrong", [lambda values: values + 0.01, lambda values: values * torch.nan])
def test_an_export_that_differs_from_the_model_is_not_kept(models, tmp_path, monkeypatch, wrong):
    export_model(models["mean"], tmp_path / "out", "classifier", "sst")
    before, classifier = files(tmp_path / "out"), FORMATS["classifier"]

    def compare(*args):
        exported, expected = classifier.compare(*args)
        return wrong(exported), expected

    monkeypatch.setitem(FORMATS, "classifier", dataclasses.replace(classifier, compare=compare))
    with pytest.raises(UserError, match="the export differs from the model by"):
        export_model(models["mean"], tmp_path / "out", "classifier", "sst")
    assert files(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_missing_packages_are_named_with_their_extra(tmp_path, capsys, monkeypatch):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    assert command("--to", tmp_path / "out", "--format", "onnx") == 2
    assert "needs the package onnx, onnxruntime, onnxscript; install it with: pip" in capsys.readouterr().err
