"""Peer: `transformers.Trainer` on one task, with dynamic padding and the same precision as ours, or on masked tokens.

Rows are tokenised before the clock starts, and every batch is full. With `--epochs` it trains whole epochs with the
optimizer settings of params.yaml, and is scored on the dev rows as ours is; with `--curve` after every epoch.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from case import Clock, case_parser, dev_score, language_model, load, wait_for, write_dev_predictions, write_result


def dataset_of(args: Any, task: Any, max_length: int, tokenizer: Any, split: str = "train") -> list[dict[str, Any]]:
    """Return the tokenised rows in the form that the collator expects."""
    from bertrio.data.table import read_table

    frame = read_table(args.work / "data/splits" / task.name / f"{split}.parquet")
    columns = [frame[column].tolist() for column in task.text_columns]
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    label = int if task.target.discrete else float
    return [
        {**{name: values[row] for name, values in encoded.items()}, "label": label(value)}
        for row, value in enumerate(frame["label"])
    ]


def arguments_of(folder: str, args: Any, params: Any, runtime: Any, batch: int, planned: int) -> Any:
    """Return Trainer's arguments: the optimizer of params.yaml, over `planned` steps or the timed ones."""
    import torch
    from transformers import TrainingArguments

    from bertrio.training.optimizer import BETAS

    return TrainingArguments(
        folder,
        per_device_train_batch_size=batch,
        max_steps=-1 if args.epochs else params.finetune.max_steps,
        num_train_epochs=args.epochs or 1,
        warmup_steps=round(params.optimizer.warmup_fraction * planned),
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


def pretrain(args: Any) -> dict[str, Any]:
    """Time steps of masked-language-model pretraining on blocks of the training texts."""
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback

    from bertrio.model.tokenizer import load_tokenizer

    params, runtime = load(args)
    tokenizer = load_tokenizer(args.work / "models/tokenizer")
    model, blocks = language_model(args, params, tokenizer)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.state.global_step * params.mlm.batch_size)

    class ClockCallback(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            clock(state.global_step)

    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(folder, args, params, runtime, params.mlm.batch_size, params.finetune.max_steps)
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=params.mlm.mask_probability)
        rows = [{"input_ids": block.tolist()} for block in blocks]
        trainer = Trainer(model, arguments, collator, train_dataset=rows, callbacks=[ClockCallback()])
        trainer.train()
    return {**clock.measured(), "runtime": runtime.describe()}


def train(args: Any) -> dict[str, Any]:
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
    )

    from bertrio.config import build_tasks
    from bertrio.core.stage import peak_memory_mb
    from bertrio.model.tokenizer import load_tokenizer

    params, runtime = load(args)
    tokenizer, task = load_tokenizer(args.work / "models/tokenizer"), build_tasks(params)[args.task]
    outputs = max(2, task.target.size) if task.target.discrete else 1
    model = AutoModelForSequenceClassification.from_pretrained(
        str(args.work / "models/encoder"), num_labels=outputs, dtype=torch.float32
    )
    done = [0]  # steps
    batch = params.tasks[args.task].batch_size
    rows = dataset_of(args, task, params.encoder.max_length, tokenizer)
    planned = args.epochs * -(-len(rows) // batch)
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: done[0] * batch)
    dev = dataset_of(args, task, params.encoder.max_length, tokenizer, "dev") if args.epochs else []
    points, scoring = [], [0.0]  # seconds of training and score after each epoch; seconds that scoring took

    class ClockCallback(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            done[0] = state.global_step
            clock(state.global_step)

        def on_epoch_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if args.curve:
                wait_for(runtime.device)
                paused = time.perf_counter()
                points.append((paused - began - scoring[0], score()))
                scoring[0] += time.perf_counter() - paused

    def score() -> float:
        output = trainer.predict(dev)
        if args.predictions:
            write_dev_predictions(args.predictions, args.work, task, output.label_ids, output.predictions)
        return dev_score(task, output.label_ids, output.predictions)

    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(folder, args, params, runtime, batch, planned)
        trainer = Trainer(
            model, arguments, DataCollatorWithPadding(tokenizer), train_dataset=rows, callbacks=[ClockCallback()]
        )
        began = time.perf_counter()
        trainer.train()
        if not args.epochs:
            return {**clock.measured(), "runtime": runtime.describe()}
        seconds = time.perf_counter() - began - scoring[0]
        last = points[-1][1] if points else score()
    return {
        "seconds": seconds,
        "rows": args.epochs * len(rows),
        "score": last,
        "points": points,
        "peak_memory_mb": peak_memory_mb(),
        "runtime": runtime.describe(),
    }


def main(argv: Sequence[str]) -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--task", required=True, help="sst, qqp, sts, or mlm: masked-language-model pretraining")
    parser.add_argument("--epochs", type=int, default=0, help="epochs to train before scoring; 0: only time steps")
    parser.add_argument("--grouped", action="store_true", help="batches of rows of similar length")
    parser.add_argument("--curve", action="store_true", help="score after every epoch")
    parser.add_argument("--predictions", type=Path, help="with --epochs: the prediction table of dev to write")
    args = parser.parse_args(argv)
    write_result(args, pretrain(args) if args.task == "mlm" else train(args))


if __name__ == "__main__":
    main(sys.argv[1:])
