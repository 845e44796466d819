"""That every benchmark runs at a tiny size, and that its ratios and its count of operations are what they say."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from torch.autograd import DeviceType

pytestmark = pytest.mark.heavy
MODEL = ["--hidden", "16", "--layers", "3", "--rows", "24", "--max-length", "32"]
TINY = [*MODEL, "--batch", "4", "--device", "cpu"]


@pytest.fixture
def bench(root, monkeypatch):
    """Imports a script of benchmarks/; its neighbours are found as they are when it is run."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))

    def load(name):
        return importlib.import_module(name)

    before = set(sys.modules)
    yield load
    for name in set(sys.modules) - before:  # scripts of one name may stand in other folders
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root / "benchmarks")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def work(tmp_path_factory, request):
    """The place that cases of training and inference work in."""
    sys.path.insert(0, str(request.config.rootpath / "benchmarks"))
    try:
        common = importlib.import_module("common")
        parser = common.parser_of(None)
        common.add_model_options(parser)
        common.add_runtime_options(parser)
        with common.prepared(parser.parse_args([*TINY, "--threads", "1"])) as folder:
            yield folder
    finally:
        sys.path.remove(str(request.config.rootpath / "benchmarks"))
        sys.modules.pop("common", None)


def run_case(bench, work, tmp_path, command, seed=1):
    """Runs a case in this process and gives what it measured."""
    script, *args = command
    result = tmp_path / "result.json"
    module = bench(script.removesuffix(".py").replace("/", "."))
    module.main([*args, "--work", str(work), "--result", str(result), "--seed", str(seed)])
    return json.loads(result.read_text())


@pytest.fixture
def run_script(bench, root, tmp_path, monkeypatch, capsys, warm):
    """Runs a whole benchmark, its cases in processes of their own; gives its JSON and its tables."""

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
WHOLE = {  # arguments of a script, and what its table has
    "training": ([*TINY, *STEPS, "--only", "sst", "smart", "--peak-tflops", "1"], "| smart | sst |"),
    "inference": (TINY, "| ours |"),
    "scores": ([*TINY, "--tasks", "sts", "--epochs", "2", "--pooling", "pooler"], "| sts |"),
    "prediction": ([*MODEL, "--sentences", "50", "--width", "8", "--only", "sst, float32", "mine, 50 x 8"], "| sea"),
    "startup": (["--only", "bertrio --help", "stages/check.py"], "| stages/check.py |"),
    "minutes": (["--epochs", "2", "--only", "plain-joint", "Trainer: sts", *SETTINGS], "| plain-joint |"),
    "profiled": ([*TINY, *STEPS, "--task", "joint", "--precision", "bf16"], "| joint | products of linear layers |"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_benchmark_runs_as_a_whole(bench, run_script, tmp_path, name):
    pytest.importorskip("accelerate")
    pytest.importorskip("sentence_transformers")
    args, words = WHOLE[name]
    told, text = run_script(name, *args)
    assert words in text and told["machine"]["torch"] and told["machine"]["threads"] == 1
    runs = [run for case in told["cases"] for run in case["runs"]]
    assert runs and all(run["seconds"] > 0 for run in runs)
    if name == "scores":
        assert all(-1 <= run["score"] <= 1 for run in runs)
    if name == "minutes":
        assert all(0 < run["points"][0][0] < run["points"][1][0] <= run["seconds"] for run in runs)
        assert (tmp_path / "minutes.png").read_bytes().startswith(b"\x89PNG")
    if name == "profiled":
        parts, weights = bench("profiled").parts_of(runs[0]), 3 * 6  # three layers of six
        assert all(ms >= 0 for ms, _ in parts.values()), "operations take no longer than the steps"
        assert parts["AdamW"][1] >= 1 and parts["casts and copies"][1] >= weights
        passes = 3 * 3  # three passes, each forward once and backward twice
        assert parts["products of linear layers"][1] >= passes * weights


def test_each_case_of_training_measures_the_steps_that_it_was_asked_for(bench, work, tmp_path):
    peers = all(map(importlib.util.find_spec, ("smart_pytorch", "accelerate")))  # the extra of that name
    for case in bench("training").cases(peers):
        if "compiled" not in case.name:  # which takes many seconds
            told = run_case(bench, work, tmp_path, [*case.command, *STEPS])
            tasks = 3 if '"qqp", "sts"' in str(case.command) else 1
            assert told["steps"] == 2 and told["rows"] == 2 * 4 * tasks and told["seconds"] > 0, case.name


def test_checkpointing_times_steps_with_a_save_and_without(bench, work, tmp_path):
    options = ["--saves", "2", "--block", "2", "--warmup", "1", "--folder", str(tmp_path / "checkpoints")]
    told = run_case(bench, work, tmp_path, ["checkpointing.py", "case", *options])
    assert len(told["saves"]) == 2 and told["seconds"] > 0 and told["ms_per_step"] > 0 and told["megabytes"] > 0
    assert not list((tmp_path / "checkpoints").iterdir()), "it leaves nothing"


def test_profiled_counts_a_kernel_once_with_what_started_it(bench):
    of = partial(SimpleNamespace, key="aten::mm", count=4, self_device_time_total=6000.0)
    events = [of(device_type=DeviceType.CPU, self_cpu_time_total=2000.0), of(device_type=DeviceType.CUDA)]
    assert bench("profiled").operations_of(events, True, 2) == {"aten::mm": (3.0, 2.0)}
    assert bench("profiled").operations_of(events, False, 2) == {"aten::mm": (1.0, 2.0)}


def test_minutes_adds_up_the_three_models_of_the_peer(bench):
    points = {"sst": [(60, 0.4)], "qqp": [(120, 0.8)], "sts": [(60, 0.6)]}
    runs = {f"Trainer: {task}": [{"points": of}] for task, of in points.items()}
    (turn,) = bench("minutes").curves(runs)["Trainer"]
    assert turn == [(4, pytest.approx((0.4 + 0.8 + 0.8) / 3))]


@pytest.mark.slow
def test_growth_runs_the_pipeline(run_script):
    told, text = run_script("growth", "--rows", "24", "--rows-sizes", "1", "--members-sizes")
    assert [case["name"] for case in told["cases"]] == ["rows x 1"]
    assert "finetune-m1" in told["cases"][0]["runs"][0]["stages"] and "off the line" in text


def test_a_ratio_is_the_median_of_the_ratios_within_the_turns(bench):
    # a machine that slows down by half between turns leaves each turn's ratio alone
    assert bench("common").ratio_cell([4.0, 2.0, 6.0], [2.0, 1.0, 2.0]) == "2.00 (2.00 to 3.00)"


def test_operations_equal_those_that_torch_counts(bench):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    config._attn_implementation = "eager"  # whose products the counter sees
    model, ids = BertModel(config, add_pooling_layer=False), torch.zeros(1, 7, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(ids).last_hidden_state.sum().backward()
    told = bench("ours").work_of(config, {"sst": SimpleNamespace(lengths=np.array([7]))})["flop_per_row"]
    assert told == counter.get_total_flops()


def test_a_peer_that_is_not_installed_is_named_before_anything_runs_and_others_run_without_it(bench):
    case, chosen = bench("common").Case, bench("common").chosen
    cases = [case("ours", (), ""), case("theirs", (), "", "json"), case("gone", (), "", "no_such_peer")]
    with pytest.raises(
        SystemExit, match=r"case gone: there is no package no_such_peer here; pip install -e '.\[peers\]'"
    ):
        chosen(cases, None)
    assert chosen(cases, ["ours", "theirs"]) == cases[:2]


def test_an_unknown_case_is_refused_with_the_known_ones(bench):
    with pytest.raises(SystemExit, match="no case nothing; there are ours"):
        bench("common").chosen(bench("inference").cases(False, 4), ["nothing"])
    with pytest.raises(SystemExit, match="no case nothing; there are bertrio --help"):
        bench("startup").main(["--only", "nothing"])
