"""Pre-finetuning: one task alone before all together; its head is carried on."""

from __future__ import annotations

import shutil
from typing import Any

from bertrio.console import say
from bertrio.errors import need
from bertrio.params import Params


def prefinetune(params: Params, encoder: str, splits: str, tokenizer: str, folder: str) -> tuple[dict, dict]:
    """Trains encoder and head of `prefinetune.task` alone and writes both to `folder`; the last epoch is kept.

    With `prefinetune.epochs: 0` the encoder passes through as it is, with no heads.

    Args:
        params: all params.
        encoder: the folder of the encoder to start from.
        splits, tokenizer: folders of the data.
        folder: gets encoder/ and heads.safetensors.

    Returns:
        The stage's metrics, and what its timing file reports.
    """
    options = params.prefinetune
    shutil.rmtree(folder, ignore_errors=True)
    if not options.epochs:
        shutil.copytree(need(encoder), f"{folder}/encoder")
        return {"epochs": 0}, {}

    from bertrio.data.batches import BatchStream  # torch and transformers take seconds to import: only if needed
    from bertrio.model.multitask import build_model, save_heads
    from bertrio.runtime import generator, set_up
    from bertrio.training.data import build_losses, load_split
    from bertrio.training.finetune import score, told, training_cost
    from bertrio.training.loop import Trainer
    from bertrio.training.objective import Objective

    name = options.task
    params = params.model_copy(update={"tasks": {name: params.tasks[name]}})
    runtime = set_up(**params.runtime.model_dump(), width=params.encoder.width)
    model = build_model(params, encoder, runtime)
    train, dev = (load_split(params, split, splits, tokenizer) for split in ("train", "dev"))
    seed, size = params.runtime.seed, params.tasks[name].batch_size
    stream = BatchStream(train[name], size, generator(seed, f"batches {name}"))
    plan = [[(name,)] * len(stream)] * options.epochs
    lr = options.lr * params.encoder.lr_factor
    objective = Objective(model, build_losses(train, params))
    trainer = Trainer(objective, plan, {name: stream}, params.optimizer, lr, options.max_steps)
    scores: dict[str, Any] = {}
    for log in trainer.run("prefinetune"):
        scores = score(model, dev, "dev", params)
        say(f"prefinetune epoch {log.epoch}: {told(log, scores)}")
    model.encoder.save(f"{folder}/encoder")
    save_heads(model, [name], folder)
    return {"epochs": options.epochs, "dev": {name: scores[name]}}, training_cost(trainer)
