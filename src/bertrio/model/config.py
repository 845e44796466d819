"""bertrio.json, the description of the model in a model folder; it replaces params.yaml for inference."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator

from bertrio.config import Params
from bertrio.config.groups import PoolingName
from bertrio.config.tasks import SharingParams, TaskParams
from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json
from bertrio.core.options import Count, Group
from bertrio.model.names import loading, local_folder

Read = TypeVar("Read", bound=Group)

CONFIG_FILE = "bertrio.json"
TRAINING_OPTIONS = {"batch_size", "epochs", "data"}  # left out of a task's params


def _without_training(task: Any) -> Any:
    """Add the batch size that `TaskParams` requires but a saved model lacks."""
    return {"batch_size": 1, **task} if isinstance(task, dict) else task


class EncoderConfig(Group):
    """Length and pooling of the encoder, and the hub id or folder's name of the one that training started from."""

    pooling: PoolingName
    max_length: Count
    name: str


class ModelConfig(Group):
    """Description of a trained model.

    Attributes:
        format: version of bertrio.json, raised when the meaning of its content changes.
        tasks: kind, target, encoding, head and loss of each task, as in params.yaml.
        trained: tasks with a trained head; predictions of the others would be random.
        sharing: layers that heads share.
        encoder: pooling, maximal length and name.
    """

    format: Literal[1]
    tasks: dict[str, Annotated[TaskParams, BeforeValidator(_without_training)]]
    trained: list[str]
    sharing: SharingParams
    encoder: EncoderConfig

    @classmethod
    def from_params(cls, params: Params, trained: Collection[str] | None = None) -> ModelConfig:
        """Return the description of a model trained with `params`, on all tasks of these or, if given, on `trained`."""
        encoder, known = params.encoder, params.trains if trained is None else trained
        start = Path(encoder.name).name if local_folder(encoder.name) else encoder.name  # paths stay private
        return cls(
            format=1,
            tasks=params.tasks,
            trained=[name for name in params.tasks if name in known or name in params.pretrains],
            sharing=params.sharing,
            encoder=EncoderConfig(pooling=encoder.pooling, max_length=encoder.max_length, name=start),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content of bertrio.json."""
        without = {name: set() if task.thresholds else {"thresholds"} for name, task in self.tasks.items()}
        return self.model_dump(exclude={"tasks": {name: TRAINING_OPTIONS | more for name, more in without.items()}})


def read_model_config(folder: str | Path) -> ModelConfig:
    """Read the bertrio.json in `folder`.

    Raises:
        UserError: if the file is missing, damaged, or written by an older version of bertrio.
    """
    return read_group(need(Path(folder) / CONFIG_FILE), ModelConfig, "a model")


def read_group(path: Path, kind: type[Read], what: str) -> Read:
    """Read a JSON file that describes `what`.

    Raises:
        UserError: if it is damaged, or written by an older version of bertrio.
    """
    try:
        return kind.model_validate(read_json(path))
    except (OSError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        raise UserError(
            f"{path}: does not describe {what} ({' '.join(str(error).split())[:300]}); an older version of bertrio "
            "wrote it, or it is damaged: run the finetune and ensemble stages again"
        ) from error


def encoder_width(folder: str | Path) -> int:
    """Return H, the hidden size in the config.json of a saved encoder.

    Raises:
        UserError: if the file is missing or damaged.
    """
    from transformers import AutoConfig

    with loading(need(Path(folder) / "config.json")):
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False).hidden_size
