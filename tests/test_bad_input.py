"""Bad input to the stage scripts: one clear message, a nonzero exit code, and no partial outputs.

Tests of each reader cover its own kinds of damage; these tests run the scripts as users do.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import yaml

from bertrio.config import merged, read_yaml
from tests.small_bert import save_bert

GOOD = "id,text,label\n" + "".join(f"r{i},a film number {i},{i % 5}\n" for i in range(40))
SMALL = {
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"source": "files", "max_reject_fraction": 0.2, "files": {"sst": {"train": "train.csv", "dev": "dev.csv"}}},
    "encoder": {"tiny": {"vocab_size": 200, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 16}},
    "prefinetune": {"task": "sst"},
    "sharing": {"tasks": []},
    "finetune": {"max_steps": 1},
}


class Result(NamedTuple):
    code: int
    printed: str


class StageRunner:
    """A folder with params.yaml and the files of one task, where stage scripts run in this process."""

    def __init__(self, root: Path, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root, self.folder, self._capture = root, folder, capture
        base = read_yaml(root / "params.yaml")
        self._params = merged(base, SMALL)
        self._params["tasks"] = {"sst": base["tasks"]["sst"]}
        self.params({})
        for name in ("train.csv", "dev.csv"):
            self.write(name, GOOD)

    def params(self, overrides: dict[str, Any]) -> None:
        self.write("params.yaml", yaml.safe_dump(merged(self._params, overrides), sort_keys=False))

    def write(self, name: str, content: str | bytes) -> None:
        (self.folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def run(self, *stages: str) -> Result:
        """Run stages in order until one fails."""
        self._capture.readouterr()
        for stage in stages:
            name, *arguments = stage.split()
            sys.argv = [name, *arguments]
            try:
                runpy.run_path(str(self.root / "stages" / f"{name}.py"), run_name="__main__")
            except SystemExit as error:
                return Result(int(error.code or 0), self._capture.readouterr().err)
        return Result(0, self._capture.readouterr().err)

    def files(self) -> dict[str, bytes]:
        """Return all results of stages by path."""
        outputs = (path for name in ("data", "models", "metrics") for path in (self.folder / name).rglob("*"))
        paths = {str(path.relative_to(self.folder)): path for path in outputs if path.is_file()}
        ignored = ("data/inputs/", "data/rejects/", "data/tokens/", "metrics/timing/")
        return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(ignored)}


@pytest.fixture
def project(root, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return StageRunner(root, tmp_path, capfd)


@pytest.fixture
def fails_with(project) -> Callable[..., str]:
    """Check that a chain of stages exits with code 2 and a message with all `parts`, and return the message.

    Outputs of earlier runs are kept, and temporary files are removed.
    """

    def fails_with(*parts: str, stages: tuple[str, ...] = ("check", "download")) -> str:
        before = project.files()
        code, printed = project.run(*stages)
        assert code == 2 and "Traceback" not in printed
        assert all(part in printed for part in parts), printed
        assert len(printed) < 3000
        assert project.files() == before and not list(project.folder.glob("data/.*"))
        return printed

    return fails_with


# unreadable files


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("train.csv", "", ("train.csv", "found nothing, the file is empty", "expected column names")),
        ("train.csv", GOOD.replace(",", ";"), ("looks as if ';' stood between the columns", "expected 'text'")),
        ("train.csv", GOOD.encode("utf-16"), ("train.csv", "not UTF-8 in line 1", "save the file as UTF-8")),
        ("train.jsonl", b'[{"text": "a", "label": 1}]\n', ("not a JSON object in line 1, and so for all lines",)),
        ("train.xlsx", b"PK", ("train.xlsx", "expected one of .csv, .tsv")),
    ],
)
def test_unreadable_file_stops_before_any_output(project, fails_with, name, content, parts):
    project.write(name, content)
    project.params({"data": {"files": {"sst": {"train": name}}}})
    fails_with(*parts)


# unusable rows


def test_unusable_rows_are_rejected_and_others_read(project):
    bad = [
        (b"n1,a text,nan", "label is not a number"),
        (b"n3,a text,-1", "label out of range"),
        (b"n4,a text,", "missing label"),
        (b"n5,a text,five", "unknown label"),
        (b"n7,a text,2.5", "label out of range"),
        (b"r0,a text,1", "duplicate id"),
        (b"n9,caf\xe9,1", "not UTF-8"),
        (b'n10,"caf\n\xe9",1', "not UTF-8"),
        (b"n11,a,b,1", "wrong number of columns"),
        (b'n12,"a" b,1', "damaged quoting"),
    ]
    good = [b"\xf0\x9f\x98\x80\xf0\x9f\x98\x80", b"nul\0 byte", b"x" * 1_000_000, b"\xe2\x80\x8b", b'"a\r\nb"']
    lines = [row for row, _ in bad] + [b"g%d,%s,1" % (i, text) for i, text in enumerate(good)]
    content = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode() + b"\r\n\r\n".join(lines)
    project.write("train.csv", content)
    project.params({"data": {"max_reject_fraction": 0.5}, "encoder": {"max_length": 16}})
    code, printed = project.run("check", "download", "split")
    assert code == 0, printed
    rejected = pd.read_csv("data/rejects/sst.csv", keep_default_na=False)
    assert list(rejected["reason"]) == [reason for _, reason in bad]
    table = pd.read_parquet("data/raw/sst/train.parquet")
    assert table["id"].tolist() == [f"r{i}" for i in range(40)] + [f"g{i}" for i in range(len(good))]
    assert table["text"].iloc[41] == "nul byte" and len(table["text"].iloc[42]) == 1_000_000
    counts = json.loads(Path("metrics/data.json").read_text())["rejects"]["sst"]
    assert counts["total"] == len(bad) and counts["train"]["not_UTF-8"] == 2


def test_test_file_has_all_labels_or_none(project, fails_with):
    project.params({"data": {"files": {"sst": {"test": "test.csv"}}}})
    project.write("test.csv", "id,text\na,one\nb,two\n")
    assert "2 test (no labels)" in project.run("check", "download", "split").printed
    project.write("test.csv", "id,text,label\na,one,1\nb,two,\n")
    fails_with("test.csv: 1 of 2 rows can't be used (1 missing label)")


def test_training_on_sentences_without_words(project):
    for name in ("train.csv", "dev.csv"):
        rows = [*(chr(0x1F600 + i) for i in range(20)), "x" * 100_000, "\u200b"]
        project.write(name, "text,label\n" + "".join(f"{text},{i % 5}\n" for i, text in enumerate(rows)))
    code, printed = project.run(*TRAINED, "prefinetune", "finetune --member base")
    assert code == 0, printed


def test_damaged_stage_input_is_an_error(project, fails_with):
    assert project.run("check", "download", "split").code == 0
    project.write("data/raw/sst/dev.parquet", b"no parquet")
    fails_with("raw/sst/dev.parquet", "can't be read as a table", "run the stage that writes it", stages=("split",))


# encoders


@pytest.fixture
def encoder(project, monkeypatch):
    """The folder of a small BERT that params name."""
    save_bert(Path("bert"), words=("a", "film", "number"))
    project.params({"encoder": {"name": "./bert"}})
    return Path("bert")


def edit(file: Path, **values: Any) -> None:
    content = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


TRAINED = ("check", "download", "split", "pretrain_mlm")
DAMAGE = {
    "cut tokenizer": (lambda at: (at / "tokenizer.json").write_text('{"model": '), ()),
    "no config": (lambda at: (at / "config.json").unlink(), ("there is no config.json",)),
    "unknown model_type": (lambda at: edit(at / "config.json", model_type="zzz"), ("zzz",)),
    "larger vocabulary": (lambda at: edit(at / "config.json", vocab_size=9), ("does not fit the weights",)),
    "cut weights": (lambda at: truncate(at / "model.safetensors", 100), ()),
}


def truncate(file: Path, by: int) -> None:
    file.write_bytes(file.read_bytes()[:-by])


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_encoder_folder_is_an_error(project, encoder, fails_with, damage):
    damage_folder, parts = DAMAGE[damage]
    damage_folder(encoder)
    assert project.run("check", "download").code == 0
    last = "split" if project.run("split").code else "pretrain_mlm"
    fails_with("encoder.name: ./bert: can't be loaded", *parts, stages=(last,))
    assert not Path("models/encoder").exists()


def test_too_large_tokenizer_is_an_error(project, encoder, fails_with):
    tokenizer = json.loads((encoder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"extra": 8, "more": 9}
    (encoder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert project.run("check", "download", "split").code == 0
    fails_with("encoder.name: ./bert has 8 token embeddings, but its tokenizer 10 tokens", stages=("pretrain_mlm",))


class Malicious:
    """Create a file when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed").absolute(),)


def test_pickled_weights_are_never_loaded(project, encoder, fails_with):
    import torch

    torch.save({"embeddings.word_embeddings.weight": Malicious()}, encoder / "pytorch_model.bin")
    (encoder / "model.safetensors").unlink()
    assert project.run("check", "download", "split").code == 0
    fails_with("there is no model.safetensors", "pickles, which can run any code", stages=("pretrain_mlm",))
    assert not Path("executed").exists()


@pytest.mark.parametrize("known", [True, False])
def test_remote_code_is_never_run(project, encoder, fails_with, monkeypatch, known):
    monkeypatch.setattr("builtins.input", lambda *text: "y")  # answer yes to any prompt
    (encoder / "own.py").write_text(f"open({str(Path('executed').absolute())!r}, 'w')\n")
    code = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoModelForMaskedLM": "own.Model"}
    edit(encoder / "config.json", auto_map=code, **({} if known else {"model_type": "own"}))
    tokenizer = {} if known else {"tokenizer_class": "OwnTokenizer"}
    edit(encoder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Slow", "own.Fast"]}, **tokenizer)
    if known:  # transformers uses its own architecture of that name
        assert project.run(*TRAINED).code == 0
    else:
        assert project.run("check", "download").code == 0
        fails_with("it needs code of its own, and code that comes with an encoder is never run", stages=("split",))
    assert not Path("executed").exists()


def test_damaged_trained_encoder_is_named(project, fails_with):
    assert project.run(*TRAINED, "prefinetune").code == 0
    for path in Path("models").rglob("model.safetensors"):
        truncate(path, 10)
    fails_with("models/prefinetuned", "run the stage that writes it again", stages=("finetune --member base",))
    assert not Path("models/members").exists()


# params.yaml


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda text: "", ("found nothing, expected groups of params",)),
        (lambda text: bytes(range(256)) * 9, ("line 2 is not UTF-8", "save the file as UTF-8")),
        (lambda text: text.replace("  seed: 1", "\tseed: 1", 1), ("'\\t' that cannot start any token", "line 2")),
        (lambda text: text.replace("  seed: 1", "  seed: 1\n  seed: 2", 1), ('found duplicate key "seed"', "line 3")),
        (lambda text: text + "3: x\n", ("3: expected text for a name, in quotes",)),
        (lambda text: "a: 1: 2\n" + text, ("here\n  at line 1, column 5:\n    a: 1: 2\n        ^",)),
    ],
)
def test_invalid_yaml_error_names_the_line(project, fails_with, change, parts):
    content = change(Path("params.yaml").read_text())
    project.write("params.yaml", content)
    fails_with("params.yaml", *parts)
    assert not Path("data/inputs").exists()


def test_params_of_a_failed_experiment_are_shown_as_a_diff(project, fails_with):
    for command in ("init -q", "add params.yaml", "-c user.name=a -c user.email=a@b.c commit -qm one"):
        subprocess.run(["git", *command.split()], check=True)
    advice = ("dvc exp run -S", "git checkout params.yaml")
    project.params({"finetune": {"lr": "abc"}})  # as dvc exp run -S leaves it
    fails_with("finetune.lr: expected a number", " finetune:\n-  lr: 6.0e-05\n+  lr: abc\n", *advice, stages=("check",))
    project.params({"distill": {"weight": 1, "teacher": "nowhere"}})
    fails_with("+  teacher: nowhere\n", *advice, stages=("check",))


def test_error_about_a_large_value_is_short(project, fails_with):
    project.params({"finetune": {"epochs": ["x" * 1000] * 1000}, "schedule": {"tasks": [None] * 1000}})
    for stage in ("check", "finetune --member base"):  # every stage validates params
        assert "found ['xxx" in fails_with("finetune.epochs", "and 971 more", stages=(stage,))
