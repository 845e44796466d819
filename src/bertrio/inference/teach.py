"""The stage `teach`: outputs of a teacher for all rows that students may train on, computed once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.config import Params, build_tasks, member_params
from bertrio.core.console import say
from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json, read_parquet, whole_folder, write_json
from bertrio.core.tasks import Task
from bertrio.data.table import UNLABELLED, read_table
from bertrio.evaluation.predictions import predicted_rows, read_predictions, write_predictions

if TYPE_CHECKING:
    from bertrio.inference.predictor import Predictor, Vectors

FACTS = "facts.json"


def teach(params: Params, splits: str | Path, folder: str | Path) -> None:
    """Write the outputs of `distill.teacher` for the rows of train and `data.unlabelled`, of all tasks that it knows.

    Args:
        params: all params; `runtime`, `tasks`, `finetune.eval_batch_size` and `distill` are read. The teacher is not
            loaded if no member distills.
        splits: folder of the data.
        folder: folder for facts.json (rows by task, or why the teacher can't teach it), <task>.parquet (a prediction
            table) and, if a student distills vectors, <task>.vectors.parquet; replaced atomically.

    Raises:
        UserError: if the teacher can't be loaded.
    """
    members = [member_params(params, name).distill for name in params.ensemble.members]
    students = [options for options in members if options.weight]
    with whole_folder(folder) as new:
        if not students:
            say("teach: off (distill.weight: 0)")
            write_json(new / FACTS, {})
            return

        from bertrio.core.runtime import set_up  # here because torch takes seconds to import
        from bertrio.inference.predictor import Predictor

        assert params.distill.teacher is not None  # `Params` checks it
        runtime, size = params.runtime, params.finetune.eval_batch_size
        set_up(**runtime.model_dump())
        path = Path(params.distill.teacher).expanduser()
        teacher = Predictor.load(path, runtime.device, runtime.precision, size)
        facts: dict[str, int | str] = {}
        for name, task in build_tasks(params).items():
            if problem := _unlike(task, teacher):
                say(f"{name}: {problem}")
                facts[name] = problem
                continue
            paths = [Path(splits) / name / f"{table}.parquet" for table in ("train", UNLABELLED)]
            rows = pd.concat([read_table(path) for path in paths if path.exists()], ignore_index=True)
            say(f"{name}: the teacher predicts {len(rows)} rows")
            labels = rows["label"].to_numpy()
            table = predicted_rows(task, "train", rows["id"], labels, teacher.predict_table(name, rows))
            write_predictions(table, new / f"{name}.parquet")
            if any(student.vectors.loss for student in students):
                texts = teacher.pooled(name, rows).swapaxes(0, 1)
                columns = {f"vector_{index}": list(vectors) for index, vectors in enumerate(texts)}
                pq.write_table(pa.table(columns), new / f"{name}.vectors.parquet")
            facts[name] = len(rows)
        write_json(new / FACTS, facts)


def read_outputs(folder: str | Path, task: str, vectors: bool) -> tuple[pd.DataFrame, Vectors | None]:
    """Return the prediction table of a task that `teach` wrote to `folder`, and the vectors [N, texts, H] if asked for.

    Raises:
        UserError: if the teacher can't teach the task.
    """
    fact = read_json(need(Path(folder) / FACTS)).get(task)
    if isinstance(fact, str):
        advice = "take a teacher of the same task, or leave it out of distill.tasks"
        raise UserError(f"distill.teacher: task {task}: {fact}; {advice}")
    table = read_predictions(need(Path(folder) / f"{task}.parquet"))
    if not vectors:
        return table, None
    columns = read_parquet(need(Path(folder) / f"{task}.vectors.parquet")).columns
    parts = [column.combine_chunks().flatten().to_numpy().reshape(len(table), -1) for column in columns]
    return table, np.stack(parts, axis=1)


def _unlike(task: Task, teacher: Predictor) -> str | None:
    """Return why a teacher can't teach a task: it lacks the task, or has another kind, target or order of classes."""
    known = teacher.tasks.get(task.name)
    if known is None:
        return f"the teacher knows {', '.join(teacher.tasks)} alone"
    theirs, ours = known.target.labels, task.target.labels
    reordered = theirs != ours and set(theirs) == set(ours)
    if (known.kind, known.target) == (task.kind, task.target) and not reordered:
        return None
    sides = [f"{side.kind}, {side.target}, {', '.join(side.target.labels) or 'no names'}" for side in (known, task)]
    return f"the teacher knows it as {sides[0]}, and params.yaml says {sides[1]}"
