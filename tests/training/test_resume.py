"""A run that was stopped anywhere, and started again, gives the bytes of one that never was."""

import pkgutil
import random
import signal
import zlib
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bertrio.config import merged
from bertrio.config.loading import MEMBER_GROUPS
from bertrio.core.errors import UserError
from bertrio.core.interruption import Interrupted
from bertrio.core.runtime import set_up
from bertrio.training.checkpoints import Checkpoints, open_checkpoints
from bertrio.training.evaluator import EpochEvaluator
from bertrio.training.mlm import pretrain_mlm
from bertrio.training.optimizer import RowGradients
from bertrio.training.prefinetune import prefinetune
from tests.training.conftest import BI, DISTILLED, run, write_teacher

EVERYTHING = {
    "encoder": {"dropout": 0.1},
    "smart": {"lambda": 1, "radius": 0.01, "every": 3},
    "bregman": {"mu": 1, "late_momentum": 0.5},
    "surgery": {"method": "pcgrad", "log_conflicts": True},
    "weighting": {"method": "uncertainty"},
    "finetune": {"ema": 0.9, "accumulate": 2, "select": "sst"},
    "tracking": {"every": 4},
}
SHORT = {"schedule": {"max_batches": 4}, "checkpoints": {"steps": 3}}  # epochs of four steps, if not told otherwise
BY_STEP = {"lr_schedule": "step", "step_epochs": 1}
PIECES = {"finetune": {"accumulate": 2}, "encoder": {"dropout": 0.1}}
SETTINGS = {  # each part of a checkpoint, and a schedule that draws
    "everything": EVERYTHING,
    "temperature, holdout, bf16": {
        "runtime": {"precision": "bf16"},
        "schedule": {"name": "temperature", "until": "steps", "steps": 9, "first": {"qqp": 1}},
        "finetune": {"select_on": "holdout", "train_metrics": True},
    },
    "capped once, tasks sit out, lora, shared layers": {
        "schedule": {"cap": 30, "redraw": False, "until": "longest", "cycle": False},
        "encoder": {"lora": {"rank": 2, "dropout": 0.1}},
        "tasks": {"qqp": BI, "sts": {**BI, "batch_size": 3}},
        "sharing": {"layer": "both"},
    },
    "taught, with rows without labels": merged(DISTILLED, {"tasks": {"sst": {"batch_size": 3}}, **PIECES}),
    "frozen, cut off, step": {"encoder": {"frozen": True}, "finetune": {"max_steps": 7}, "optimizer": BY_STEP},
}


class Killed(Exception):
    """Stands for kill -9: nothing is saved for it."""


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def assert_same(one, other):
    assert files(one).keys() == files(other).keys()
    assert [name for name, content in files(one).items() if content != files(other)[name]] == []


def scramble():
    """A new process has its global generators anywhere."""
    torch.rand(7), np.random.rand(7), random.random()


def train(params, name):
    """Fine-tunes and gives the steps; everything goes into the folder `name`."""
    scramble()
    return run(params, name)["steps"]


@pytest.fixture
def stopped(monkeypatch):
    """Runs something until a step is done: then a signal comes, for which it saves, or it is killed."""

    def run(body, at, by):
        after_step = Checkpoints.after_step

        def stopping(resume, step, **how):
            if step == at and by is Interrupted:
                resume._interruption.requested = signal.SIGTERM
            after_step(resume, step, **how)
            if step == at:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "after_step", stopping)
            with pytest.raises(by):
                body()

    return run


def goes_on(params, stopped, *stops, steps):
    """Fine-tunes with these stops, into the bytes of the whole run."""
    for at, by in stops:
        stopped(lambda: train(params, "parts"), at, by)
    assert train(params, "parts") == steps
    assert_same("whole", "parts")


@pytest.mark.parametrize("name", SETTINGS)
def test_fine_tuning_that_was_stopped_anywhere_gives_the_same_bytes(workspace, stopped, name):
    write_teacher()
    params = workspace.params(**merged(SHORT, SETTINGS[name]))
    steps = train(params, "whole")
    draw = random.Random(zlib.crc32(name.encode()))
    stops = sorted(draw.sample(range(1, steps + 1), 2))
    goes_on(params, stopped, *[(at, draw.choice([Interrupted, Killed])) for at in stops], steps=steps)
    assert not list(Path("checkpoints").iterdir()), "nothing is left of a run that has ended well"


def test_sparse_gradients_of_words_outlive_a_stop(workspace, stopped, monkeypatch):
    params, dense, seen = workspace.params(**merged(SHORT, EVERYTHING)), RowGradients.dense, []

    def watching(rows, parameters):
        parameters = list(parameters)
        seen.append([parameter.grad.is_sparse for parameter in parameters if parameter.grad is not None])
        return dense(rows, parameters)

    monkeypatch.setattr(RowGradients, "dense", watching)
    monkeypatch.setattr("bertrio.model.encoder.MANY_WORDS", 1)  # sparse in a small vocabulary as well
    steps = train(params, "whole")
    goes_on(params, stopped, (2, Killed), (5, Interrupted), steps=steps)
    assert all(sum(kinds) == 1 for kinds in seen) and len(seen) > steps


def test_what_happens_on_a_gpu_where_losses_are_read_every_few_steps(workspace, stopped, monkeypatch):
    monkeypatch.setattr("bertrio.training.monitoring.read_every", lambda device: 5)
    params = workspace.params(checkpoints={"steps": 3})
    goes_on(params, stopped, (4, Interrupted), (11, Killed), steps=train(params, "whole"))


PLACES = (  # functions, and which call of them it is
    ("evaluator.evaluate_predictions", 1),  # scoring, before anything of it is kept
    ("evaluator.evaluate_predictions", 2),
    ("evaluator.history_line", 1),  # when half of it is
    ("finetune.save_model", 1),  # writing, after the last checkpoint
)


def test_a_run_killed_while_scoring_or_writing_gives_the_same_bytes_and_keeps_its_patience(workspace, monkeypatch):
    monkeypatch.setattr("bertrio.training.evaluator.selection_score", lambda *_: 0.5)
    params = workspace.params(**merged(SHORT, {"finetune": {"patience": 1, "epochs": 3, "select": "sst"}}))
    assert train(params, "whole") == 8
    for place, time in PLACES:
        target = f"bertrio.training.{place}"
        dies = Mock(wraps=pkgutil.resolve_name(target), side_effect=[*[DEFAULT] * (time - 1), Killed])
        with monkeypatch.context() as patch:
            patch.setattr(target, dies)
            with pytest.raises(Killed):
                train(params, "parts")
        assert train(params, "parts") == 8
        assert_same("whole", "parts")


def test_a_signal_that_comes_while_scoring_waits_for_no_more_than_a_batch(workspace, monkeypatch):
    params = workspace.params(**SHORT)
    train(params, "whole")
    scored, score = [], EpochEvaluator.score

    def scoring(evaluator, log, pause):
        def signalled():
            scored.append(log.epoch)
            pause.__self__._interruption.requested = signal.SIGINT
            pause()

        score(evaluator, log, signalled)

    with monkeypatch.context() as patch:
        patch.setattr(EpochEvaluator, "score", scoring)
        with pytest.raises(Interrupted, match="stopped at step 4, checkpoint saved; the same command goes on") as stop:
            train(params, "parts")
    assert stop.value.code == 130 and scored == [1]
    train(params, "parts")
    assert_same("whole", "parts")


def test_tasks_in_another_order_are_another_run(workspace):
    there = workspace.params(schedule={"first": {"sst": 1, "qqp": 1}})
    turned = there.model_copy(update={"tasks": dict(reversed(there.tasks.items()))})
    first = workspace.params(schedule={"first": {"qqp": 1, "sst": 1}})
    folders = set()
    for params in (there, turned, first, there):
        with open_checkpoints("finetune-base", params, set(MEMBER_GROUPS), [], set_up(1, "cpu")) as checkpoints:
            folders.add(checkpoints.folder)
    assert len(folders) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpu_with_deterministic_algorithms_gives_the_same_bytes_too(workspace, stopped, precision):
    on_gpu = {"runtime": {"device": "cuda", "precision": precision, "deterministic": True}, "encoder": {"dropout": 0.1}}
    params = workspace.params(**merged(merged(SHORT, EVERYTHING), on_gpu))
    try:
        goes_on(params, stopped, (2, Interrupted), (7, Killed), steps=train(params, "whole"))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("read_every", [1, 4])
def test_numbers_that_are_not_finite_are_in_no_checkpoint(workspace, monkeypatch, capsys, read_every):
    monkeypatch.setattr("bertrio.training.monitoring.read_every", lambda device: read_every)
    params = workspace.params(
        optimizer={"max_grad_norm": None, "warmup_fraction": 0}, finetune={"lr": 1e30}, checkpoints={"steps": 1}
    )
    for _ in range(2):
        with pytest.raises(UserError, match=r"is (nan|inf) at step 2 \(rows .*The last checkpoint.* is kept"):
            train(params, "a")
    assert "goes on after step 1" in capsys.readouterr().err
    assert not Path("a/model").exists() and len(pd.read_csv("a/steps.csv")), "the curves that led there are kept"


# ---- the other stages


def prefinetuned(params, name):
    metrics, timing = prefinetune(params, "models/encoder", "data/splits", "models/tokenizer", name)
    return metrics, timing["steps"]


def pretrained(params, name):
    runtime = set_up(**params.runtime.model_dump())
    metrics, timing = pretrain_mlm(params, runtime, "data/corpora", "models/tokenizer", name)
    return metrics, timing["steps"]


PREFINETUNE = {"prefinetune": {"epochs": 2}, "encoder": {"dropout": 0.1}}
MLM = {"enabled": True, "block_size": 16, "batch_size": 8, "epochs": 1, "lr": 0.01, "whole_word": True}


@pytest.mark.parametrize(("train", "options"), [(prefinetuned, PREFINETUNE), (pretrained, {"mlm": MLM})])
def test_other_stages_that_were_stopped_give_the_same_bytes(workspace, stopped, train, options):
    Path("data/corpora").mkdir()
    pq.write_table(pa.table({"text": workspace.texts}), "data/corpora/imdb.parquet")
    params = workspace.params(**options, checkpoints={"steps": 2})
    expected = train(params, "models/whole")
    for at, by in ((1, Interrupted), (expected[1] // 2, Killed), (expected[1], Interrupted)):
        scramble()
        stopped(lambda: train(params, "models/parts"), at, by)
        assert not Path("models/parts").exists()
    assert train(params, "models/parts") == expected
    assert_same("models/whole", "models/parts")
    assert not list(Path("checkpoints").iterdir()) and not list(Path("models").glob(".*"))
