"""Helpers for the process of a case: options, models and rows, the clock, and the result file.

`common` starts cases with PYTHONPATH set to benchmarks/ and src/.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import add_step_options

from bertrio.core.files import write_json


def case_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every case."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--work", type=Path, required=True, help="folder made by `common.prepared`")
    parser.add_argument("--result", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", type=json.loads, default={}, help="overrides of params.yaml, as JSON")
    add_step_options(parser, steps=60, warmup=5)
    return parser


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return the params of a case, with its overrides, and their runtime."""
    from bertrio.config import merged, read_yaml
    from bertrio.config.loading import validate_params
    from bertrio.core.runtime import set_up
    from bertrio.model.config import encoder_width

    overrides = merged(args.set, {"runtime": {"seed": args.seed}, "finetune": {"max_steps": args.warmup + args.steps}})
    params = validate_params(merged(read_yaml(args.work / "params.yaml"), overrides), str(args.work / "params.yaml"))
    return params, set_up(**params.runtime.model_dump(), width=encoder_width(args.work / "models/encoder"))


def training_rows(args: argparse.Namespace, params: Any) -> dict[str, Any]:
    """Return the tokenised training rows of the tasks that train."""
    from bertrio.training.build import load_split

    split = load_split(params, "train", args.work / "data/splits", args.work / "models/tokenizer")
    return {task: split[task] for task in params.trains}


def trainer_of(args: argparse.Namespace, params: Any, runtime: Any, epochs: int | None = None) -> tuple[Any, Any, Any]:
    """Return the trainer of the stage `finetune`, the model to score, and the training rows by task.

    It trains for `epochs` or, without them, for `finetune.max_steps`.
    """
    from bertrio.model.multitask import build_model
    from bertrio.training.build import build_trainer

    rows = training_rows(args, params)
    model = build_model(params, args.work / "models/encoder", runtime)
    max_steps = None if epochs else params.finetune.max_steps
    if max_steps:
        steps_per_epoch = min(-(-len(rows[task]) // params.tasks[task].batch_size) for task in rows)
        epochs = 1 + max_steps // steps_per_epoch  # more than enough: max_steps ends the last one
    options = params.finetune.model_copy(update={"epochs": epochs, "max_steps": max_steps})
    return *build_trainer(params.model_copy(update={"finetune": options}), model, rows), rows


def save_untrained(args: argparse.Namespace, folder: Path) -> None:
    """Write a model folder with untrained heads."""
    from bertrio.model.config import ModelConfig
    from bertrio.model.multitask import build_model, save_model

    params, runtime = load(args)
    model = build_model(params, args.work / "models/encoder", runtime)
    save_model(model, folder, ModelConfig.from_params(params), args.work / "models/tokenizer")


def language_model(args: argparse.Namespace, params: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return the encoder with an untrained head for masked tokens, and the training texts of all tasks as blocks."""
    import pandas as pd
    from transformers import AutoModelForMaskedLM

    from bertrio.config import build_tasks
    from bertrio.data.table import read_table, write_table
    from bertrio.training.mlm import token_blocks

    tables = [
        (read_table(args.work / "data/splits" / name / "train.parquet"), task.text_columns)
        for name, task in build_tasks(params).items()
    ]
    texts = pd.concat([table[column] for table, columns in tables for column in columns])
    write_table(pd.DataFrame({"text": texts}), args.work / "data/corpora/texts.parquet")
    blocks = token_blocks(args.work / "data/corpora", tokenizer, params.mlm.block_size, args.work)
    return AutoModelForMaskedLM.from_pretrained(str(args.work / "models/encoder")), blocks


def main_metric(task: Any, predictions: Any) -> float:
    """Return the task's main metric for a prediction table."""
    from bertrio.evaluation.metrics import METRICS
    from bertrio.evaluation.predictions import Scored

    return METRICS[task.target.metrics[0]](Scored.from_rows(predictions))


class Clock:
    """Timer of the steps after the warm-up, called after each step with its number, from 1.

    Args:
        warmup: number of untimed steps, 1 or more.
        steps: number of timed steps.
        device: synchronized before each reading of the time.
        rows: returns the number of rows trained on so far.
    """

    def __init__(self, warmup: int, steps: int, device: Any, rows: Callable[[], int]) -> None:
        self.first, self.last, self.device, self.rows = warmup, warmup + steps, device, rows
        self.times: dict[int, tuple[float, int]] = {}

    def __call__(self, step: int) -> None:
        if step in (self.first, self.last):
            synchronize(self.device)
            self.times[step] = (time.perf_counter(), self.rows())

    def measured(self) -> dict[str, Any]:
        """Return the timed seconds, rows and steps."""
        (began, rows_before), (ended, rows_after) = self.times[self.first], self.times[self.last]
        return {"seconds": ended - began, "rows": rows_after - rows_before, "steps": self.last - self.first}


def synchronize(device: Any) -> None:
    """Wait until the device has finished all queued work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write_result(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write the result of a case, with the peak memory of its process, for the parent process."""
    from bertrio.core.stage import peak_memory_mb

    write_json(args.result, result | {"peak_memory_mb": peak_memory_mb()})
