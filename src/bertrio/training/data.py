"""The tokenised splits that training and prediction read, and what training makes of them: streams, plan, losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bertrio.config import Params, build_tasks
from bertrio.core.errors import UserError
from bertrio.core.runtime import generator
from bertrio.data.batches import BatchStream, Rows
from bertrio.data.table import read_table
from bertrio.data.tokens import TokenCache
from bertrio.model.tokenizer import load_tokenizer
from bertrio.techniques.losses import Loss, build_loss
from bertrio.techniques.schedules import Epoch, Sizes, build_plan, proportional_batch_sizes

Split = dict[str, Rows]  # rows by task


def load_split(params: Params, name: str, splits: str | Path, tokenizer_folder: str | Path) -> Split:
    """The rows of split `name` of every task; a task whose test split is empty is left out.

    What the tokenizer makes of them is kept in a folder `tokens` beside `splits`, for the stages that read them next.

    Raises:
        UserError: if a task has no training or dev rows.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    split = {}
    for task in build_tasks(params).values():
        path = Path(splits) / task.name / f"{name}.parquet"
        frame = read_table(path)
        if len(frame):
            cache = TokenCache(path, Path(tokenizer_folder), Path(splits).parent / "tokens" / task.name)
            split[task.name] = Rows(frame, task, tokenizer, params.encoder.max_length, cache)
        elif name != "test":
            raise UserError(f"{path}: found no rows; see data.split for how rows are shared out")
    return split


def hold_out(train: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Parts training rows into those to train on and a seeded share of about `fraction` to select epochs on."""
    kept, held = {}, {}
    for task, rows in train.items():
        order = torch.randperm(len(rows), generator=generator(seed, f"holdout {task}")).numpy()
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held[task], kept[task] = rows.take(np.sort(order[:count])), rows.take(np.sort(order[count:]))
    return kept, held


def build_streams(train: Split, params: Params) -> dict[str, BatchStream]:
    """A stream of training batches for each task as `schedule` asks for, its order drawn by a generator of its own, but
    for when short rows come if `match_lengths`."""
    options = params.schedule
    cap = min(len(rows) for rows in train.values()) if options.cap == "shortest" else options.cap
    sizes = {task: params.tasks[task].batch_size for task in train}
    if options.batch_sizes == "proportional":
        passes = {task: len(rows) if cap is None else min(cap, len(rows)) for task, rows in train.items()}
        sizes = proportional_batch_sizes(passes, options.base_batch)
    seed = params.runtime.seed

    def stream(task: str, rows: Rows) -> BatchStream:
        common = generator(seed, "batches by length") if options.match_lengths else None
        return BatchStream(rows, sizes[task], generator(seed, f"batches {task}"), cap, options.redraw, common)

    return {task: stream(task, rows) for task, rows in train.items()}


def plan_of(train: Split, streams: dict[str, BatchStream], params: Params) -> list[Epoch]:
    """The steps of every epoch of fine-tuning, as `schedule` asks for."""
    options = params.schedule
    limit = options.max_batches or max(len(stream) for stream in streams.values())
    sizes = Sizes(
        batches={task: min(len(stream), limit) for task, stream in streams.items()},
        rows={task: len(rows) for task, rows in train.items()},
        epochs=params.finetune.epochs,
        task_epochs={task: params.tasks[task].epochs for task in train if params.tasks[task].epochs is not None},
        until=options.until_of(list(train)),
        steps=options.steps,
        cycle=options.cycle,
        temperature=options.temperature,
    )
    first = [[(task,)] * sizes.batches[task] for task, epochs in options.first.items() for _ in range(epochs)]
    draws = generator(params.runtime.seed, "schedule")
    return first + build_plan(options.name, sizes, draws)


def build_losses(train: Split, params: Params) -> dict[str, Loss]:
    """The loss of each task that trains, with class weights counted on its training rows where they are asked for."""
    losses = {}
    for task, rows in train.items():
        options, target = params.tasks[task], rows.task.target
        counts = None
        if target.discrete:
            counts = np.bincount(rows.label_values.astype(np.int64), minlength=max(2, target.size)).tolist()
        losses[task] = build_loss(options.loss, target, options.loss_options, counts)
    return losses
