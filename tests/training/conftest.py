"""A small project on disk: splits, tokenizer and encoder, as the stages before training leave them."""

from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from bertrio.config import load_params, merged, read_yaml
from bertrio.core.files import write_json
from bertrio.core.runtime import set_up
from bertrio.core.tasks import Predicted
from bertrio.data.table import read_table, write_table
from bertrio.evaluation.predictions import predicted_rows, write_predictions
from bertrio.model.encoder import initial_transformer
from bertrio.model.multitask import build_model, load_heads
from bertrio.model.tokenizer import build_tokenizer
from bertrio.training.build import build_trainer, load_split
from bertrio.training.finetune import Inputs, finetune
from tests.linear_heads import LINEAR_HEADS

TASKS = ("sst", "qqp", "sts")
STILL = {  # without dropout
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
    "tasks": {name: {"dropout": 0.0} for name in TASKS},
}
BI = {"encoding": "bi", "head": "siamese"}
TINY = {"vocab_size": 200, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32, "lr_factor": 1.0}
SMALL = {
    "runtime": {"device": "cpu", "precision": "float32", "threads": 1},
    "encoder": {"tiny": TINY},
    "finetune": {"epochs": 2, "lr": 1.0e-3},
    "tasks": merged({name: {"batch_size": 8, "dropout": 0.1} for name in TASKS}, LINEAR_HEADS["tasks"]),
}
WORDS = ["awful", "bad", "plain", "good", "great", "film", "plot", "actor", "scene", "story"]


def small_frame(task: str, rows: int, seed: int) -> pd.DataFrame:
    """Rows whose first word determines the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2 if task == "qqp" else 5, rows)
    text = [" ".join([WORDS[label], *rng.choice(WORDS[5:], rng.integers(1, 6))]) for label in labels]
    frame = pd.DataFrame({"id": [f"{task}-{seed}-{i}" for i in range(rows)]})
    if task == "sst":
        frame["text"] = text
    else:
        frame["text_a"], frame["text_b"] = text, text[::-1]
    return frame.assign(label=labels.astype(float))


class Workspace:
    """Folders and params of the small project; the current directory is its root."""

    small, sizes = SMALL, {"train": 60, "dev": 24, "test": 10}

    def __init__(self, root: Path, params_file: Path) -> None:
        self.root, self._params_file = root, params_file
        self.texts: list[str] = []
        for task in TASKS:
            for split in self.sizes:
                self.write(task, split, frame := self.frame(task, split))
                self.texts += frame.iloc[:, 1].tolist()
        params = self.params()
        tokenizer = build_tokenizer(params.encoder, self.texts, root / "models/tokenizer")
        set_up(1)
        initial_transformer(params.encoder, len(tokenizer)).save_pretrained(root / "models/encoder")
        initial_transformer(params.encoder, len(tokenizer)).save_pretrained(root / "models/prefinetuned/encoder")

    def frame(self, task: str, split: str) -> pd.DataFrame:
        frame = small_frame(task, self.sizes[split], list(self.sizes).index(split))
        return frame.assign(label=np.nan) if split == "test" else frame

    def write(self, task: str, split: str, frame: pd.DataFrame) -> None:
        write_table(frame, self.root / f"data/splits/{task}/{split}.parquet")

    def params(self, **overrides):
        """Return the default params at a small size, with overrides by group."""
        path = self.root / "params.yaml"
        params = merged(merged(read_yaml(self._params_file), self.small), overrides)
        path.write_text(yaml.safe_dump(params, sort_keys=False))
        return load_params(path)

    def built(self, *groups, **overrides):
        """Return params, model and training rows of the tasks that train; later groups of overrides win."""
        params = self.params(**reduce(merged, [*groups, overrides], {}))
        model = build_model(params, "models/encoder", set_up(**params.runtime.model_dump()))
        rows = split_of(params, "train")
        return params, model, {task: rows[task] for task in params.trains}

    def trainer(self, *groups, **overrides):
        """Return a trainer and the model that it scores."""
        params, model, rows = self.built(*groups, overrides)
        return build_trainer(params, model, rows)


SIZES = {"sst": 5, "qqp": 2, "sts": 1}  # outputs of a teacher
DISTILLED = {  # params of a student of `write_teacher`; a third of its rows have no label
    "distill": {"weight": 0.5, "teacher": "gone", "temperature": 2, "vectors": {"loss": "cosine"}},
    "data": {"unlabelled": {f"more-{task}": {"task": task, "path": "more.tsv", "share": 0.33} for task in SIZES}},
}


def write_teacher(texts=None, width=24):
    """Write 20 unlabelled rows of each task, and random teacher predictions of these and of train.

    `texts` has the number of vectors per row by task, if not 1.
    """
    Path("data/teacher").mkdir()
    rng = np.random.default_rng(5)
    for task, size in SIZES.items():
        more = small_frame(task, 20, 7).assign(label=np.nan, source=f"unlabelled-more-{task}")
        write_table(more, f"data/splits/{task}/unlabelled.parquet")
        rows = pd.concat([read_table(f"data/splits/{task}/train.parquet"), more]).sample(frac=1, random_state=1)
        values = rng.random((len(rows), size))
        shares = values / values.sum(axis=1, keepdims=True)
        predicted = Predicted(values[:, 0], *((None, 5 * values[:, 0]) if task == "sts" else (shares, None)))
        table = predicted_rows(SimpleNamespace(name=task), "train", rows["id"], rows["label"], predicted)
        write_predictions(table, f"data/teacher/{task}.parquet")
        vectors = [rng.normal(size=(len(rows), width)).astype("f") for _ in range((texts or {}).get(task, 1))]
        columns = {f"vector_{text}": list(part) for text, part in enumerate(vectors)}
        pq.write_table(pa.table(columns), f"data/teacher/{task}.vectors.parquet")
    write_json("data/teacher/facts.json", dict.fromkeys(SIZES, 80))


def split_of(params, name):
    return load_split(params, name, "data/splits", "models/tokenizer")


def saved_model(params, folder, encoder=None):
    """Return the model of a folder, as the next stage starts from it."""
    model = build_model(params, encoder or f"{folder}/encoder", set_up(**params.runtime.model_dump()))
    load_heads(model, folder)
    return model


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def run(params, name: str) -> dict:
    """Fine-tune into the folder `name` and return the timing."""
    plots = [f"{name}/{file}.csv" for file in ("h", "conflicts", "steps")]
    return finetune(params, set_up(**params.runtime.model_dump()), Inputs(), f"{name}/model", f"{name}/out", *plots)


@pytest.fixture
def workspace(tmp_path, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTRIO_CHECKPOINTS", str(tmp_path / "checkpoints"))
    return Workspace(tmp_path, root / "params.yaml")
