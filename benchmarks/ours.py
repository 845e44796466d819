"""One case of bertrio: training steps (`train`), steps of masked-language-model pretraining (`mlm`), predictions for
the dev rows of one task (`infer`), whole epochs on one task with a dev score (`score`), or all training stages with a
dev score after every epoch (`curve`).

training.py, inference.py, scores.py and minutes.py start it, as they start the peers.
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
    """Train as the stage `finetune` does, without scoring."""
    trainer, model, rows, runtime = trainer_of(args)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.meter.rows_seen)
    trainer.callbacks = [*trainer.callbacks, clock]
    for _ in trainer.run("benchmark"):
        pass
    return {**clock.measured(), **work_of(model.encoder.transformer.config, rows), "runtime": runtime.describe()}


def mlm(args: argparse.Namespace) -> dict[str, Any]:
    """Pretrain as the stage `pretrain_mlm` does, on the training texts of all tasks."""
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
    """Train on `--task` alone for `--epochs` and score its dev rows."""
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
    """Run all training stages, and return seconds and dev overall_normalized after every epoch of every member.

    The params are those of the folder for `--seed`. The time includes all work of the stages before fine-tuning, and
    the steps of fine-tuning. Members train one after the other. The score is that of all members so far, each after
    its latest epoch, combined by `ensemble.combine`; there is none until each task has a member that answers it. All
    epochs run, and none is selected: `finetune.patience` and `finetune.select` have no effect.
    """
    from bertrio.config import build_tasks, load_member, load_params
    from bertrio.core.runtime import set_up
    from bertrio.evaluation.ensembling import combine
    from bertrio.evaluation.metrics import evaluate_predictions
    from bertrio.model.config import encoder_width
    from bertrio.model.multitask import build_model, load_heads
    from bertrio.training.build import build_trainer, resolve_precision
    from bertrio.training.finetune import Inputs, load_rows, predict
    from bertrio.training.mlm import pretrain_mlm
    from bertrio.training.prefinetune import prefinetune

    os.environ["BERTRIO_CHECKPOINTS"] = str(args.work / f"checkpoints-{args.seed}")  # never resume from another run
    params_file = args.work / f"params-{args.seed}.yaml"
    params = load_params(params_file)
    corpora, encoder, before = (
        str(args.work / name) for name in ("data/corpora", "models/encoder", "models/prefinetuned")
    )
    splits, tokenizer = str(args.work / "data/splits"), str(args.work / "models/tokenizer")
    began = time.perf_counter()
    runtime = set_up(**params.runtime.model_dump())
    pretrain_mlm(params, runtime, corpora, tokenizer, encoder)
    prefinetune(params, encoder, splits, tokenizer, before)
    seconds = time.perf_counter() - began

    tasks, answers = build_tasks(params), {name: params.answers(name) for name in params.ensemble.members}
    points, tables, row_count = [], {}, 0
    for name in params.ensemble.members:
        member = load_member(name, params_file)
        width = encoder_width(f"{before}/encoder")
        runtime = resolve_precision(member, set_up(**member.runtime.model_dump(), width=width))
        train, scored, _ = load_rows(member, Inputs(splits, tokenizer, before))
        model = build_model(member, f"{before}/encoder", runtime)
        load_heads(model, before)
        rows = {task: train[task] for task in member.trains}
        trainer, averaged = build_trainer(member, model, rows, teacher=args.work / "data/teacher")
        for _ in trainer.run("benchmark"):
            tables[name] = predict(averaged, scored["dev"], "dev", member.finetune.eval_batch_size)
            if set(tasks).difference(*(answers[trained] for trained in tables)):
                continue
            table, _ = combine(tables, params.ensemble.combine, tasks, answers)
            points.append(
                (seconds + trainer.meter.seconds, evaluate_predictions(table, tasks)["dev"]["overall_normalized"])
            )
        seconds, row_count = seconds + trainer.meter.seconds, row_count + trainer.meter.rows_seen
    return {
        "seconds": seconds,
        "rows": row_count,
        "points": points,
        "peak_memory_mb": peak_memory_mb(),
        "runtime": runtime.describe(),
    }


def work_of(config: Any, rows: dict[str, Any]) -> dict[str, float]:
    r"""Return mean tokens and floating-point operations per row, with equal numbers of rows from all tasks.

    Training a row of t tokens takes :math:`6 N t + 12 L H t^2` operations: a multiplication and an addition for each
    weight, forward once and backward twice, and the same for attention's two products. N are the weights of the
    encoder's matrices, :math:`L (4 H^2 + 2 H I)`, without embeddings. Chowdhery et al. 2022, "PaLM", appendix B.
    Padding does not count.
    """
    layers, hidden = config.num_hidden_layers, config.hidden_size
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    tokens, operations = [], []
    for task_rows in rows.values():
        lengths = task_rows.lengths.astype(float)
        tokens.append(lengths.mean())
        operations.append((6 * weights * lengths + 12 * layers * hidden * lengths**2).mean())
    return {"tokens_per_row": sum(tokens) / len(tokens), "flop_per_row": sum(operations) / len(operations)}


def work_of_blocks(config: Any, options: Any) -> dict[str, float]:
    """Return the same for a block of `mlm.block_size` tokens; the head's two products run on masked tokens alone."""
    tokens = options.block_size
    body = work_of(config, {"mlm": SimpleNamespace(lengths=np.array([tokens]))})["flop_per_row"]
    head = 6 * config.hidden_size * (config.hidden_size + config.vocab_size) * options.mask_probability * tokens
    return {"tokens_per_row": tokens, "flop_per_row": body + head}


def infer(args: argparse.Namespace) -> dict[str, Any]:
    """Tokenise and predict the dev rows of `--task`, after a warm-up on a few of them."""
    from bertrio.config import build_tasks
    from bertrio.data.batches import Rows
    from bertrio.data.table import read_table
    from bertrio.data.tokens import tokenise
    from bertrio.model.multitask import build_model
    from bertrio.model.tokenizer import load_tokenizer
    from bertrio.training import loop

    params, runtime = load(args)
    model = build_model(params, args.work / "models/encoder", runtime)
    tokenizer, batch = load_tokenizer(args.work / "models/tokenizer"), params.finetune.eval_batch_size
    frame = read_table(args.work / "data/splits" / args.task / "dev.parquet")

    def predict(part: Any) -> float:
        task = build_tasks(params)[args.task]
        rows = Rows(part, task, tokenise(part, task, tokenizer, params.encoder.max_length))
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
    parser.add_argument("--task", default="qqp", help="infer and score: task of the dev rows")
    parser.add_argument("--epochs", type=int, default=1, help="score: epochs of training")
    args = parser.parse_args(argv)
    write_result(args, COMMANDS[args.command](args))


if __name__ == "__main__":
    main(sys.argv[1:])
