"""Bad input of every kind, through the stage scripts: one clear message, an exit code that is not 0, nothing half made.

What each reader makes of its own kinds of damage is tested beside it; here the script that a user runs is asked.
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

GOOD = "id,text,label\n" + "".join(f"r{i},a film number {i},{i % 5}\n" for i in range(40))
SMALL = {
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"source": "files", "max_reject_fraction": 0.2, "files": {"sst": {"train": "train.csv", "dev": "dev.csv"}}},
    "encoder": {"tiny": {"vocab_size": 200, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 16}},
    "prefinetune": {"task": "sst"},
    "sharing": {"tasks": []},
    "finetune": {"max_steps": 1},
}


class Ended(NamedTuple):
    code: int
    printed: str


class Project:
    """A folder with params.yaml and one task in files, whose stage scripts are run in this process."""

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

    def run(self, *stages: str) -> Ended:
        """Runs stages in order up to one that fails."""
        self._capture.readouterr()
        for stage in stages:
            name, *arguments = stage.split()
            sys.argv = [name, *arguments]
            try:
                runpy.run_path(str(self.root / "stages" / f"{name}.py"), run_name="__main__")
            except SystemExit as ended:
                return Ended(int(ended.code or 0), self._capture.readouterr().err)
        return Ended(0, self._capture.readouterr().err)

    def files(self) -> dict[str, bytes]:
        """All results of stages, by path."""
        made = (path for name in ("data", "models", "metrics") for path in (self.folder / name).rglob("*"))
        paths = {str(path.relative_to(self.folder)): path for path in made if path.is_file()}
        aside = ("data/inputs/", "data/rejects/", "data/tokens/", "metrics/timing/")
        return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(aside)}


@pytest.fixture
def project(root, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Project(root, tmp_path, capfd)


@pytest.fixture
def refuses(project) -> Callable[..., str]:
    """Checks that a chain of stages ends with code 2 and a message that has all of `parts`; gives the message."""

    def refuses(*parts: str, stages: tuple[str, ...] = ("check", "download")) -> str:
        before = project.files()
        code, printed = project.run(*stages)
        assert code == 2 and "Traceback" not in printed
        assert all(part in printed for part in parts), printed
        assert len(printed) < 3000
        after = project.files()
        assert [name for name in {**before, **after} if before.get(name) != after.get(name)] == []
        return printed

    return refuses


def read(split: str = "train") -> pd.DataFrame:
    return pd.read_parquet(f"data/raw/sst/{split}.parquet")


# rows: files that can't be read at all


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("train.csv", "", ("train.csv", "found nothing, the file is empty", "expected column names")),
        ("train.csv", GOOD.replace(",", ";"), ("looks as if ';' stood between the columns", "expected 'text'")),
        ("train.csv", GOOD.encode("utf-16"), ("train.csv", "not UTF-8 in line 1", "save the file as UTF-8")),
        ("train.csv", GOOD.replace("text", "txt"), ("expected 'text'; did you mean 'txt'?", "data.files.sst.columns")),
        ("train.jsonl", b'[{"text": "a", "label": 1}]\n', ("not a JSON object in line 1, and so for all lines",)),
        ("train.xlsx", b"PK", ("train.xlsx", "expected one of .csv, .tsv")),
    ],
)
def test_a_file_that_holds_no_rows_of_the_task_stops_before_anything_is_written(project, refuses, name, content, parts):
    project.write(name, content)
    project.params({"data": {"files": {"sst": {"train": name}}}})
    refuses(*parts)


def test_a_source_that_fails_leaves_what_an_earlier_run_made(project):
    assert project.run("check", "download", "split").code == 0
    before = project.files()
    project.write("dev.csv", "")
    assert project.run("check", "download").code == 2
    assert project.files() == before
    assert not [path for path in Path("data").iterdir() if path.name.startswith(".")]


# rows: files with rows that can't be used


def test_rows_that_cannot_be_used_go_to_the_rejects_and_the_others_are_read(project):
    bad = [
        (b"n1,a text,nan", "label is not a number"),
        (b"n2,a text,5.0001", "label out of range"),
        (b"n3,a text,-1", "label out of range"),
        (b"n4,a text,", "missing label"),
        (b"n5,a text,five", "unknown label"),
        (b"n6,a text,1e999", "label is not a number"),
        (b"n7,a text,2.5", "label out of range"),
        (b"r0,a text,1", "duplicate id"),
        (b",a text,1", "missing id"),
        (b"n8, ,1", "empty text"),
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
    assert read()["id"].tolist() == [f"r{i}" for i in range(40)] + [f"g{i}" for i in range(len(good))]
    assert read()["text"].iloc[41] == "nul byte" and len(read()["text"].iloc[42]) == 1_000_000
    counts = json.loads(Path("metrics/data.json").read_text())["rejects"]["sst"]
    assert counts["total"] == len(bad) and counts["train"]["not_UTF-8"] == 2


def test_a_test_file_may_be_without_labels_but_not_in_part(project, refuses):
    project.params({"data": {"files": {"sst": {"test": "test.csv"}}}})
    project.write("test.csv", "id,text\na,one\nb,two\n")
    assert "2 test (no labels)" in project.run("check", "download", "split").printed
    project.write("test.csv", "id,text,label\na,one,1\nb,two,\n")
    refuses("test.csv: 1 of 2 rows can't be used (1 missing label)")


def test_sentences_without_words_can_be_trained_on(project):
    for name in ("train.csv", "dev.csv"):
        rows = [*(chr(0x1F600 + i) for i in range(20)), "x" * 100_000, "\u200b"]
        project.write(name, "text,label\n" + "".join(f"{text},{i % 5}\n" for i, text in enumerate(rows)))
    ended = project.run("check", "download", "split", "pretrain_mlm", "prefinetune", "finetune --member base")
    assert ended.code == 0, ended.printed


def test_tables_that_a_stage_reads_may_be_damaged(project, refuses):
    assert project.run("check", "download", "split").code == 0
    project.write("data/raw/sst/dev.parquet", b"no parquet")
    refuses("data/raw/sst/dev.parquet", "can't be read as a table", "run the stage that writes it", stages=("split",))
    project.write("data/raw/facts.json", b"{")
    refuses("data/raw/facts.json", "can't be read", "run the stage download", stages=("split",))


# encoders


@pytest.fixture
def encoder(project, monkeypatch):
    """A small BERT in a folder of the project that params name."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film", "number"]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained("bert")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained("bert")
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
def test_an_encoder_folder_that_is_not_whole_says_what_is_wrong(project, encoder, refuses, damage):
    harm, parts = DAMAGE[damage]
    harm(encoder)
    assert project.run("check", "download").code == 0
    last = "split" if project.run("split").code else "pretrain_mlm"
    refuses("encoder.name: ./bert: can't be loaded", *parts, stages=(last,))
    assert not Path("models/encoder").exists()


def test_a_tokenizer_with_more_tokens_than_the_encoder_has_embeddings_is_refused(project, encoder, refuses):
    tokenizer = json.loads((encoder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"extra": 8, "more": 9}
    (encoder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert project.run("check", "download", "split").code == 0
    refuses("encoder.name: ./bert has 8 token embeddings, but its tokenizer 10 tokens", stages=("pretrain_mlm",))


class Harm:
    """What a pickle can do: run a command as soon as it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harmed").absolute(),)


def test_weights_that_are_a_pickle_are_never_loaded(project, encoder, refuses):
    import torch

    torch.save({"embeddings.word_embeddings.weight": Harm()}, encoder / "pytorch_model.bin")
    (encoder / "model.safetensors").unlink()
    assert project.run("check", "download", "split").code == 0
    refuses("there is no model.safetensors", "pickles, which can run any code", stages=("pretrain_mlm",))
    assert not Path("harmed").exists()


@pytest.mark.parametrize("known", [True, False])
def test_code_that_comes_with_an_encoder_is_never_run(project, encoder, refuses, monkeypatch, known):
    monkeypatch.setattr("builtins.input", lambda *text: "y")  # who is asked whether to run it says yes
    (encoder / "own.py").write_text(f"open({str(Path('harmed').absolute())!r}, 'w')\n")
    code = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoModelForMaskedLM": "own.Model"}
    edit(encoder / "config.json", auto_map=code, **({} if known else {"model_type": "own"}))
    tokenizer = {} if known else {"tokenizer_class": "OwnTokenizer"}
    edit(encoder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Slow", "own.Fast"]}, **tokenizer)
    if known:  # transformers has an architecture of that name, and takes its own
        assert project.run(*TRAINED).code == 0
    else:
        assert project.run("check", "download").code == 0
        refuses("it needs code of its own, and code that comes with an encoder is never run", stages=("split",))
    assert not Path("harmed").exists()


def test_a_trained_encoder_that_was_damaged_since_names_its_folder(project, refuses):
    assert project.run(*TRAINED, "prefinetune").code == 0
    for path in Path("models").rglob("model.safetensors"):
        path.write_bytes(path.read_bytes()[:-10])
    refuses("models/prefinetuned", "run the stage that writes it again", stages=("finetune --member base",))
    assert not Path("models/members").exists()


# params.yaml


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda text: "", ("found nothing, expected groups of params",)),
        (lambda text: bytes(range(256)) * 9, ("line 2 is not UTF-8", "save the file as UTF-8")),
        (lambda text: text.replace("  seed: 1", "\tseed: 1", 1), ("'\\t' that cannot start any token", "line 2")),
        (lambda text: text.replace("  seed: 1", "  seed: 1\n  seed: 2", 1), ("key 'seed' is given twice", "line 3")),
        (lambda text: text + "3: x\n", ("3: expected text for a name, in quotes",)),
        (lambda text: "a: 1: 2\n" + text, ("here\n  at line 1, column 5:\n    a: 1: 2\n        ^",)),
        (lambda text: text + "a: !!python/object/apply:os.system ['true']\n", ("python/object/apply:os.system",)),
        (lambda text: text.replace("seed: 1", f"seed: {'9' * 5000}", 1), ("a number that is too large", "line 2")),
        (lambda text: "a: " + "[" * 100_000, ("more than 50 deep",)),
        (lambda text: "a: &a [*a]\n" + text, ("an alias stands inside of what it stands for",)),
        (lambda text: BOMB, ("more than 100000 values",)),
    ],
)
def test_a_params_file_that_is_no_good_yaml_names_the_line(project, refuses, change, parts):
    content = change(Path("params.yaml").read_text())
    project.write("params.yaml", content)
    refuses("params.yaml", *parts)
    assert not Path("data/inputs").exists()


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"ensemble": {"members": {"../b": {}}}}, ("ensemble.members.../b",)),  # names become those of files
        ({"tasks": {"../t": {}}}, ("tasks.../t",)),
        ({"data": {"path": "~nobody-here/x"}}, ("data.path", "~nobody-here/x", "a user who is not known here")),
        ({"data": {"path": "a\0b"}}, ("data.path: expected a path",)),
    ],
)
def test_names_and_paths_that_can_be_none_are_told_by_their_param(project, refuses, overrides, parts):
    project.params(overrides)
    refuses(*parts)


def test_what_a_failed_experiment_left_in_params_is_named_with_the_value_before(project, refuses):
    for command in ("init -q", "add params.yaml", "-c user.name=a -c user.email=a@b.c commit -qm one"):
        subprocess.run(["git", *command.split()], check=True)
    back = ("dvc exp run -S", "git checkout params.yaml")
    project.params({"finetune": {"lr": "abc"}})  # as dvc exp run -S leaves it
    refuses("finetune.lr: expected a number", " finetune:\n-  lr: 6.0e-05\n+  lr: abc\n", *back, stages=("check",))
    project.params({"distill": {"weight": 1, "teacher": "nowhere"}})
    refuses("+  teacher: nowhere\n", *back, stages=("check",))


def test_a_message_about_a_large_value_is_short(project, refuses):
    project.params({"finetune": {"epochs": ["x" * 1000] * 1000}, "schedule": {"tasks": [None] * 1000}})
    assert "found ['xxx" in refuses("finetune.epochs", "and 971 more")


def test_every_stage_reads_params_with_the_same_care(project, refuses):
    project.params({"finetune": {"lrr": 1}})
    refuses("finetune.lrr: unknown param; did you mean finetune.lr?", stages=("finetune --member base",))
