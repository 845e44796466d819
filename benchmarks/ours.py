"""One case of ours: training steps (`train`), steps of masked-language-model pretraining (`mlm`), predictions for the
dev rows of one task (`infer`), whole epochs on one task and the score on its dev rows (`score`), or a run from the
first stage that trains on, scored every epoch (`curve`).

It is started by training.py, inference.py, scores.py and minutes.py, with PYTHONPATH at benchmarks/ and src/, as the
peers are.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from case import Clock, case_parser, load, trainer_of, training_rows, wait_for, write_result

from bertrio.core.stage import peak_memory_mb


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Trains as the stage `finetune` does, without scoring."""
    trainer, kept, rows, runtime = trainer_of(args)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.meter.rows_seen)
    trainer.callbacks = [*trainer.callbacks, clock]
    for _ in trainer.run("benchmark"):
        pass
    return {**clock.measured(), **work_of(kept.encoder.transformer.config, rows), "runtime": runtime.describe()}


def mlm(args: argparse.Namespace) -> dict[str, Any]:
    """Pretrains as the stage `pretrain_mlm` does, on the training texts of all tasks."""
    from functools import partial

    from case import language_model

    from bertrio.model.attention import cheap_dropout
    from bertrio.model.tokenizer import load_tokenizer
    from bertrio.training.mlm import build_trainer, mask_tokens

    params, runtime = load(args)
    tokenizer = load_tokenizer(args.work / "models/tokenizer")
    model, blocks = language_model(args, params, tokenizer)
    cheap_dropout(model)
    mask = partial(mask_tokens, tokenizer=tokenizer, probability=params.mlm.mask_probability)
    steps = args.warmup + args.steps
    options = params.mlm.model_copy(update={"epochs": steps, "max_steps": steps})
    params = params.model_copy(update={"mlm": options})
    trainer = build_trainer(model.to(runtime.device), blocks, np.arange(len(blocks)), mask, params, runtime)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.meter.rows_seen)
    trainer.callbacks = [clock]
    for _ in trainer.run("benchmark"):
        pass
    return {**clock.measured(), **work_of_blocks(model.config, params.mlm), "runtime": runtime.describe()}


def score(args: argparse.Namespace) -> dict[str, Any]:
    """Trains on `--task` alone for `--epochs` and scores its dev rows."""
    from case import dev_score

    from bertrio.model.multitask import build_model
    from bertrio.training.build import build_trainer, load_split
    from bertrio.training.loop import infer as outputs_of

    params, runtime = load(args)
    rows = training_rows(args, params)
    model = build_model(params, args.work / "models/encoder", runtime)
    options = params.finetune.model_copy(update={"epochs": args.epochs, "max_steps": None})
    trainer, scored = build_trainer(params.model_copy(update={"finetune": options}), model, rows)
    for _ in trainer.run("benchmark"):
        pass
    dev = load_split(params, "dev", args.work / "data/splits", args.work / "models/tokenizer")[args.task]
    outputs = outputs_of(scored, dev, params.finetune.eval_batch_size)
    return {
        "seconds": trainer.meter.seconds,
        "rows": trainer.meter.rows_seen,
        "score": dev_score(dev.task, dev.label_values, outputs),
        "peak_memory_mb": peak_memory_mb(),
        "runtime": runtime.describe(),
    }


def curve(args: argparse.Namespace) -> dict[str, Any]:
    """Trains as the stages do, from MLM on, the first member alone, by the params of the folder for `--seed`; its dev
    overall_normalized after every epoch, and the seconds until then.

    On the clock is all that the stages before fine-tuning do, and of fine-tuning the steps. Every epoch runs, whatever
    `finetune.patience` says.
    """
    from bertrio.config import build_tasks, load_member, load_params
    from bertrio.core.runtime import set_up
    from bertrio.evaluation.metrics import evaluate_predictions
    from bertrio.model.config import encoder_width
    from bertrio.model.multitask import build_model, load_heads
    from bertrio.training.build import build_trainer, resolve_precision, teacher_predictions
    from bertrio.training.finetune import Inputs, load_rows, predict
    from bertrio.training.mlm import pretrain_mlm
    from bertrio.training.prefinetune import prefinetune

    os.environ["BERTRIO_CHECKPOINTS"] = str(args.work / f"checkpoints-{args.seed}")  # no run goes on from another's
    given = args.work / f"params-{args.seed}.yaml"
    params = load_params(given)
    corpora, encoder, before = (str(args.work / of) for of in ("data/corpora", "models/encoder", "models/prefinetuned"))
    splits, tokenizer = str(args.work / "data/splits"), str(args.work / "models/tokenizer")
    began = time.perf_counter()
    runtime = set_up(**params.runtime.model_dump())
    pretrain_mlm(params, runtime, corpora, tokenizer, encoder)
    prefinetune(params, encoder, splits, tokenizer, before)
    seconds = time.perf_counter() - began

    member = load_member(next(iter(params.ensemble.members)), given)
    runtime = resolve_precision(member, set_up(**member.runtime.model_dump(), width=encoder_width(f"{before}/encoder")))
    train, scored, _ = load_rows(member, Inputs(splits, tokenizer, before))
    model = build_model(member, f"{before}/encoder", runtime)
    load_heads(model, before)
    rows = {task: train[task] for task in member.trains}
    trainer, kept = build_trainer(member, model, rows, None, teacher_predictions(member, rows, splits, runtime))
    points = []
    tasks = build_tasks(member)
    for _ in trainer.run("benchmark"):
        table = predict(kept, scored["dev"], "dev", member.finetune.eval_batch_size)
        points.append(
            (seconds + trainer.meter.seconds, evaluate_predictions(table, tasks)["dev"]["overall_normalized"])
        )
    return {
        "seconds": seconds + trainer.meter.seconds,
        "rows": trainer.meter.rows_seen,
        "points": points,
        "peak_memory_mb": peak_memory_mb(),
        "runtime": runtime.describe(),
    }


def work_of(config: Any, rows: dict[str, Any]) -> dict[str, float]:
    r"""Tokens and floating-point operations that a row takes on average, the same number of rows from each task.

    Training a row of t tokens takes :math:`6 N t + 12 L H t^2` operations: a multiplication and an addition for each
    weight, forward once and backward twice, and the same for attention's two products. N are the weights of the
    encoder's matrices, :math:`L (4 H^2 + 2 H I)`, without embeddings. Chowdhery et al. 2022, "PaLM", appendix B.
    Padding does not count: it is no work that was asked for.
    """
    layers, hidden = config.num_hidden_layers, config.hidden_size
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    tokens, operations = [], []
    for of in rows.values():
        lengths = of.lengths.astype(float)
        tokens.append(lengths.mean())
        operations.append((6 * weights * lengths + 12 * layers * hidden * lengths**2).mean())
    return {"tokens_per_row": sum(tokens) / len(tokens), "flop_per_row": sum(operations) / len(operations)}


def work_of_blocks(config: Any, options: Any) -> dict[str, float]:
    """The same of a block of `mlm.block_size` tokens, with the head's two products at the share that is picked."""
    tokens = options.block_size
    body = work_of(config, {"mlm": SimpleNamespace(lengths=np.array([tokens]))})["flop_per_row"]
    head = 6 * config.hidden_size * (config.hidden_size + config.vocab_size) * options.mask_probability * tokens
    return {"tokens_per_row": tokens, "flop_per_row": body + head}


def infer(args: argparse.Namespace) -> dict[str, Any]:
    """Tokenises and predicts the dev rows of `--task`, after a first round with a few of them."""
    from bertrio.config import build_tasks
    from bertrio.data.batches import Rows
    from bertrio.data.table import read_table
    from bertrio.model.multitask import build_model
    from bertrio.model.tokenizer import load_tokenizer
    from bertrio.training import loop

    params, runtime = load(args)
    model = build_model(params, args.work / "models/encoder", runtime)
    tokenizer, batch = load_tokenizer(args.work / "models/tokenizer"), params.finetune.eval_batch_size
    frame = read_table(args.work / "data/splits" / args.task / "dev.parquet")

    def predict(part: Any) -> float:
        rows = Rows(part, build_tasks(params)[args.task], tokenizer, params.encoder.max_length)
        tokenised = time.perf_counter()
        loop.infer(model, rows, batch)
        wait_for(runtime.device)
        return tokenised

    predict(frame.head(4 * batch))
    began = time.perf_counter()
    tokenised = predict(frame)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "tokenising_seconds": tokenised - began,
        "rows": len(frame),
        "peak_memory_mb": peak_memory_mb(),
        "runtime": runtime.describe(),
    }


COMMANDS = {"train": train, "mlm": mlm, "infer": infer, "score": score, "curve": curve}


def main(argv: Sequence[str]) -> None:
    parser = case_parser(__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--task", default="qqp", help="infer and score: whose dev rows")
    parser.add_argument("--epochs", type=int, default=1, help="score: how long it trains")
    args = parser.parse_args(argv)
    write_result(args, COMMANDS[args.command](args))


if __name__ == "__main__":
    main(sys.argv[1:])
