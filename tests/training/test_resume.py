"""A resumed run produces the same bytes as an uninterrupted one."""

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
SHORT = {"schedule": {"max_batches": 4}, "checkpoints": {"steps": 3}}  # epochs of four steps by default
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
    "distilled, unlabelled rows": merged(DISTILLED, {"tasks": {"sst": {"batch_size": 3}}, **PIECES}),
    "frozen, cut off, step": {"encoder": {"frozen": True}, "finetune": {"max_steps": 7}, "optimizer": BY_STEP},
}


class Killed(Exception):
    """Simulates kill -9: nothing is saved."""


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def assert_same(actual, expected):
    assert files(actual).keys() == files(expected).keys()
    assert [name for name, content in files(actual).items() if content != files(expected)[name]] == []


def scramble():
    """Advance the global generators, whose state in a new process is arbitrary."""
    torch.rand(7), np.random.rand(7), random.random()


def train(params, name):
    """Fine-tune into the folder `name` and return the number of steps."""
    scramble()
    return run(params, name)["steps"]


@pytest.fixture
def stopped(monkeypatch):
    """`stopped(body, at, by)`: run `body` until step `at`, then interrupt it, so that it saves, or kill it."""

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


def assert_resumes(params, stopped, *stops, steps):
    """Fine-tune with these stops and check that the bytes are those of the whole run."""
    for at, by in stops:
        stopped(lambda: train(params, "parts"), at, by)
    assert train(params, "parts") == steps
    assert_same("parts", "whole")


@pytest.mark.parametrize("name", SETTINGS)
def test_resumed_fine_tuning_gives_the_same_bytes(workspace, stopped, name):
    write_teacher()
    params = workspace.params(**merged(SHORT, SETTINGS[name]))
    steps = train(params, "whole")
    draw = random.Random(zlib.crc32(name.encode()))
    stops = sorted(draw.sample(range(1, steps + 1), 2))
    assert_resumes(params, stopped, *[(at, draw.choice([Interrupted, Killed])) for at in stops], steps=steps)
    assert not list(Path("checkpoints").iterdir()), "a finished run leaves no checkpoints"


def test_resuming_with_sparse_gradients_gives_the_same_bytes(workspace, stopped, monkeypatch):
    params, dense, sparse = workspace.params(**merged(SHORT, EVERYTHING)), RowGradients.dense, []

    def recording(rows, parameters):
        parameters = list(parameters)
        sparse.append([parameter.grad.is_sparse for parameter in parameters if parameter.grad is not None])
        return dense(rows, parameters)

    monkeypatch.setattr(RowGradients, "dense", recording)
    monkeypatch.setattr("bertrio.model.encoder.MANY_WORDS", 1)  # also for a small vocabulary
    steps = train(params, "whole")
    assert_resumes(params, stopped, (2, Killed), (5, Interrupted), steps=steps)
    assert all(sum(flags) == 1 for flags in sparse) and len(sparse) > steps


def test_resuming_gives_the_same_bytes_if_losses_are_read_every_few_steps(workspace, stopped, monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr("bertrio.training.monitoring.read_every", lambda device: 5)
    params = workspace.params(checkpoints={"steps": 3})
    assert_resumes(params, stopped, (4, Interrupted), (11, Killed), steps=train(params, "whole"))


KILLS = (  # at this call of this function
    ("evaluator.evaluate_predictions", 1),  # scoring, before anything of it is kept
    ("evaluator.evaluate_predictions", 2),
    ("evaluator.history_line", 1),  # when half of it is kept
    ("finetune.save_model", 1),  # writing, after the last checkpoint
)


def test_a_run_killed_while_scoring_or_writing_keeps_bytes_and_patience(workspace, monkeypatch):
    monkeypatch.setattr("bertrio.training.evaluator.selection_score", lambda *_: 0.5)
    params = workspace.params(**merged(SHORT, {"finetune": {"patience": 1, "epochs": 3, "select": "sst"}}))
    assert train(params, "whole") == 8
    for function, call in KILLS:
        target = f"bertrio.training.{function}"
        killed = Mock(wraps=pkgutil.resolve_name(target), side_effect=[*[DEFAULT] * (call - 1), Killed])
        with monkeypatch.context() as patch:
            patch.setattr(target, killed)
            with pytest.raises(Killed):
                train(params, "parts")
        assert train(params, "parts") == 8
        assert_same("parts", "whole")


def test_a_signal_while_scoring_waits_for_one_batch_at_most(workspace, monkeypatch):
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
    assert_same("parts", "whole")


def test_tasks_in_another_order_are_another_run(workspace):
    base = workspace.params(schedule={"first": {"sst": 1, "qqp": 1}})
    tasks_reversed = base.model_copy(update={"tasks": dict(reversed(base.tasks.items()))})
    first_reversed = workspace.params(schedule={"first": {"qqp": 1, "sst": 1}})
    folders = set()
    for params in (base, tasks_reversed, first_reversed, base):
        with open_checkpoints("finetune-base", params, set(MEMBER_GROUPS), [], set_up(1, "cpu")) as checkpoints:
            folders.add(checkpoints.folder)
    assert len(folders) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_resuming_on_a_gpu_with_deterministic_algorithms(workspace, stopped, precision):
    on_gpu = {"runtime": {"device": "cuda", "precision": precision, "deterministic": True}, "encoder": {"dropout": 0.1}}
    params = workspace.params(**merged(merged(SHORT, EVERYTHING), on_gpu))
    try:
        assert_resumes(params, stopped, (2, Interrupted), (7, Killed), steps=train(params, "whole"))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("read_every", [1, 4])
def test_checkpoints_hold_no_non_finite_values(workspace, monkeypatch, capsys, read_every):
    monkeypatch.setattr("bertrio.training.monitoring.read_every", lambda device: read_every)
    diverging = {"optimizer": {"max_grad_norm": None, "warmup_fraction": 0}, "finetune": {"lr": 1e30}}
    params = workspace.params(**diverging, checkpoints={"steps": 1})
    for _ in range(2):
        with pytest.raises(UserError, match=r"is (nan|inf) at step 2 \(rows .*The last checkpoint.* is kept"):
            train(params, "a")
    assert "resumed after step 1" in capsys.readouterr().err
    assert not Path("a/model").exists() and len(pd.read_csv("a/steps.csv")), "the curves are kept"


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
def test_other_resumed_stages_give_the_same_bytes(workspace, stopped, train, options):
    Path("data/corpora").mkdir()
    pq.write_table(pa.table({"text": workspace.texts}), "data/corpora/imdb.parquet")
    params = workspace.params(**options, checkpoints={"steps": 2})
    expected = train(params, "models/whole")
    for at, by in ((1, Interrupted), (expected[1] // 2, Killed), (expected[1], Interrupted)):
        scramble()
        stopped(lambda: train(params, "models/parts"), at, by)
        assert not Path("models/parts").exists()
    assert train(params, "models/parts") == expected
    assert_same("models/parts", "models/whole")
    assert not list(Path("checkpoints").iterdir()) and not list(Path("models").glob(".*"))
