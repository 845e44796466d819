"""Build the trainer of fine-tuning and its parts from params."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.config import Params, build_tasks
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.runtime import NARROW, Runtime, generator
from bertrio.core.tasks import Task
from bertrio.data.batches import BatchStream, Rows, Split
from bertrio.data.table import read_table
from bertrio.inference.predictor import Predictor
from bertrio.model.multitask import MultitaskModel
from bertrio.model.tokenizer import load_tokenizer
from bertrio.techniques.losses import LOSSES, Loss, build_loss
from bertrio.techniques.regularizers import REGULARIZERS, Regularizer, RunSetup
from bertrio.techniques.regularizers.moving_average import moving_average
from bertrio.techniques.regularizers.norms import l1, l2
from bertrio.techniques.schedules import SCHEDULES, Epoch, Sizes, proportional_batch_sizes
from bertrio.techniques.surgery import Surgery
from bertrio.techniques.weighting import WEIGHTINGS
from bertrio.training.loop import Trainer
from bertrio.training.monitoring import Curves
from bertrio.training.objective import Objective
from bertrio.training.optimizer import Combiner, GramianCombiner, Optimization

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
    params: Params,
    model: MultitaskModel,
    train: Split,
    tracker: Curves | None = None,
    teacher_predictions: Mapping[str, Tensor] | None = None,
) -> tuple[Trainer, MultitaskModel]:
    """Return a trainer with every technique that `params` enables, and the model to score: `model` or its average.

    Args:
        params: the member's params.
        model: a model with heads for all tasks.
        train: rows of the tasks that train, in training order.
        tracker: records training curves.
        teacher_predictions: predictions of `distill.teacher` for these rows, see the function of this name.

    Raises:
        UserError: if several processes share the run and SMART's projection does not support that.
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
    options, learned = params.finetune, list(weighting.parameters())
    lr = options.lr * params.encoder.lr_factor
    optimization = Optimization(model, params.optimizer, lr, plan, options.max_steps, learned, params.weighting.lr)
    regularizers = build_regularizers(params, model, optimization.total_steps, teacher_predictions or {})
    callbacks: list[Callable[[int], None]] = [partial(term.after_step, model) for term in regularizers.values()]
    if average:
        callbacks.insert(0, lambda step: average.update_parameters(model))
    whole_batch = [task for task in train if LOSSES[params.tasks[task].loss].whole_batch]
    trainer = Trainer(
        Objective(model, build_losses(train, params), weighting, regularizers, whole_batch),
        plan,
        streams,
        optimization,
        build_combiner(params, model, learned),
        weight_penalty=weight_penalty(params, model),
        accumulate=options.accumulate,
        one_pass=model.encoder.size < NARROW if options.one_pass == "auto" else options.one_pass,
        callbacks=callbacks,
        stateful={name: part for name, part in (("average", average), ("tracker", tracker)) if part is not None},
        tracker=tracker,
    )
    return trainer, cast(MultitaskModel, average.module) if average else model


def build_regularizers(
    params: Params, model: MultitaskModel, steps: int, teacher_predictions: Mapping[str, Tensor]
) -> dict[str, Regularizer]:
    """Return the regularizers whose weight is above 0, by the name of their block in params.yaml."""
    setup = RunSetup(model, params.trains, steps, partial(generator, params.runtime.seed), teacher_predictions)
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


def weight_penalty(params: Params, model: MultitaskModel) -> Callable[[list[nn.Parameter]], Tensor] | None:
    """Return `penalties` as a function of the parameters that have a gradient in a step; None if they are off."""
    options = params.penalties
    if not (options.l1 or options.l2):
        return None
    part = {"all": model, "encoder": model.encoder, "heads": model.heads}[options.parameters]
    chosen = {id(parameter) for parameter in part.parameters()}

    def penalty(parameters: list[nn.Parameter]) -> Tensor:
        penalised = [parameter for parameter in parameters if id(parameter) in chosen]
        return options.l1 * l1(penalised) + options.l2 * l2(penalised)

    return penalty


def load_split(params: Params, name: str, splits: str | Path, tokenizer_folder: str | Path) -> Split:
    """Load the rows of split `name` of every task; tasks with an empty test split are left out.

    Raises:
        UserError: if a task has no training or dev rows.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    split = {}
    for task in build_tasks(params).values():
        path = Path(splits) / task.name / f"{name}.parquet"
        frame = read_table(path)
        if len(frame):
            split[task.name] = Rows(frame, task, tokenizer, params.encoder.max_length)
        elif name != "test":
            raise UserError(f"{path}: found no rows; see data.split for how rows are shared out")
    return split


def hold_out(train: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Split training rows at random into rows to train on and a share of about `fraction` to select epochs on."""
    remaining, held_out = {}, {}
    for task, rows in train.items():
        order = torch.randperm(len(rows), generator=generator(seed, f"holdout {task}")).numpy()
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held_out[task], remaining[task] = rows.take(np.sort(order[:count])), rows.take(np.sort(order[count:]))
    return remaining, held_out


def build_streams(train: Split, params: Params) -> dict[str, BatchStream]:
    """Return a stream of training batches for each task, as set in `schedule`.

    Each stream draws its order from its own generator. With `match_lengths`, the streams also share the seed by which
    batches are ordered by length.
    """
    options = params.schedule
    cap = min(len(rows) for rows in train.values()) if options.cap == "shortest" else options.cap
    sizes = {task: params.tasks[task].batch_size for task in train}
    if options.batch_sizes == "proportional":
        passes = {task: len(rows) if cap is None else min(cap, len(rows)) for task, rows in train.items()}
        sizes = proportional_batch_sizes(passes, options.base_batch)
    seed, streams = params.runtime.seed, {}
    for task, rows in train.items():
        lengths = generator(seed, "batches by length") if options.match_lengths else None  # the same for all tasks
        draws = generator(seed, f"batches {task}")
        streams[task] = BatchStream(rows, sizes[task], draws, cap, options.redraw, lengths)
    return streams


def plan_of(train: Split, streams: dict[str, BatchStream], params: Params) -> list[Epoch]:
    """Return the steps of every epoch of fine-tuning, as set in `schedule`."""
    options = params.schedule
    limit = options.max_batches or max(len(stream) for stream in streams.values())
    sizes = Sizes(
        batches={task: min(len(stream), limit) for task, stream in streams.items()},
        rows={task: len(rows) for task, rows in train.items()},
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
        labels = rows.label_values.astype(np.int64) if target.discrete else []
        counts = np.bincount(labels, minlength=max(2, target.size)).tolist()
        losses[task] = build_loss(options.loss, target, options.loss_options, counts)
    return losses


def teacher_predictions(params: Params, train: Split, splits: str | Path, runtime: Runtime) -> dict[str, Tensor]:
    """Predictions of `distill.teacher` for the training rows of each distilled task.

    Args:
        params: the member's params.
        train: rows of the tasks that train.
        splits: the folder that they were read from, for their texts.
        runtime: device and precision of the teacher.

    Returns:
        By task, in the order of the rows: probabilities [N, C] of classes (binary: no, yes), or scores [N, 1], float32
        on the CPU. Empty if distillation is off.

    Raises:
        UserError: if the teacher can't be loaded, lacks a task, or has a different definition of it.
    """
    options = params.distill
    if not options.weight:
        return {}
    assert options.teacher is not None  # `Params` checks it
    folder, precision = Path(options.teacher).expanduser(), str(runtime.facts()["precision"])
    teacher = Predictor.load(folder, str(runtime.device), precision, params.finetune.eval_batch_size)
    predictions = {}
    for name in options.tasks or train:
        rows = train[name]
        _check_same(rows.task, teacher)
        say(f"{name}: the teacher predicts {len(rows)} rows of train")
        texts = read_table(Path(splits) / name / "train.parquet").set_index("id").loc[rows.ids].reset_index()
        _, probabilities, scores = teacher.predict_table(name, texts)
        values = np.asarray(scores).reshape(-1, 1) if probabilities is None else probabilities
        predictions[name] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    # Each process loads the teacher from its own machine
    runtime.processes.check_equal(predictions.values(), "predictions of distill.teacher")
    return predictions


def _check_same(task: Task, teacher: Predictor) -> None:
    """Check that the teacher's task has the same kind, target and order of classes."""
    try:
        known = teacher.task(task.name)
    except UserError as error:
        raise UserError(f"distill.teacher: {error}; see distill.tasks") from None
    theirs, ours = known.target.labels, task.target.labels
    reordered = theirs != ours and set(theirs) == set(ours)
    if (known.kind, known.target) != (task.kind, task.target) or reordered:
        sides = [f"{side.kind}, {side.target}, {', '.join(side.target.labels) or 'no names'}" for side in (known, task)]
        raise UserError(
            f"distill.teacher: task {task.name}: the teacher knows it as {sides[0]}, and params.yaml says {sides[1]}; "
            "take a teacher of the same task, or leave it out of distill.tasks"
        )
