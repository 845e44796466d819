"""The model that is exported, and its outputs for a few texts, which every export is compared with."""

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
        folder: model folder that finetune or a soup wrote.
        config: contents of its bertrio.json.
        tasks: by name.
        model: the model in evaluation mode.
        tokenizer: tokenizer of the encoder; its `model_max_length` is the one of training.
    """

    folder: Path
    config: ModelConfig
    tasks: dict[str, Task]
    model: MultitaskModel
    tokenizer: Any

    @classmethod
    def open(cls, folder: str | Path) -> Source:
        """Open the model in `folder`.

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
        """Return the task of that name, or the only one there is.

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
        """Names of the tokenizer's outputs that the model takes, of FIELDS."""
        return list(tokenize(self.tokenizer, ["a"]))

    def save_tokenizer(self, folder: str | Path) -> None:
        """Save a fresh tokenizer, since truncation and padding of the last call are saved with it."""
        fresh_tokenizer(self.folder, self.config).save_pretrained(str(folder))

    def tokens(self, task: Task, rows: Sequence[Row]) -> tuple[Tokens, ...]:
        """Return one batch of tokens [B, T], or one for each text of a bi-encoded pair."""
        together, apart = [columns_of(rows)], [[column] for column in columns_of(rows)]
        return tuple(tokenize(self.tokenizer, *texts) for texts in (apart if task.encoding == "bi" else together))

    @torch.inference_mode()
    def outputs(self, task: Task, rows: Sequence[Row]) -> Tensor:
        """Return the outputs [B, C] of the task's head, on the scale that `Target.predict` reads."""
        return self.model(task.name, self.tokens(task, rows)).outputs

    @torch.inference_mode()
    def pooled(self, texts: Sequence[Any]) -> Tensor:
        """Return the pooled vectors [B, H] of texts."""
        tokens = tokenize(self.tokenizer, list(texts))
        return self.model.encode(self.model.embed(tokens), tokens)

    @torch.inference_mode()
    def vectors(self, task: Task, texts: Sequence[str]) -> Tensor:
        """Return the vectors [B, H] that the head of a bi-encoded task compares, after its projection if it has one."""
        head: Any = self.model.heads[task.name]
        return head.project([self.pooled(texts)])[0]

    def probes(self, task: Task | None) -> list[Row]:
        """Return a few rows of words of the vocabulary, from no words to more than the model reads.

        Args:
            task: task of the rows; None for single texts.
        """
        words, draw = _words(self.tokenizer), random.Random(0)
        counts = [*PROBE_WORDS, self.config.encoder.max_length]
        texts = [" ".join(draw.choices(words, k=count)) for count in counts]
        return list(texts) if task is None or task.kind == "single" else list(zip(texts, texts[3:] + texts[:3]))


def fresh_tokenizer(folder: Path, config: ModelConfig) -> Any:
    """Load the tokenizer of a model folder, which truncates texts at the model's maximal length."""
    tokenizer = load_tokenizer(folder / "encoder")
    tokenizer.model_max_length = config.encoder.max_length
    return tokenizer


def columns_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return the texts of rows by column: one list of single texts, or two of pairs."""
    return [list(column) for column in zip(*[(row,) if isinstance(row, str) else row for row in rows])]


def tokenize(tokenizer: Any, *columns: list[str]) -> Tokens:
    """Return tokens [B, T] of single texts or pairs, truncated at the tokenizer's `model_max_length`."""
    tokens = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
    return {name: tokens[name] for name in FIELDS if name in tokens}


def _words(tokenizer: Any) -> list[str]:
    """Return the words and pieces of words of the vocabulary, in alphabetical order."""
    words = {re.sub(r"[\W\d_]", "", token) for token in tokenizer.get_vocab()}
    return sorted(words - {""}) or ["word"]


def _no_model(folder: Path) -> UserError:
    """Return the error for a folder that holds no model."""
    members = folder / "members" if (folder / "members").is_dir() else folder.parent / "members"
    models = sorted(str(path.parent) for path in members.glob(f"*/{CONFIG_FILE}"))
    advice = f"; export one model: {', '.join(models)}" if models else ""
    if (folder / "ensemble.json").exists():
        soup = ", or make one model of all members with ensemble.combine: uniform_soup"
        return UserError(f"--model {folder}: is an ensemble that combines predictions, not one model{advice}{soup}")
    return UserError(f"--model {folder}: has no {HEADS_FILE}, expected a folder such as models/members/base{advice}")
