"""Puts the parts of fine-tuning together: what params ask for, as a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from bertrio.config import Params
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.runtime import NARROW, Runtime, generator
from bertrio.model.multitask import MultitaskModel
from bertrio.techniques.losses import LOSSES
from bertrio.techniques.regularizers import REGULARIZERS, Regularizer, RunSetup
from bertrio.techniques.regularizers.moving_average import moving_average
from bertrio.techniques.regularizers.norms import l1, l2
from bertrio.techniques.surgery import build_surgery
from bertrio.techniques.weighting import build_weighting
from bertrio.training.data import Split, build_losses, build_streams, plan_of
from bertrio.training.loop import Trainer
from bertrio.training.objective import Objective
from bertrio.training.optimizer import Combiner, GramianCombiner, Optimization
from bertrio.training.trackers import Tracker

FINE_RADIUS = 1e-3  # of SMART's noise, below which training is in float32


def fine_enough(params: Params, runtime: Runtime) -> Runtime:
    """The runtime, in float32 if `auto` chose bf16 and SMART's noise is below what bf16 can tell apart.

    How large noise gets in one entry is at most the radius, and for `ball` no more than its steps reach; by norm 2, all
    entries share it, which is always taken for too little.

    On MiniLM's embeddings (root mean square 0.06) the penalty in bf16 is within 12 % of that in float32 from radius
    1e-3 on, and several times too large, all rounding, at 1e-5.
    """
    smart = params.smart
    reach = smart.radius
    if smart.projection == "ball":
        reach = min(reach, smart.steps * smart.eta + smart.sigma)
    if not smart.weight or (reach >= FINE_RADIUS and smart.norm == "inf") or runtime.compute == torch.float32:
        return runtime
    about = (
        f"SMART's noise (radius {smart.radius}, eta {smart.eta}, norm {smart.norm}) is less than bf16 can tell apart"
    )
    if params.runtime.precision != "auto":
        say(f"note: {about}; runtime.precision auto would take float32")
        return runtime
    say(f"{about}: in float32")
    return replace(runtime, compute=torch.float32)


def build_trainer(
    params: Params,
    model: MultitaskModel,
    train: Split,
    tracker: Tracker | None = None,
    teacher_predictions: Mapping[str, Tensor] | None = None,
) -> tuple[Trainer, MultitaskModel]:
    """A trainer with every technique that `params` asks for, and the model to score: `model`, or its average.

    Args:
        params: as the member sees them.
        model: with heads for all tasks.
        train: rows of the tasks that train, in training order.
        tracker: gets the curves of training.
        teacher_predictions: of `distill.teacher` for these rows, see `training.teacher`.

    Raises:
        UserError: if several processes are to share what can't be shared out.
    """
    _check_rescale(params, model.runtime)
    model.train()  # before any copy is made of it: a teacher has the dropout that the model has
    streams = build_streams(train, params)
    plan = plan_of(train, streams, params)
    ema = params.finetune.ema
    average = None if ema is None else moving_average(model, lambda: ema)
    regularizers = build_regularizers(params, model, total_steps(params, plan), teacher_predictions or {})
    callbacks: list[Callable[[int], None]] = [partial(each.after_step, model) for each in regularizers.values()]
    if average:
        callbacks.insert(0, lambda step: average.update_parameters(model))
    objective = _objective(params, model, train, regularizers)
    learned, options = list(objective.weighting.parameters()), params.finetune
    trainer = Trainer(
        objective,
        plan,
        streams,
        Optimization(
            model,
            params.optimizer,
            options.lr * params.encoder.lr_factor,
            plan,
            options.max_steps,
            learned,
            params.weighting.lr,
        ),
        build_combiner(params, model, learned),
        penalty=weight_penalty(params, model),
        accumulate=options.accumulate,
        one_pass=model.encoder.size < NARROW if options.one_pass == "auto" else options.one_pass,
        callbacks=callbacks,
        stateful={"average": average} if average else {},
        tracker=tracker,
    )
    return trainer, average.module if average else model


def _check_rescale(params: Params, runtime: Runtime) -> None:
    if params.smart.weight and params.smart.projection == "rescale" and not runtime.processes.alone:
        raise UserError(
            f"smart.projection: found rescale, in {runtime.processes.world_size} processes; it moves the noise by a "
            "gradient that depends on the size of the batch, of which each process has a part. Use projection ball, or "
            "runtime.processes 1"
        )


def total_steps(params: Params, plan: Sequence[Sequence[tuple[str, ...]]]) -> int:
    """Return the number of updates of fine-tuning."""
    planned = sum(map(len, plan))
    return min(planned, params.finetune.max_steps or planned)


def build_regularizers(
    params: Params, model: MultitaskModel, steps: int, teacher_predictions: Mapping[str, Tensor]
) -> dict[str, Regularizer]:
    """Return the regularizers whose weight is above 0, by the name of their block in params.yaml."""
    setup = RunSetup(model, params.trains, steps, partial(generator, params.runtime.seed), teacher_predictions)
    options = {name: getattr(params, name) for name in REGULARIZERS}
    return {name: REGULARIZERS[name](of, setup) for name, of in options.items() if of.weight}


def _objective(
    params: Params, model: MultitaskModel, train: Split, regularizers: Mapping[str, Regularizer]
) -> Objective:
    """Return the objective of a batch: its loss, weighted, and every regularizer that is on."""
    weighting = params.weighting
    return Objective(
        model,
        build_losses(train, params),
        build_weighting(weighting.method, train, weighting.weights).to(model.runtime.device),
        regularizers,
        of_batches=[task for task in train if not _is_mean_over_rows(params.tasks[task].loss)],
    )


def _is_mean_over_rows(loss: str) -> bool:
    """Whether a loss adds up over parts of a batch."""
    return not LOSSES[loss].whole_batch


def build_combiner(params: Params, model: MultitaskModel, learned: Sequence[nn.Parameter]) -> Combiner:
    """Return what combines the gradients of tasks; `learned` are parameters beside the model's."""
    options, processes = params.surgery, model.runtime.processes
    parameters = [*model.parameters(), *learned]
    if options.method == "none" and not options.log_conflicts:
        return Combiner(parameters, processes)
    shared = [parameter for parameter in model.encoder.parameters() if parameter.requires_grad]
    draws = generator(params.runtime.seed, "surgery")
    surgery = None
    if options.method != "none":
        surgery = build_surgery(options.method, options.reduction, draws)
    return GramianCombiner(parameters, processes, shared, surgery, draws, options.log_conflicts)


def weight_penalty(params: Params, model: MultitaskModel) -> Callable[[list[nn.Parameter]], Tensor] | None:
    """`penalties` as a function of the parameters that took part in a step; None if they are off."""
    options = params.penalties
    if not (options.l1 or options.l2):
        return None
    part = {"all": model, "encoder": model.encoder, "heads": model.heads}[options.parameters]
    chosen = {id(parameter) for parameter in part.parameters()}

    def penalty(took_part: list[nn.Parameter]) -> Tensor:
        of = [parameter for parameter in took_part if id(parameter) in chosen]
        return options.l1 * l1(of) + options.l2 * l2(of)

    return penalty
