"""What a trained model or ensemble says of the training rows, for a new model to learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertrio.config import Params
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.runtime import Runtime
from bertrio.core.tasks import Predicted, Task
from bertrio.data.table import read_table
from bertrio.inference.predictor import Predictor
from bertrio.training.data import Split

PARAM = "distill.teacher"


def teacher_predictions(params: Params, train: Split, splits: str | Path, runtime: Runtime) -> dict[str, Tensor]:
    """What `distill.teacher` says of the rows of each task that is distilled.

    Args:
        params: as the member sees them.
        train: rows of the tasks that train.
        splits: the folder that they were read from, for their texts.
        runtime: whose device and precision the teacher takes as well.

    Returns:
        By task, in the order of the rows: probabilities [N, C] of classes (binary: no, yes), or scores [N, 1], float32
        on the CPU. Nothing if distillation is off.

    Raises:
        UserError: if the teacher can't be loaded, or knows a task not at all or otherwise.
    """
    options = params.distill
    if not options.weight:
        return {}
    teacher = Predictor.load(
        Path(options.teacher).expanduser(),
        str(runtime.device),
        "float32" if runtime.compute == torch.float32 else "bf16",
        params.finetune.eval_batch_size,
    )
    said = {}
    for name in options.tasks or train:
        rows = train[name]
        _check_same(rows.task, teacher)
        say(f"{name}: the teacher answers {len(rows)} rows of train")
        texts = read_table(Path(splits) / name / "train.parquet").set_index("id").loc[rows.ids].reset_index()
        said[name] = _as_tensor(teacher.answer(name, texts))
    # Each process has asked the teacher that its own machine has
    runtime.processes.check_equal(said.values(), "answers of distill.teacher")
    return said


def _check_same(task: Task, teacher: Predictor) -> None:
    try:
        known = teacher.task(task.name)
    except UserError as error:
        raise UserError(f"{PARAM}: {error}; see distill.tasks") from None
    if (known.kind, known.target) != (task.kind, task.target):
        raise UserError(
            f"{PARAM}: task {task.name}: the teacher knows it as {known.kind}, {known.target}, and params.yaml says "
            f"{task.kind}, {task.target}; take a teacher of the same task, or leave it out of distill.tasks"
        )
    names = [of.target.labels for of in (known, task)]
    if names[0] != names[1] and set(names[0]) == set(names[1]):  # numbers are what is learnt
        raise UserError(
            f"{PARAM}: task {task.name}: the teacher has its classes in the order {', '.join(names[0])}, and "
            f"params.yaml {', '.join(names[1])}; give tasks.{task.name}.labels the teacher's order, or leave it out of "
            "distill.tasks"
        )


def _as_tensor(said: Predicted) -> Tensor:
    values = said.scores[:, None] if said.probabilities is None else said.probabilities
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
