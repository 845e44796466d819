"""Build the trainer of fine-tuning and its parts from params."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import nn

from bertrio.config import Params, build_tasks
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.runtime import NARROW, Runtime, generator
from bertrio.core.tasks import Task
from bertrio.data.batches import BatchStream, Rows, Split
from bertrio.data.table import SWAPPED, UNLABELLED, read_table
from bertrio.data.tokens import load_tokens
from bertrio.evaluation.predictions import predicted_of
from bertrio.inference.teach import read_outputs
from bertrio.model.multitask import MultitaskModel
from bertrio.model.tokenizer import load_tokenizer
from bertrio.techniques.losses import LOSSES, Loss, build_loss
from bertrio.techniques.regularizers import REGULARIZERS, Regularizer, RunSetup
from bertrio.techniques.regularizers.base import TeacherOutputs
from bertrio.techniques.regularizers.moving_average import moving_average
from bertrio.techniques.regularizers.norms import l1, l2
from bertrio.techniques.schedules import SCHEDULES, Epoch, Sizes, proportional_batch_sizes
from bertrio.techniques.surgery import Surgery
from bertrio.techniques.weighting import WEIGHTINGS
from bertrio.training.loop import Trainer
from bertrio.training.monitoring import Curves
from bertrio.training.objective import Objective
from bertrio.training.optimizer import Combiner, GramianCombiner, Optimization, total_steps

FINE_RADIUS = 1e-3  # of SMART's noise, below which training is in float32


def resolve_precision(params: Params, runtime: Runtime) -> Runtime:
    """Return the runtime, in float32 if `auto` chose bf16 and SMART's noise is too small for bf16 to represent.

    An entry of the noise is at most the radius; with `ball`, it is also at most what the steps can reach. With norm 2,
    all entries share the radius, which always counts as too small.

    On MiniLM's embeddings (root mean square 0.06) the penalty in bf16 is within 12 % of that in float32 from radius
    1e-3 on, and several times too large, all rounding, at 1e-5.
    """
    smart = params.smart
    if params.runtime.precision != "auto" or not smart.weight or runtime.compute == torch.float32:
        return runtime
    steps = smart.steps * smart.eta + smart.sigma if smart.projection == "ball" else smart.radius
    if min(smart.radius, steps) >= FINE_RADIUS and smart.norm == "inf":
        return runtime
    say("SMART's noise is too small for bf16: training in float32")
    return replace(runtime, compute=torch.float32)


def build_trainer(
    params: Params, model: MultitaskModel, train: Split, tracker: Curves | None = None, teacher: str = "data/teacher"
) -> tuple[Trainer, MultitaskModel]:
    """Return a trainer with every technique that `params` enables, and the model to score: `model` or its average.

    Args:
        params: the member's params.
        model: a model with heads for all tasks.
        train: rows of the tasks that train, in training order.
        tracker: records training curves.
        teacher: folder of the outputs of `distill.teacher`.

    Raises:
        UserError: as in `read_teacher`, and if several processes share the run and SMART's projection does not support
            that.
    """
    if params.smart.weight and params.smart.projection == "rescale" and not model.runtime.processes.alone:
        raise UserError(
            "smart.projection: found rescale in several processes; it moves the noise by a gradient that depends on "
            "the size of the batch, of which each process has a part. Use projection ball, or runtime.processes 1"
        )
    model.train()  # before it is copied, so that a teacher has the same dropout
    streams = build_streams(train, params)
    plan = plan_of(train, streams, params)
    ema = params.finetune.ema
    average = None if ema is None else moving_average(model, lambda: ema)
    weighting = WEIGHTINGS[params.weighting.method](train, params.weighting.weights).to(model.runtime.device)
    options = params.finetune
    lr = options.lr * params.encoder.lr_factor
    outputs = read_teacher(params, train, teacher, model.runtime)
    regularizers = build_regularizers(params, model, total_steps(plan, options.max_steps), outputs)
    learned = dict.fromkeys(weighting.parameters(), params.weighting.lr)
    learned |= {parameter: lr for term in regularizers.values() for parameter in term.parameters()}
    optimization = Optimization(model, params.optimizer, lr, plan, options.max_steps, learned)
    callbacks: list[Callable[[int], None]] = [partial(term.after_step, model) for term in regularizers.values()]
    if average:
        callbacks.append(lambda step: average.update_parameters(model))
    whole_batch = [task for task in train if LOSSES[params.tasks[task].loss].whole_batch]
    label_weights = dict.fromkeys(distilled(params), params.distill.labels)
    trainer = Trainer(
        Objective(model, build_losses(train, params), weighting, regularizers, whole_batch, label_weights),
        plan,
        streams,
        optimization,
        build_combiner(params, model, list(learned)),
        penalize_weights=weight_penalty(params, model),
        accumulate=options.accumulate,
        one_pass=model.encoder.size < NARROW if options.one_pass == "auto" else options.one_pass,
        callbacks=callbacks,
        stateful={"average": average, "tracker": tracker},
        tracker=tracker,
    )
    return trainer, cast(MultitaskModel, average.module) if average else model


def build_regularizers(
    params: Params, model: MultitaskModel, steps: int, teacher: TeacherOutputs | None = None
) -> dict[str, Regularizer]:
    """Return the regularizers whose weight is above 0, by the name of their block in params.yaml."""
    draws = partial(generator, params.runtime.seed)
    setup = RunSetup(model, params.trains, steps, draws, teacher or TeacherOutputs({}, {}))
    options = {name: getattr(params, name) for name in REGULARIZERS}
    return {name: REGULARIZERS[name](block, setup) for name, block in options.items() if block.weight}


def build_combiner(params: Params, model: MultitaskModel, learned: Sequence[nn.Parameter]) -> Combiner:
    """Return the combiner of the tasks' gradients; `learned` are trained parameters outside the model."""
    options, processes = params.surgery, model.runtime.processes
    parameters = [*model.parameters(), *learned]
    if options.method == "none" and not options.log_conflicts:
        return Combiner(parameters, processes)
    shared = [parameter for parameter in model.encoder.parameters() if parameter.requires_grad]
    draws = generator(params.runtime.seed, "surgery")
    surgery = None if options.method == "none" else Surgery(options.method, options.reduction, draws)
    return GramianCombiner(parameters, processes, shared, surgery, draws, options.log_conflicts)


def weight_penalty(params: Params, model: MultitaskModel) -> Callable[[], None] | None:
    """Return a function that adds the gradient of `penalties`; None if they are off.

    Only parameters that have a gradient in a step are penalized, so that those of other tasks stay where they are.
    """
    options = params.penalties
    if not (options.l1 or options.l2):
        return None
    part = {"all": model, "encoder": model.encoder, "heads": model.heads}[options.parameters]

    def add_gradient() -> None:
        used = [parameter for parameter in part.parameters() if parameter.grad is not None]
        if used:
            (options.l1 * l1(used) + options.l2 * l2(used)).backward()

    return add_gradient


def load_split(params: Params, name: str, splits: str | Path, tokenizer_folder: str | Path) -> Split:
    """Load the rows of split `name` of every task; tasks with an empty test split are left out.

    Raises:
        UserError: if a task has no training or dev rows.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    split = {}
    for task in build_tasks(params).values():
        path = Path(splits) / task.name / f"{name}.parquet"
        if rows := _read_rows(path, task, tokenizer, params.encoder.max_length):
            split[task.name] = rows
        elif name != "test":
            raise UserError(f"{path}: found no rows; see data.split")
    return split


def _read_rows(path: Path, task: Task, tokenizer: Any, max_length: int) -> Rows | None:
    """Read the rows of a file in the folder of splits, None if it has none; tokens are kept in a folder beside that."""
    frame = read_table(path, ["id", "label", "source"])
    if frame.empty:
        return None
    return Rows(frame, task, load_tokens(path, task, tokenizer, max_length, path.parents[2] / "tokens"))


def hold_out(train: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Split training rows at random into rows to train on and a share of about `fraction` to select epochs on.

    Rows of `data.extra_train` are not held out, and gender-swapped copies of held-out rows are left out.
    """
    remaining, held_out = {}, {}
    for task, rows in train.items():
        own = np.flatnonzero(rows.sources == "")
        if len(own) < 2:
            raise UserError(f"finetune.select_on: holdout needs two own rows of task {task} or more, found {len(own)}")
        first = next(  # draws for all tasks of these rows
            name for name, others in train.items() if np.array_equal(others.ids[others.sources == ""], rows.ids[own])
        )
        order = own[torch.randperm(len(own), generator=generator(seed, f"holdout {first}")).numpy()]
        held = np.sort(order[: min(max(1, round(fraction * len(own))), len(own) - 1)])
        kept = ~pd.Index(rows.ids).isin(SWAPPED + rows.ids[held].astype(object))
        kept[held] = False
        held_out[task], remaining[task] = rows.take(held), rows.take(np.flatnonzero(kept))
    return remaining, held_out


def build_streams(train: Split, params: Params) -> dict[str, BatchStream]:
    """Return a stream of training batches for each task, as set in `schedule`.

    Each stream draws its order from its own generator. Tasks with the same texts and batch size share a `text_group`.
    With `match_lengths`, the streams also share the seed by which batches are ordered by length.

    Raises:
        UserError: if a task's batches have too few rows for its loss.
    """
    options = params.schedule
    cap = min(rows.labelled_count for rows in train.values()) if options.cap == "shortest" else options.cap
    drawn = {task: rows_per_pass(params, rows) for task, rows in train.items()}
    sizes = {task: params.tasks[task].batch_size for task in train}
    if options.batch_sizes == "proportional":
        ones = {task: BatchStream(rows, 1, torch.Generator(), cap, drawn=drawn[task]) for task, rows in train.items()}
        sizes = proportional_batch_sizes({task: len(batches) for task, batches in ones.items()}, options.base_batch)
    text_groups = {  # the first task that draws the same batches
        task: next(
            first
            for first, others in train.items()
            if (sizes[first], drawn[first]) == (sizes[task], drawn[task]) and others.same_texts(rows)
        )
        for task, rows in train.items()
    }
    seed, streams = params.runtime.seed, {}
    for task, rows in train.items():
        lengths = generator(seed, "batches by length") if options.match_lengths else None  # the same for all tasks
        draws, loss = generator(seed, f"batches {task}"), params.tasks[task].loss
        least = max(LOSSES[params.tasks[other].loss].rows for other in train if text_groups[other] == text_groups[task])
        stream = BatchStream(rows, sizes[task], draws, cap, options.redraw, lengths, least, drawn[task])
        needed, labelled = LOSSES[loss].rows, stream.rows_a_batch * rows.labelled_count / len(rows)
        if needed > 1 and labelled < needed:
            raise UserError(
                f"task {task}: found batches of {labelled:.3g} labelled rows, from which loss {loss} learns nothing; "
                f"it needs {needed}: give it more labels, a larger batch, or another loss"
            )
        streams[task], rows.text_group = stream, text_groups[task]
    return streams


def rows_per_pass(params: Params, rows: Rows) -> dict[str, int]:
    r"""Return how many rows of each source a pass draws, for sources that give fewer than they have.

    A source with share s of a pass has :math:`n = s / (1 - S) \cdot N` rows in it, with N the rows of sources without a
    share and S the sum of the shares. One with fewer, by `per_epoch` or in all, gives those and counts in N.
    """
    options = params.data.drawn(rows.task.name)
    available = {source: int((rows.sources == source).sum()) for source in options}
    most = {source: min(available[source], block.per_epoch or available[source]) for source, block in options.items()}
    shares = {source: block.share for source, block in options.items() if block.share and available[source]}
    others = len(rows) - sum(available.values()) + sum(most[source] for source in options.keys() - shares.keys())
    for source in sorted(shares, key=lambda name: most[name] / shares[name]):  # those with too few rows first
        wanted = round(shares[source] / (1 - sum(shares.values())) * others)
        if wanted > most[source]:
            others += most[source]
            del shares[source]
        most[source] = min(most[source], wanted)
    return {source: count for source, count in most.items() if count < available[source]}


def plan_of(train: Split, streams: dict[str, BatchStream], params: Params) -> list[Epoch]:
    """Return the steps of every epoch of fine-tuning, as set in `schedule`."""
    options = params.schedule
    limit = options.max_batches or max(len(stream) for stream in streams.values())
    sizes = Sizes(
        batches={task: min(len(stream), limit) for task, stream in streams.items()},
        rows={task: rows.labelled_count for task, rows in train.items()},
        epochs=params.finetune.epochs,
        task_epochs={task: count for task in train if (count := params.tasks[task].epochs) is not None},
        until=options.until_of(list(train)),
        steps=options.steps or 0,
        cycle=options.cycle,
        temperature=options.temperature,
    )
    first: list[Epoch] = [
        [(task,)] * sizes.batches[task] for task, epochs in options.first.items() for _ in range(epochs)
    ]
    draws = generator(params.runtime.seed, "schedule")
    return first + SCHEDULES[options.name](sizes, draws)


def build_losses(train: Split, params: Params) -> dict[str, Loss]:
    """Return the loss of each task that trains; class weights, if set, are computed from its training rows."""
    losses = {}
    for task, rows in train.items():
        options, target = params.tasks[task], rows.task.target
        labels = rows.label_values[~np.isnan(rows.label_values)]
        counts, entries = target.counts(labels), len(labels) * target.size
        counts = [entries - sum(counts), sum(counts)] if target.sets else counts  # no and yes, over all classes
        losses[task] = build_loss(options.loss, target, options.loss_options, counts)
    return losses


def distilled(params: Params) -> Sequence[str]:
    """Return the tasks that learn from `distill.teacher`."""
    return (params.distill.tasks or params.trains) if params.distill.weight else []


def add_unlabelled(params: Params, train: Split, splits: str | Path, tokenizer_folder: str | Path) -> Split:
    """Return training rows with those of `data.unlabelled` behind them, in the tasks that are distilled."""
    tokenizer, joined = load_tokenizer(tokenizer_folder), dict(train)
    for task, labelled in train.items():
        path = Path(splits) / task / f"{UNLABELLED}.parquet"
        if path.exists() and task in distilled(params):
            others = _read_rows(path, labelled.task, tokenizer, params.encoder.max_length)
            joined[task] = labelled.join(others) if others else labelled
        elif path.exists():
            say(f"{task}: the rows of data.unlabelled are left out, as distill.weight and tasks do not distill it")
    return joined


def read_teacher(params: Params, train: Split, folder: str | Path, runtime: Runtime) -> TeacherOutputs:
    """Return the outputs of `distill.teacher` that the stage teach wrote to `folder`, in the order of the rows.

    Args:
        params: the member's params.
        train: rows of the tasks that train.
        folder: folder of the teacher's outputs.
        runtime: the processes, which must all have the same.

    Raises:
        UserError: if the teacher knows nothing of a distilled task or row, or its vectors are of other texts.
    """
    predictions, vectors = {}, {}
    for task in distilled(params):
        table, pooled = read_outputs(folder, task, params.distill.vectors.loss is not None)
        positions = pd.Index(table["id"]).get_indexer(train[task].ids)
        if (positions < 0).any():
            row = train[task].ids[positions.argmin()]
            raise UserError(f"{folder}: the teacher's outputs lack row {row} of {task}; run the stage teach again")
        _, probabilities, scores = predicted_of(table)
        values = np.asarray(scores).reshape(-1, 1) if probabilities is None else probabilities
        predictions[task] = torch.from_numpy(values[positions].astype(np.float32))
        if pooled is not None:
            texts = len(train[task].batch(np.arange(1)).inputs)
            if pooled.shape[1] != texts:
                advice = f"set tasks.{task}.encoding as the teacher has it, or leave the task out of distill.tasks"
                raise UserError(f"distill.vectors: found {pooled.shape[1]} a row of {task}, expected {texts}; {advice}")
            vectors[task] = torch.from_numpy(pooled[positions])
    # Each process reads the files of its own machine
    runtime.processes.check_equal([*predictions.values(), *vectors.values()], "outputs of distill.teacher")
    return TeacherOutputs(predictions, vectors)
