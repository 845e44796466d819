"""Pre-finetuning: train one task alone before all tasks together; fine-tuning starts from its encoder and head."""

from __future__ import annotations

import shutil
from pathlib import Path

from bertrio.config import Params
from bertrio.core.console import say
from bertrio.core.errors import need
from bertrio.core.files import whole_folder

STAGE_PARAMS = {
    **dict.fromkeys(("runtime", "tasks", "sharing", "encoder", "optimizer", "prefinetune"), True),
    "finetune": {"eval_batch_size"},
    "data": {"extra_train"},
}


def prefinetune(params: Params, encoder: str, splits: str, tokenizer: str, folder: str) -> tuple[dict, dict]:
    """Train encoder and head of `prefinetune.task` alone and write those of the last epoch to `folder`.

    With `prefinetune.epochs: 0`, the encoder is copied unchanged, without heads.

    A stopped run resumes and writes the same bytes, see `training.checkpoints`.

    Args:
        params: all params.
        encoder: folder of the initial encoder.
        splits, tokenizer: folders of the data.
        folder: folder for encoder/ and heads.safetensors.

    Returns:
        The stage's metrics, and the figures for its timing file.
    """
    if not params.prefinetune.epochs:
        say("prefinetune: off (prefinetune.epochs: 0), the encoder stays as it is")
        with whole_folder(folder) as new:
            shutil.copytree(need(encoder), new / "encoder")
        return {"epochs": 0}, {}

    # Imported here because torch and transformers take seconds to import
    from bertrio.core.runtime import generator, set_up
    from bertrio.data.batches import BatchStream
    from bertrio.model.config import encoder_width
    from bertrio.model.multitask import build_model, save_heads
    from bertrio.techniques.losses import LOSSES
    from bertrio.training.build import build_losses, load_split, rows_per_pass
    from bertrio.training.checkpoints import open_checkpoints
    from bertrio.training.evaluator import EpochEvaluator, Selection
    from bertrio.training.finetune import train_epochs
    from bertrio.training.loop import single_task_trainer
    from bertrio.training.objective import Objective

    name = params.prefinetune.task
    params = params.model_copy(update={"tasks": {name: params.tasks[name]}})
    runtime = set_up(**params.runtime.model_dump(), width=encoder_width(encoder))
    inputs: list[str | Path] = [encoder, Path(splits) / name, tokenizer]
    with open_checkpoints("prefinetune", params, STAGE_PARAMS, inputs, runtime) as checkpoints:
        train, dev = (load_split(params, split, splits, tokenizer) for split in ("train", "dev"))
        model = build_model(params, encoder, runtime)
        order = generator(params.runtime.seed, f"prefinetune batches {name}")
        drawn = rows_per_pass(params, train[name])
        kind = LOSSES[params.tasks[name].loss]
        stream = BatchStream(train[name], params.tasks[name].batch_size, order, smallest=kind.rows, drawn=drawn)
        whole_batch = [name] if kind.whole_batch else []
        objective = Objective(model, build_losses(train, params), whole_batch_tasks=whole_batch)
        trainer = single_task_trainer(objective, name, stream, "prefinetune", params)
        evaluator = EpochEvaluator(params, model, {"dev": dev}, Selection("last", "dev"))
        train_epochs("prefinetune", trainer, evaluator, checkpoints)
        with whole_folder(folder) as new:
            model.encoder.save(new / "encoder")
            save_heads(model, [name], new)
        checkpoints.finish()
    return {"epochs": params.prefinetune.epochs, "dev": {name: evaluator.scores["dev"].get(name, {})}}, trainer.cost()
