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

    from bertrio.model.multitask import build_model, save_heads  # torch and transformers: seconds, so only if needed
    from bertrio.runtime import set_up
    from bertrio.training.data import load_split
    from bertrio.training.finetune import joint_trainer, score, told

    params = params.model_copy(update={"tasks": {options.task: params.tasks[options.task]}})
    runtime = set_up(**params.runtime.model_dump(), width=params.encoder.width)
    model = build_model(params, encoder, runtime)
    train, dev = (load_split(params, split, splits, tokenizer) for split in ("train", "dev"))
    trainer = joint_trainer(params, model, train, options.lr, options.epochs, options.max_steps)
    scores: dict[str, Any] = {}
    for log in trainer.run("prefinetune"):
        scores = score(model, dev, "dev", params)
        say(f"prefinetune epoch {log.epoch}: {told(log, scores)}")
    model.encoder.save(f"{folder}/encoder")
    save_heads(model, [options.task], folder)
    metrics = {"epochs": options.epochs, "dev": {options.task: scores[options.task]}}
    return metrics, {"rows_per_second": trainer.rows_seen / trainer.seconds, "steps": trainer.total_steps}
