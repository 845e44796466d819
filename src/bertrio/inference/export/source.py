"""The trained model that is exported, and what it says of a few texts, which every export is held against."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertrio.config import build_tasks
from bertrio.core.errors import UserError
from bertrio.core.runtime import Runtime
from bertrio.core.tasks import Task
from bertrio.model.config import CONFIG_FILE, ModelConfig, read_model_config
from bertrio.model.encoder import Tokens
from bertrio.model.multitask import HEADS_FILE, MultitaskModel, load_model
from bertrio.model.tokenizer import load_tokenizer

Row = str | tuple[str, str]
FIELDS = ("input_ids", "attention_mask", "token_type_ids")
PROBE_WORDS = (0, 1, 2, 5, 12, 40)  # of the first text of each row to try; the last row has too many tokens


@dataclass(frozen=True)
class Source:
    """A model folder, opened on the CPU in float32.

    Attributes:
        folder: as finetune or a soup wrote it.
        config: what its bertrio.json says.
        tasks: by name.
        model: without dropout.
        tokenizer: of the encoder; its `model_max_length` is what the model was trained with.
    """

    folder: Path
    config: ModelConfig
    tasks: dict[str, Task]
    model: MultitaskModel
    tokenizer: Any

    @classmethod
    def open(cls, folder: str | Path) -> Source:
        """The model in `folder`.

        Raises:
            UserError: if there is none, it is damaged, or it is an ensemble of several.
        """
        folder = Path(folder)
        if not (folder / HEADS_FILE).exists():
            raise _no_model(folder)
        config = read_model_config(folder)
        model = load_model(folder, Runtime(torch.device("cpu"), torch.float32))
        return cls(folder, config, build_tasks(config), model, fresh_tokenizer(folder, config))

    def task(self, name: str | None) -> Task:
        """The task of that name, or the only one there is.

        Raises:
            UserError: if there is no such task, or its head was never trained.
        """
        known = ", ".join(self.tasks)
        if name is None and len(self.tasks) > 1:
            raise UserError(f"--task: found none, expected one of {known}: this format holds one task")
        task = self.tasks.get(next(iter(self.tasks)) if name is None else name)
        if task is None:
            raise UserError(f"--task: found {name}, expected one of {known}, the tasks of {self.folder}")
        if task.name not in self.config.trained:
            raise UserError(f"--task: found {task.name}, which {self.folder} was not trained on: its head is random")
        return task

    @property
    def fields(self) -> list[str]:
        """What the tokenizer makes of a text, of FIELDS."""
        return list(tokenised(self.tokenizer, ["a"]))

    def save_tokenizer(self, folder: str | Path) -> None:
        """Writes the tokenizer's files; a fresh one, as what it was asked last would go into them."""
        fresh_tokenizer(self.folder, self.config).save_pretrained(str(folder))

    def tokens(self, task: Task, rows: Sequence[Row]) -> tuple[Tokens, ...]:
        """The rows as the task's model takes them: one batch of tokens [B, T], or one for each text of a pair."""
        together, apart = [columns_of(rows)], [[column] for column in columns_of(rows)]
        return tuple(tokenised(self.tokenizer, *texts) for texts in (apart if task.encoding == "bi" else together))

    @torch.inference_mode()
    def outputs(self, task: Task, rows: Sequence[Row]) -> Tensor:
        """What the task's head says of the rows, on the scale that `Target.predict` reads: [B, outputs]."""
        return self.model(task.name, self.tokens(task, rows)).outputs

    @torch.inference_mode()
    def pooled(self, texts: Sequence[str]) -> Tensor:
        """The pooled vectors of texts: [B, H]."""
        tokens = tokenised(self.tokenizer, list(texts))
        return self.model.encode(self.model.embed(tokens), tokens)

    @torch.inference_mode()
    def vectors(self, task: Task, texts: Sequence[str]) -> Tensor:
        """What the head of a task that encodes texts apart compares: [B, H], behind its projection if it has one."""
        return self.model.heads[task.name].project([self.pooled(texts)])[0]

    def probes(self, task: Task | None) -> list[Row]:
        """A few rows to try an export on, from no words to more than the model reads, of words of the vocabulary.

        Args:
            task: whose rows; None: single texts.
        """
        words, draw = _words(self.tokenizer), random.Random(0)
        counts = [*PROBE_WORDS, self.config.encoder.max_length]
        texts = [" ".join(draw.choices(words, k=count)) for count in counts]
        return list(texts) if task is None or task.kind == "single" else list(zip(texts, texts[3:] + texts[:3]))


def fresh_tokenizer(folder: Path, config: ModelConfig) -> Any:
    """The tokenizer of a model folder, which cuts texts at the model's own length."""
    tokenizer = load_tokenizer(folder / "encoder")
    tokenizer.model_max_length = config.encoder.max_length
    return tokenizer


def columns_of(rows: Sequence[Row]) -> list[list[str]]:
    """The texts of rows, column by column: one list of single sentences, or two of pairs."""
    return [list(column) for column in zip(*[(row,) if isinstance(row, str) else row for row in rows])]


def tokenised(tokenizer: Any, *columns: list[str]) -> Tokens:
    """Single texts, or pairs of texts, as tokens [B, T], cut at the tokenizer's `model_max_length`."""
    found = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
    return {name: found[name] for name in FIELDS if name in found}


def _words(tokenizer: Any) -> list[str]:
    """Words of the tokenizer's vocabulary, or pieces of them, in alphabetical order."""
    found = {re.sub(r"[\W\d_]", "", token) for token in tokenizer.get_vocab()}
    return sorted(found - {""}) or ["word"]


def _no_model(folder: Path) -> UserError:
    """Why there is nothing to export in `folder`."""
    members = folder / "members" if (folder / "members").is_dir() else folder.parent / "members"
    models = sorted(str(path.parent) for path in members.glob(f"*/{CONFIG_FILE}"))
    advice = f"; export one model: {', '.join(models)}" if models else ""
    if (folder / "ensemble.json").exists():
        soup = ", or make one model of all members with ensemble.combine: uniform_soup"
        return UserError(f"--model {folder}: is an ensemble that combines predictions, not one model{advice}{soup}")
    return UserError(f"--model {folder}: has no {HEADS_FILE}, expected a folder such as models/members/base{advice}")
