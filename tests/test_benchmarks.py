"""Every benchmark runs at a tiny size; ratios and FLOP counts are correct."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.heavy
MODEL = ["--hidden", "16", "--layers", "3", "--rows", "24", "--max-length", "32"]
TINY = [*MODEL, "--batch", "4", "--device", "cpu"]


@pytest.fixture
def bench(root, monkeypatch):
    """Import scripts of benchmarks/ by name, with that folder on sys.path."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:  # other folders may have scripts of the same name
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root / "benchmarks")):
            del sys.modules[name]


@pytest.fixture
def run_script(bench, root, tmp_path, monkeypatch, capsys, warm):
    """Run a benchmark, each case in its own process, and return its JSON and its output."""

    def run(name, *args):
        monkeypatch.chdir(root)
        monkeypatch.setattr(sys, "executable", warm.python)
        bench(name).main([*args, "--repeats", "1", "--threads", "1", "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert (tmp_path / f"{name}.md").read_text().strip() in printed
        return json.loads((tmp_path / f"{name}.json").read_text()), printed

    return run


SMALL = ["data.sample.train_rows=48", "data.sample.dev_rows=24", "data.sample.test_rows=8", "finetune.epochs=2"]
SETTINGS = [word for setting in SMALL for word in ("-S", setting)]
STEPS = ["--steps", "2", "--warmup", "1"]
CASES = {  # arguments of a script, and a text in its table
    "training": ([*TINY, *STEPS, "--only", "sst", "smart", "--peak-tflops", "1"], "| smart | sst |"),
    "inference": (TINY, "| ours |"),
    "scores": ([*TINY, "--tasks", "sts", "--epochs", "2", "--pooling", "pooler"], "| sts |"),
    "prediction": ([*MODEL, "--sentences", "50", "--width", "8", "--only", "sst, float32", "mine, 50 x 8"], "| sea"),
    "startup": (["--only", "bertrio --help", "stages/check.py"], "| stages/check.py |"),
    "minutes": (["--epochs", "2", "--only", "plain-joint", "Trainer: sts", *SETTINGS], "| plain-joint |"),
    "checkpointing": ([*TINY, "--saves", "2", "--block", "2"], "| joint |"),
    "profiled": ([*TINY, *STEPS, "--task", "joint", "--precision", "bf16"], "| joint | products of linear layers |"),
}


@pytest.mark.parametrize("name", CASES)
def test_benchmark_runs(run_script, name):
    pytest.importorskip("sentence_transformers")
    args, words = CASES[name]
    result, text = run_script(name, *args)
    assert words in text and result["machine"]["torch"] and result["machine"]["threads"] == 1
    runs = [run for case in result["cases"] for run in case["runs"]]
    assert runs and all(run["seconds"] > 0 for run in runs)


def test_flop_count_equals_torchs(bench):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    config._attn_implementation = "eager"  # the counter does not see fused attention
    model, ids = BertModel(config, add_pooling_layer=False), torch.zeros(1, 7, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(ids).last_hidden_state.sum().backward()
    counted = bench("ours").work_of(config, {"sst": SimpleNamespace(lengths=np.array([7]))})["flop_per_row"]
    assert counted == counter.get_total_flops()
