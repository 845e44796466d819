"""Peer: `transformers.Trainer` on one task, with dynamic padding and the same precision as ours, or on masked tokens.

Rows are tokenised before the clock starts, and every batch is full. With `--epochs` it trains whole epochs with the
optimizer settings of params.yaml, and is scored on the dev rows as ours is; with `--curve` after every epoch.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from case import Clock, case_parser, language_model, load, main_metric, synchronize, write_result
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bertrio.config import build_tasks
from bertrio.data.table import read_table
from bertrio.evaluation.predictions import prediction_rows, write_predictions
from bertrio.model.tokenizer import load_tokenizer
from bertrio.training.optimizer import BETAS


def read_split(args: Any, task: Any, split: str) -> Any:
    """Return the row table of a split."""
    return read_table(args.work / "data/splits" / task.name / f"{split}.parquet")


def dataset_of(args: Any, task: Any, split: str, max_length: int, tokenizer: Any) -> list[dict[str, Any]]:
    """Return the tokenised rows of a split in the form that the collator expects."""
    frame = read_split(args, task, split)
    columns = [frame[column].tolist() for column in task.text_columns]
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    label = int if task.target.discrete else float
    return [
        {**{name: values[row] for name, values in encoded.items()}, "label": label(value)}
        for row, value in enumerate(frame["label"])
    ]


def arguments_of(folder: str, args: Any, params: Any, runtime: Any, batch: int, planned_steps: int) -> Any:
    """Return Trainer's arguments: the optimizer of params.yaml, over the planned steps or the timed ones."""
    return TrainingArguments(
        folder,
        per_device_train_batch_size=batch,
        max_steps=-1 if args.epochs else params.finetune.max_steps,
        num_train_epochs=args.epochs or 1,
        warmup_steps=round(params.optimizer.warmup_fraction * planned_steps),
        weight_decay=params.optimizer.weight_decay,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=params.optimizer.eps,
        max_grad_norm=params.optimizer.max_grad_norm or 0.0,
        lr_scheduler_type=params.optimizer.lr_schedule,
        learning_rate=params.finetune.lr,
        bf16=runtime.compute == torch.bfloat16,
        use_cpu=runtime.device.type == "cpu",
        per_device_eval_batch_size=params.finetune.eval_batch_size,
        dataloader_drop_last=not args.epochs,
        train_sampling_strategy="group_by_length" if args.grouped else "random",
        seed=args.seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class Callback(TrainerCallback):
    """Call the clock after each step and, if there is one, `after_epoch` after each epoch."""

    def __init__(self, clock: Clock, after_epoch: Any = None) -> None:
        self.clock, self.after_epoch = clock, after_epoch

    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock(state.global_step)

    def on_epoch_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        if self.after_epoch:
            self.after_epoch()


def pretrain(args: Any) -> dict[str, Any]:
    """Time steps of masked-language-model pretraining on blocks of the training texts."""
    params, runtime = load(args)
    tokenizer, batch = load_tokenizer(args.work / "models/tokenizer"), params.mlm.batch_size
    model, blocks = language_model(args, params, tokenizer)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.state.global_step * batch)
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(folder, args, params, runtime, batch, params.finetune.max_steps)
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=params.mlm.mask_probability)
        rows = [{"input_ids": block.tolist()} for block in blocks]
        trainer = Trainer(model, arguments, collator, train_dataset=rows, callbacks=[Callback(clock)])
        trainer.train()
    return clock.measured() | {"runtime": runtime.describe()}


def train(args: Any) -> dict[str, Any]:
    """Time steps on one task or, with `--epochs`, train whole epochs and score the dev rows."""
    params, runtime = load(args)
    tokenizer, task = load_tokenizer(args.work / "models/tokenizer"), build_tasks(params)[args.task]
    outputs = max(2, task.target.size) if task.target.discrete else 1
    model = AutoModelForSequenceClassification.from_pretrained(
        str(args.work / "models/encoder"), num_labels=outputs, dtype=torch.float32
    )
    rows = dataset_of(args, task, "train", params.encoder.max_length, tokenizer)
    dev = dataset_of(args, task, "dev", params.encoder.max_length, tokenizer) if args.epochs else []
    batch = params.tasks[args.task].batch_size
    planned_steps = args.epochs * -(-len(rows) // batch)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.state.global_step * batch)
    points, scoring_seconds = [], 0.0  # seconds of training and score after each epoch

    def after_epoch() -> None:
        nonlocal scoring_seconds
        synchronize(runtime.device)
        paused = time.perf_counter()
        points.append((paused - began - scoring_seconds, score()))
        scoring_seconds += time.perf_counter() - paused

    def score() -> float:
        output = trainer.predict(dev)
        ids = read_split(args, task, "dev")["id"]
        predictions = prediction_rows(task, "dev", ids, output.label_ids, output.predictions)
        if args.predictions:
            write_predictions(predictions, args.predictions)
        return main_metric(task, predictions)

    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(folder, args, params, runtime, batch, planned_steps)
        callback, collator = Callback(clock, after_epoch if args.curve else None), DataCollatorWithPadding(tokenizer)
        trainer = Trainer(model, arguments, collator, train_dataset=rows, callbacks=[callback])
        began = time.perf_counter()
        trainer.train()
        if not args.epochs:
            return clock.measured() | {"runtime": runtime.describe()}
        seconds = time.perf_counter() - began - scoring_seconds
        final_score = points[-1][1] if points else score()
    return {
        "seconds": seconds,
        "rows": args.epochs * len(rows),
        "score": final_score,
        "points": points,
        "runtime": runtime.describe(),
    }


def main() -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--task", required=True, help="sst, qqp, sts, or mlm: masked-language-model pretraining")
    parser.add_argument("--epochs", type=int, default=0, help="epochs to train before scoring; 0: only time steps")
    parser.add_argument("--grouped", action="store_true", help="batches of rows of similar length")
    parser.add_argument("--curve", action="store_true", help="score after every epoch")
    parser.add_argument("--predictions", type=Path, help="with --epochs: the prediction table of dev to write")
    args = parser.parse_args()
    write_result(args, pretrain(args) if args.task == "mlm" else train(args))


if __name__ == "__main__":
    main()
