"""Masked-language-model pretraining of the encoder on unlabelled text (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.config import EncoderParams, Params
from bertrio.core.console import progress, say
from bertrio.core.errors import UserError, need
from bertrio.core.files import whole_folder
from bertrio.core.runtime import Runtime, choose, generator
from bertrio.data.batches import Passes
from bertrio.model.attention import cheap_dropout
from bertrio.model.encoder import Encoder, check_length, initial_language_model, initial_transformer
from bertrio.model.names import fetched, local_folder
from bertrio.model.tokenizer import load_tokenizer, pinned
from bertrio.training.checkpoints import Checkpoints
from bertrio.training.masking import mask_tokens, word_beginnings
from bertrio.training.optimizer import (
    build_lr_schedule,
    build_optimizer,
    clip_gradients,
    load_optimizer_state,
    optimizer_state,
)
from bertrio.training.resume import open_checkpoints, resumed
from bertrio.training.watch import Watch, read_every

Mask = Callable[..., tuple[Tensor, Tensor]]  # `mask_tokens` with all but the blocks and the generator filled in
READS = {  # the params that pretraining reads
    **dict.fromkeys(("runtime", "optimizer", "mlm"), True),
    "encoder": {"name", "revision", "tiny"},
}
# Places of a pass of the head are rounded up to a multiple: nearly every step has a number of its own, and a CPU's
# matrix products take longer to set up for a new size than to do
ROUND = 64
NO_LABEL = -100
PROGRESS = ("before", "steps_done", "blocks_done", "seconds")


def pretrain_mlm(
    params: Params, runtime: Runtime, corpora: str, tokenizer_folder: str, folder: str
) -> tuple[dict, dict]:
    """Writes the encoder that the pipeline starts from to `folder`, pretrained on the corpora if `mlm.enabled`.

    A run that was stopped goes on where it was, see `training.resume`, and writes the same bytes.

    Args:
        params: all params.
        runtime: device and precision.
        corpora: a folder of parquet files, each with a column `text`.
        tokenizer_folder: the encoder's tokenizer.
        folder: gets config.json and model.safetensors, without the language-model head.

    Returns:
        The stage's metrics (perplexity on held-out blocks before and after, and whether the language-model head was
        the checkpoint's own or fresh), and what its timing file reports.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    start = pinned(params.encoder, tokenizer_folder)
    transformer = initial_transformer(start, len(tokenizer))
    Encoder(transformer, params.encoder.pooling)  # says now, not after hours, if there is no such pooling
    check_length(transformer.config, params.encoder.max_length, "encoder.max_length")
    if not params.mlm.enabled:
        _save(transformer, folder)
        return {"enabled": False}, {}
    check_length(transformer.config, params.mlm.block_size, "mlm.block_size")
    known = choose(str(runtime.device), params.runtime.precision, transformer.config.hidden_size)
    runtime = replace(runtime, compute=known.compute)  # the width, which has a say in it, was not known before
    inputs = [corpora, tokenizer_folder, *_source(start)]
    with open_checkpoints("pretrain_mlm", params, READS, inputs, runtime) as checkpoints:
        model, own_head = initial_language_model(start, len(tokenizer))
        cheap_dropout(model)
        say(f"mlm: the language-model head is {'that of the checkpoint' if own_head else 'fresh'}")
        with _scratch(Path(folder)) as scratch:
            blocks = token_blocks(corpora, tokenizer, params.mlm.block_size, scratch / "tokens")
            learned, timing = _train(model.to(runtime.device), blocks, tokenizer, params, runtime, checkpoints)
        # strict=False: masked-language models come without the pooler, which stays as it was
        _, unexpected = transformer.load_state_dict(model.base_model.state_dict(), strict=False)
        assert not unexpected, unexpected
        _save(transformer, folder)
        checkpoints.finish()
    return {"enabled": True, "head": "checkpoint" if own_head else "fresh", **learned}, timing


def _save(transformer: Any, folder: str) -> None:
    from transformers import logging

    logging.disable_progress_bar()
    with whole_folder(folder) as new:
        transformer.save_pretrained(str(new))


def _source(params: EncoderParams) -> list[Path]:
    """The folder that the encoder comes from, if it comes from one."""
    return [] if params.name == "tiny" else [local_folder(params.name) or fetched(params.name, params.revision)]


@contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    """A folder beside another one for the length of the block. It has one name, so that what a killed process has left
    in it does not stay."""
    scratch = beside.with_name(f".{beside.name}.blocks")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def token_blocks(corpora: str | Path, tokenizer: Any, block_size: int, path: Path) -> np.ndarray:
    """All texts tokenised, concatenated and cut in blocks: a memory-mapped array [N, block_size] in the file `path`.

    Each text keeps its own [CLS] and [SEP] (or what the tokenizer has for them); what is left over at the end is
    dropped. Only one batch of rows is in memory at a time.

    Raises:
        UserError: if the texts make fewer than two blocks.
    """
    tokens = 0
    with open(path, "wb") as file:
        for texts in _text_batches(Path(corpora)):
            ids = tokenizer(texts, padding=False, truncation=False, verbose=False)["input_ids"]
            flat = np.concatenate([np.asarray(row, dtype=np.int32) for row in ids])
            file.write(flat.tobytes())
            tokens += len(flat)
    count = tokens // block_size
    if count < 2:
        raise UserError(
            f"{corpora}: found {tokens} tokens, expected at least {2 * block_size}; see mlm.rows and mlm.block_size"
        )
    return np.memmap(path, dtype=np.int32, mode="r", shape=(count, block_size))


def _text_batches(corpora: Path, size: int = 1000) -> Iterator[list[str]]:
    files = sorted(need(corpora).glob("*.parquet"))
    with progress("mlm: tokenising", total=sum(pq.ParquetFile(file).metadata.num_rows for file in files)) as bar:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=size, columns=["text"]):
                yield batch.column(0).to_pylist()
                bar.advance(batch.num_rows)


@dataclass
class Pretrainer:
    """Trains a masked-language model on batches of blocks.

    Args:
        model: on its device.
        blocks: [N, T] token ids.
        batches: the positions of the blocks of each batch.
        mask: picks and masks.
        masks_of: the generator that masks are drawn from.
        total: updates of the run.
        epoch_ends: the number of updates after which each epoch ends, rising.
        before: held-out perplexity before the first update; None until it is measured.
    """

    model: nn.Module
    blocks: np.ndarray
    batches: Passes
    mask: Mask
    masks_of: torch.Generator
    params: Params
    runtime: Runtime
    total: int
    epoch_ends: list[int]
    before: float | None = None
    steps_done: int = 0
    blocks_done: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        lr = self.params.mlm.lr * self.params.encoder.lr_factor
        self.optimizer = build_optimizer(self.model, self.params.optimizer, lr)
        self.lr_schedule = build_lr_schedule(self.optimizer, self.params.optimizer, self.total, self.epoch_ends)
        self._watch = Watch(lambda _, rows: rows, "try a lower mlm.lr")
        self._read_every = read_every(self.runtime.device)

    def run(self, checkpoint: Callable[[int], None]) -> None:
        """Takes the updates that are not done; `checkpoint` is called after each with its number.

        Raises:
            UserError: if a loss or a gradient is not finite, as `training.loop.Trainer`.
        """
        self.model.train()
        with progress("mlm", total=self.total) as bar:
            bar.advance(self.steps_done)
            for step in range(self.steps_done + 1, self.total + 1):
                began = time.perf_counter()
                loss, note = self._step(step), None
                if step % self._read_every == 0 or step == self.total:
                    self._watch.read()
                    note = f"loss {float(loss):.3f}"
                self.seconds += time.perf_counter() - began
                bar.advance(note=note)
                checkpoint(step)

    def _step(self, step: int) -> Tensor:
        positions = next(self.batches)
        gold = _ids(self.blocks, positions)
        ids, picked = self.mask(gold, of=self.masks_of)
        loss = _loss(self.model, ids, picked, gold, self.runtime)
        self._check(step, "the masked-language-model loss", positions, loss)
        loss.backward()
        norm = clip_gradients(self.model, self.params.optimizer.max_grad_norm)
        self._check(step, "the norm of the gradients", positions, norm)
        self.optimizer.step()
        self.lr_schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps_done, self.blocks_done = step, self.blocks_done + len(positions)
        return loss.detach()

    def _check(self, step: int, what: str, positions: np.ndarray, value: Tensor) -> None:
        """Has a number watched, and looked at at once where that makes nobody wait."""
        self._watch.add(step, what, {"the corpora's blocks": positions}, value)
        if self._read_every == 1:
            self._watch.read()

    def state_dict(self) -> dict[str, Any]:
        """All that decides what is still to come, between two updates; the blocks are made again."""
        self._watch.read()
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "lr_schedule": self.lr_schedule.state_dict(),
            "batches": self.batches.state_dict(),
            "masks": self.masks_of.get_state(),
            "progress": {name: getattr(self, name) for name in PROGRESS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where one that was built alike was."""
        self.model.load_state_dict(state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.lr_schedule.load_state_dict(state["lr_schedule"])
        self.batches.load_state_dict(state["batches"])
        self.masks_of.set_state(state["masks"])
        for name in PROGRESS:
            setattr(self, name, state["progress"][name])


def _train(
    model: nn.Module, blocks: np.ndarray, tokenizer: Any, params: Params, runtime: Runtime, checkpoints: Checkpoints
) -> tuple[dict, dict]:
    options, seed = params.mlm, params.runtime.seed
    order = torch.randperm(len(blocks), generator=generator(seed, "mlm held out")).numpy()
    count = min(max(1, round(options.held_out * len(blocks))), len(blocks) - 1)
    held, train = np.sort(order[:count]), np.sort(order[count:])
    per_epoch = math.ceil(len(train) / options.batch_size)
    ends = [per_epoch * (epoch + 1) for epoch in range(options.epochs)]
    total = min(ends[-1], options.max_steps or ends[-1])
    begins = word_beginnings(tokenizer) if options.whole_word else None
    mask = partial(mask_tokens, tokenizer=tokenizer, probability=options.mask_probability, begins=begins)
    batches = shuffled_batches(train, options.batch_size, generator(seed, "mlm order"))
    masks_of = generator(seed, "mlm masks")
    trainer = Pretrainer(model, blocks, batches, mask, masks_of, params, runtime, total, ends)
    with resumed(checkpoints, runtime, {"trainer": trainer}) as resume:
        if trainer.before is None:
            trainer.before = perplexity(model, blocks, held, mask, options.batch_size, seed, runtime, resume.pause)
        said = f"{len(blocks)} blocks, {total} steps on {runtime.describe()}"
        say(f"mlm: {said}; held-out perplexity {trainer.before:.1f} before")
        trainer.run(lambda step: resume.after_step(step, in_any_case=step in (*ends, total)))
        after = perplexity(model, blocks, held, mask, options.batch_size, seed, runtime, resume.pause)
    say(f"mlm: held-out perplexity {after:.1f} after")
    metrics = {"blocks": len(blocks), "steps": total, "perplexity": {"before": trainer.before, "after": after}}
    rows_per_second = trainer.blocks_done / trainer.seconds
    return metrics, {**runtime.facts(), "rows_per_second": rows_per_second, "steps": total}


def shuffled_batches(positions: np.ndarray, size: int, of: torch.Generator) -> Passes:
    """Endless batches of `size` positions, the last of a pass smaller; every pass in an order of its own."""

    def draw() -> list[np.ndarray]:
        order = positions[torch.randperm(len(positions), generator=of).numpy()]
        return [order[start : start + size] for start in range(0, len(order), size)]

    return Passes(draw, of)


def perplexity(
    model: nn.Module,
    blocks: np.ndarray,
    rows: np.ndarray,
    mask: Mask,
    batch_size: int,
    seed: int,
    runtime: Runtime,
    pause: Callable[[], None] = lambda: None,
) -> float:
    """exp of the mean cross entropy over the masked tokens of `rows`, which are masked the same way every time.

    `pause` is called after each batch.

    Words masked whole are harder to guess than tokens: numbers with and without `mlm.whole_word` don't compare.
    """
    masks_of = generator(seed, "mlm held-out masks")
    loss_sum, tokens = 0.0, 0
    model.eval()
    with torch.inference_mode(), progress("mlm: perplexity", total=len(rows)) as bar:
        for start in range(0, len(rows), batch_size):
            batch = _ids(blocks, rows[start : start + batch_size])
            ids, picked = mask(batch, of=masks_of)
            loss_sum += _loss(model, ids, picked, batch, runtime, "sum").item()
            tokens += int(picked.sum())
            bar.advance(len(batch))
            pause()
    return math.exp(min(loss_sum / max(tokens, 1), 700.0))  # exp overflows above 709


def _ids(blocks: np.ndarray, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(blocks[rows].astype(np.int64))


def _loss(
    model: nn.Module, ids: Tensor, picked: Tensor, gold: Tensor, runtime: Runtime, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in float32 over the picked tokens; the head, a product with all words, works on these alone.

    Of a batch without any, such as a single short block, it is 0.
    """
    places = picked.flatten().nonzero().squeeze(1)
    labels = gold.flatten()[places]
    idle = -len(places) % ROUND if len(places) else ROUND
    reduction = reduction if len(places) else "sum"  # there is nothing to divide by
    places = F.pad(places, (0, idle)).to(runtime.device)
    labels = F.pad(labels, (0, idle), value=NO_LABEL).to(runtime.device)
    with runtime.autocast(), _head_reads(model, places):
        logits = model(input_ids=ids.to(runtime.device)).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), labels, reduction=reduction, ignore_index=NO_LABEL)


@contextmanager
def _head_reads(model: nn.Module, places: Tensor) -> Iterator[None]:
    """A context in which a masked-language model's head gets the hidden states at P `places` of B x T: [1, P, H]."""

    def at_places(_: nn.Module, given: Any, output: Any) -> Any:
        output["last_hidden_state"] = output.last_hidden_state.flatten(0, 1)[places].unsqueeze(0)
        return output

    hook = model.base_model.register_forward_hook(at_places)
    try:
        yield
    finally:
        hook.remove()
