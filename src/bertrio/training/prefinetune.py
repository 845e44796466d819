"""Pre-finetuning: one task alone before all together; its head is carried on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrio.config import Params
from bertrio.core.console import say
from bertrio.core.errors import need
from bertrio.core.files import whole_folder

if TYPE_CHECKING:
    from bertrio.data.batches import Split
    from bertrio.model.multitask import MultitaskModel
    from bertrio.training.loop import Trainer

READS = {  # the params that the stage reads
    **dict.fromkeys(("runtime", "tasks", "sharing", "encoder", "optimizer", "prefinetune"), True),
    "finetune": {"eval_batch_size"},
}


@dataclass
class Scores:
    """What the last epoch scored on dev, and how many epochs there were."""

    epochs: int = 0
    last: dict[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"epochs": self.epochs, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.epochs, self.last = state["epochs"], state["last"]


def prefinetune(params: Params, encoder: str, splits: str, tokenizer: str, folder: str) -> tuple[dict, dict]:
    """Trains encoder and head of `prefinetune.task` alone and writes both to `folder`; the last epoch is kept.

    With `prefinetune.epochs: 0` the encoder passes through as it is, with no heads.

    A run that was stopped goes on where it was, see `training.resume`, and writes the same bytes.

    Args:
        params: all params.
        encoder: the folder of the encoder to start from.
        splits, tokenizer: folders of the data.
        folder: gets encoder/ and heads.safetensors.

    Returns:
        The stage's metrics, and what its timing file reports.
    """
    if not params.prefinetune.epochs:
        with whole_folder(folder) as new:
            shutil.copytree(need(encoder), new / "encoder")
        return {"epochs": 0}, {}

    # torch and transformers take seconds to import: only if needed
    from bertrio.core.runtime import set_up
    from bertrio.model.config import encoder_width
    from bertrio.model.multitask import build_model, save_heads
    from bertrio.training.build import load_split
    from bertrio.training.evaluator import describe_epoch
    from bertrio.training.finetune import score, training_cost
    from bertrio.training.resume import open_checkpoints, resumed

    name = params.prefinetune.task
    params = params.model_copy(update={"tasks": {name: params.tasks[name]}})
    runtime = set_up(**params.runtime.model_dump(), width=encoder_width(encoder))
    inputs: list[str | Path] = [encoder, Path(splits) / name, tokenizer]
    with open_checkpoints("prefinetune", params, READS, inputs, runtime) as checkpoints:
        train, dev = (load_split(params, split, splits, tokenizer) for split in ("train", "dev"))
        model = build_model(params, encoder, runtime)
        trainer, scores = _trainer(params, model, train), Scores()
        with resumed(checkpoints, runtime, {"trainer": trainer, "scores": scores}) as resume:
            trainer.checkpoint = resume.after_step
            for log in trainer.run("prefinetune", done=scores.epochs):
                scores.last = score(model, dev, "dev", params, resume.pause)
                scores.epochs = log.epoch
                say(f"prefinetune epoch {log.epoch}: {describe_epoch(log, scores.last)}")
                resume.after_scoring()
        with whole_folder(folder) as new:
            model.encoder.save(new / "encoder")
            save_heads(model, [name], new)
        checkpoints.finish()
    return {"epochs": params.prefinetune.epochs, "dev": {name: scores.last[name]}}, training_cost(trainer, runtime)


def _trainer(params: Params, model: MultitaskModel, train: Split) -> Trainer:
    """The trainer of the one task in `params`."""
    from bertrio.core.runtime import generator
    from bertrio.data.batches import BatchStream
    from bertrio.training.build import build_losses
    from bertrio.training.loop import Trainer
    from bertrio.training.objective import Objective
    from bertrio.training.optimizer import Combiner, Optimization

    options, name = params.prefinetune, params.prefinetune.task
    order = generator(params.runtime.seed, f"prefinetune batches {name}")
    stream = BatchStream(train[name], params.tasks[name].batch_size, order)
    plan = [[(name,)] * len(stream)] * options.epochs
    lr = options.lr * params.encoder.lr_factor
    return Trainer(
        Objective(model, build_losses(train, params)),
        plan,
        {name: stream},
        Optimization(model, params.optimizer, lr, plan, options.max_steps),
        Combiner(list(model.parameters()), model.runtime.processes),
    )
