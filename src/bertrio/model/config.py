"""bertrio.json: the description in a model folder, which replaces params.yaml when the model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from bertrio.config import Params
from bertrio.config.groups import PoolingName
from bertrio.config.tasks import SharingParams, TaskParams
from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json
from bertrio.core.options import Count, Group

CONFIG_FILE = "bertrio.json"
WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # what architectures call it: BERT, DistilBERT, T5, GPT-2
OF_TRAINING = {"batch_size", "epochs", "data"}  # what is left out of a task's params


def _without_training(task: Any) -> Any:
    """Return a task's block as `TaskParams` takes it: it wants a batch size, which a finished model has no use for."""
    return {"batch_size": 1, **task} if isinstance(task, dict) else task


class EncoderConfig(Group):
    """How texts are cut, and how their hidden states become one vector."""

    pooling: PoolingName
    max_length: Count


class ModelConfig(Group):
    """Description of a trained model.

    Attributes:
        format: of bertrio.json; to be raised when what it holds changes its meaning.
        tasks: kind, target, encoding, head and loss of each task, as in params.yaml.
        trained: the tasks whose heads have been trained; answers to the others would be random.
        sharing: the layers that heads have in common.
        encoder: pooling and length.
    """

    format: Literal[1]
    tasks: dict[str, Annotated[TaskParams, BeforeValidator(_without_training)]]
    trained: list[str]
    sharing: SharingParams
    encoder: EncoderConfig

    @classmethod
    def from_params(cls, params: Params) -> ModelConfig:
        """Describe a model that was trained with `params`."""
        first = [params.prefinetune.task] if params.prefinetune.epochs else []
        return cls(
            format=1,
            tasks={name: task.model_dump(exclude=OF_TRAINING) for name, task in params.tasks.items()},
            trained=[name for name in params.tasks if name in (*params.trains, *first)],
            sharing=params.sharing,
            encoder=EncoderConfig(pooling=params.encoder.pooling, max_length=params.encoder.max_length),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content of bertrio.json."""
        return self.model_dump(exclude={"tasks": {"__all__": OF_TRAINING}})


def read_model_config(folder: str | Path) -> ModelConfig:
    """Read the bertrio.json in `folder`.

    Raises:
        UserError: if there is none, it is damaged, or an older version of bertrio wrote it.
    """
    path = need(Path(folder) / CONFIG_FILE)
    try:
        raw = read_json(path)
        raw.pop("plugins", None)  # of folders that older versions wrote
        return ModelConfig.model_validate(raw)
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: does not describe a model ({' '.join(str(error).split())[:300]}); an older version of bertrio "
            "wrote it, or it is damaged: run the finetune and ensemble stages again"
        ) from error


def encoder_width(folder: str | Path) -> int | None:
    """Return H, the hidden size of a saved encoder, by its config.json; None where that calls it by none of `WIDTHS`.

    Raises:
        UserError: if there is no such file, or it is damaged.
    """
    path = need(Path(folder) / "config.json")
    try:
        config = read_json(path)
        return next((config[name] for name in WIDTHS if isinstance(config.get(name), int)), None)
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: can't be read ({error}); run the stage that writes it again") from error
