"""Tries out what other packages add before any work is done: each part is built once, small, and called once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from bertrio.config import Params
from bertrio.config.choices import plugins_of
from bertrio.core.errors import UserError
from bertrio.core.plugins import Plugin, blamed
from bertrio.core.tasks import Task
from bertrio.model.heads import HeadSpec, build_heads, vectors_of
from bertrio.model.multitask import head_spec
from bertrio.model.pooling import pooling_of
from bertrio.techniques.losses import build_loss
from bertrio.techniques.schedules import Sizes, build_plan
from bertrio.techniques.surgery import build_surgery
from bertrio.techniques.weighting import build_weighting

ROWS, TOKENS, WIDTH, BATCHES = 3, 4, 8, 5  # of what the parts are tried on


def rehearse(params: Params) -> None:
    """Builds and calls each part of another package that `params` ask for.

    Raises:
        UserError: naming the param, and what is wrong with the part, its options, or with where it is used.
    """
    for param, plugin in plugins_of(params).items():
        with _naming(param):
            TRIALS[plugin.group](params, param, plugin)


@contextmanager
def _naming(param: str) -> Iterator[None]:
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    except (UserError, ValueError) as error:
        raise UserError(f"{param}: {error}") from error


def _loss(params: Params, param: str, plugin: Plugin) -> None:
    task = params.tasks[_named(param)]
    target = task.task(_named(param)).target
    counts = [1] * max(2, target.size) if target.discrete else None
    build_loss(task.loss, target, task.loss_options.given(), counts)


def _head(params: Params, param: str, plugin: Plugin) -> None:
    name = _named(param)
    task = params.tasks[name].task(name)
    spec = head_spec(params, name, task.target)
    needed = 2 if task.encoding == "bi" else 1
    with blamed(plugin):
        takes = vectors_of(spec.name)
    if takes != needed:
        how = f"encoding {task.encoding}" if task.kind == "pair" else "kind single"
        raise UserError(f"{plugin}: takes {takes} vectors a row, and {how} gives {needed}")
    _try_head(task, spec, plugin)
    sharing = params.sharing
    if sharing.layer != "none" and name in sharing.tasks:  # else its tasks need not be there
        specs = {other: head_spec(params, other, params.tasks[other].task(other).target) for other in sharing.tasks}
        build_heads(specs, WIDTH, sharing.layer, sharing.tasks)


def _try_head(task: Task, spec: HeadSpec, plugin: Plugin) -> None:
    head = build_heads({task.name: spec}, WIDTH)[task.name]
    with blamed(plugin), torch.no_grad():
        output = head(*[torch.zeros(ROWS, WIDTH)] * vectors_of(spec.name))
        found = getattr(getattr(output, "outputs", None), "shape", None)
        if found != (ROWS, spec.size):
            shape = type(output).__name__ if found is None else f"outputs of shape {list(found)}"
            raise ValueError(f"gave {shape}, expected a HeadOutput with outputs [{ROWS}, {spec.size}]")


def _pooling(params: Params, param: str, plugin: Plugin) -> None:
    hidden = torch.zeros(ROWS, TOKENS, WIDTH)
    output = SimpleNamespace(last_hidden_state=hidden, pooler_output=hidden[:, 0])
    pooling = pooling_of(params.encoder.pooling)
    with blamed(plugin):
        found = pooling(output, torch.ones(ROWS, TOKENS, dtype=torch.int64))
        if found.shape != (ROWS, WIDTH):
            raise ValueError(
                f"gave {list(found.shape)} for hidden states {list(hidden.shape)}, expected one vector a row"
            )


def _schedule(params: Params, param: str, plugin: Plugin) -> None:
    schedule, sizes = params.schedule, dict.fromkeys(params.trains, BATCHES)
    planned = Sizes(
        batches=sizes,
        rows=sizes,
        epochs=2,
        task_epochs={task: params.tasks[task].epochs for task in sizes if params.tasks[task].epochs is not None},
        until=schedule.until_of(params.trains),
        steps=schedule.steps,
        cycle=schedule.cycle,
        temperature=schedule.temperature,
    )
    build_plan(schedule.name, planned, torch.Generator(), schedule.options.given())


def _surgery(params: Params, param: str, plugin: Plugin) -> None:
    surgery = params.surgery
    build_surgery(surgery.method, surgery.reduction, torch.Generator(), surgery.options.given())


def _weighting(params: Params, param: str, plugin: Plugin) -> None:
    options = params.weighting
    weighting = build_weighting(options.method, params.trains, options.weights, options.options.given())
    with blamed(plugin):
        found = weighting(params.trains[0], torch.ones(()))
        if found.shape != ():
            raise ValueError(f"gave a loss of shape {list(found.shape)}, expected a scalar")


def _named(param: str) -> str:
    """The task in `tasks.NAME.loss`."""
    return param.split(".")[1]


TRIALS = {
    "losses": _loss,
    "heads": _head,
    "poolings": _pooling,
    "schedules": _schedule,
    "surgeries": _surgery,
    "weightings": _weighting,
}
