"""Masked-language-model pretraining of the encoder on unlabelled text (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.config import OptimizerParams, Params
from bertrio.core.console import progress, say
from bertrio.core.errors import UserError, need
from bertrio.core.files import parquet_batches, whole_folder
from bertrio.core.runtime import Runtime, choose, generator
from bertrio.data.batches import Batch, BatchStream
from bertrio.data.tokens import NO_LIMIT, encode
from bertrio.model.attention import cheap_dropout
from bertrio.model.encoder import Encoder, check_length, initial_language_model, initial_transformer
from bertrio.model.names import fetch_encoder, local_folder
from bertrio.model.tokenizer import load_tokenizer, pinned
from bertrio.training.checkpoints import Checkpoints, open_checkpoints
from bertrio.training.loop import Trainer, single_task_trainer
from bertrio.training.objective import BatchLoss, StepObjective

Mask = Callable[..., tuple[Tensor, Tensor]]  # `mask_tokens` with all arguments but the blocks and the generator
STAGE_PARAMS = {"runtime": True, "mlm": True, "encoder": {"name", "revision", "tiny"}}
# The head's input is padded to a multiple of this many tokens. Steps differ in their number of masked tokens, and on a
# CPU, setting up a matrix product for a new size takes longer than computing it.
ROUND = 64
NO_LABEL = -100  # the padding of labels, which the loss ignores
HELD_OUT = 0.05  # share of the blocks, on which perplexity is measured
WORD_MARKS = {"##": "continues", "Ġ": "begins", "▁": "begins"}  # WordPiece, byte-level BPE, SentencePiece

TASK = "mlm"
# Not the group `optimizer`, which is of fine-tuning: runs that differ in it alone share this stage in DVC's cache
OPTIMIZER = OptimizerParams(
    eps=1e-8, weight_decay=0.01, lr_schedule="linear", warmup_fraction=0.1, layer_decay=1.0, max_grad_norm=1.0,
    step_epochs=1, gamma=1.0,
)  # fmt: skip


def pretrain_mlm(
    params: Params, runtime: Runtime, corpora: str, tokenizer_folder: str, folder: str
) -> tuple[dict, dict]:
    """Write the pipeline's initial encoder to `folder`, pretrained on the corpora if `mlm.enabled`.

    A stopped run resumes and writes the same bytes, see `training.checkpoints`.

    Args:
        params: all params.
        runtime: device and precision.
        corpora: folder of parquet files, each with a column `text`.
        tokenizer_folder: folder of the encoder's tokenizer.
        folder: folder for config.json and model.safetensors, without the language-model head.

    Returns:
        The stage's metrics (perplexity on held-out blocks before and after, and whether the language-model head was
        loaded from the checkpoint or fresh), and the figures for its timing file.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    start = pinned(params.encoder, tokenizer_folder)
    transformer = initial_transformer(start, len(tokenizer))
    encoder = Encoder(transformer, params.encoder.pooling)  # fails now if there is no such pooling
    check_length(transformer.config, params.encoder.max_length, "encoder.max_length")
    if not params.mlm.enabled:
        say("pretrain_mlm: off (mlm.enabled), the encoder stays as it is")
        with whole_folder(folder) as new:
            encoder.save(new)
        return {"enabled": False}, {}
    check_length(transformer.config, params.mlm.block_size, "mlm.block_size")
    precise = choose(str(runtime.device), params.runtime.precision, transformer.config.hidden_size)
    runtime = replace(runtime, compute=precise.compute)  # the width, on which it depends, was not known before
    inputs: list[str | Path] = [corpora, tokenizer_folder]
    if start.name != "tiny":
        inputs.append(local_folder(start.name) or fetch_encoder(start.name, start.revision))
    with open_checkpoints("pretrain_mlm", params, STAGE_PARAMS, inputs, runtime) as checkpoints:
        model, has_head = initial_language_model(start, len(tokenizer))
        cheap_dropout(model)
        say(f"mlm: the language-model head is {'that of the checkpoint' if has_head else 'fresh'}")
        blocks = token_blocks(corpora, tokenizer, params.mlm.block_size, Path(folder).parent)
        metrics, timing = _train(model.to(runtime.device), blocks, tokenizer, params, runtime, checkpoints)
        # strict=False: masked-language models lack the pooler, which stays unchanged
        _, unexpected = transformer.load_state_dict(model.base_model.state_dict(), strict=False)
        assert not unexpected, unexpected
        with whole_folder(folder) as new:
            encoder.save(new)
        checkpoints.finish()
    return {"enabled": True, "head": "checkpoint" if has_head else "fresh", **metrics}, timing


def token_blocks(corpora: str | Path, tokenizer: Any, block_size: int, folder: Path) -> np.ndarray:
    """Tokenise and concatenate all texts and cut them into blocks: a memory-mapped array [N, block_size].

    Each text has its own [CLS] and [SEP], or the tokenizer's equivalents. Tokens after the last whole block are
    dropped. Only one batch of texts is in memory at a time. The tokens are in an unnamed file in `folder`, which
    disappears with the array or the process.

    Raises:
        UserError: if the texts make fewer than two blocks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        paths = sorted(need(corpora).glob("*.parquet"))
        with progress("mlm: tokenising", total=sum(pq.read_metadata(path).num_rows for path in paths)) as bar:
            batches = chain.from_iterable(parquet_batches(path, 1000, ["text"]) for path in paths)
            for batch in filter(len, batches):  # a corpus may be empty
                encodings = encode([batch["text"].to_pylist()], tokenizer, NO_LIMIT)
                file.write(np.concatenate([np.asarray(row.ids, dtype=np.int32) for row in encodings]).tobytes())
                bar.advance(batch.num_rows)
        tokens = file.tell() // 4
        count = tokens // block_size
        if count < 2:
            raise UserError(
                f"{corpora}: found {tokens} tokens, expected at least {2 * block_size}; see mlm.rows and mlm.block_size"
            )
        return np.memmap(file, dtype=np.int32, mode="r", shape=(count, block_size))


class Blocks:
    """Rows of blocks: those of `blocks` [N, T], token ids, at `positions`, which are also the ids of the rows."""

    text_group = TASK

    def __init__(self, blocks: np.ndarray, positions: np.ndarray) -> None:
        self._blocks, self.ids, self.sources = blocks, positions, np.full(len(positions), "")

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: np.ndarray) -> Batch:
        """Return a batch of the blocks at these rows."""
        ids = torch.from_numpy(self._blocks[self.ids[rows]].astype(np.int64))
        return Batch(TASK, rows, ({"input_ids": ids},), None)


class BlockStream(BatchStream):
    """An endless stream of batches of blocks, which all have the same length; every pass has a random order."""

    def _pass(self) -> list[np.ndarray]:
        order = torch.randperm(len(self.rows), generator=self._generator).numpy()
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]


class MlmObjective(StepObjective):
    """Cross entropy of the masked tokens of a batch of blocks, as an objective of `training.loop.Trainer`.

    Args:
        model: a masked-language model, on its device.
        mask: selects and masks tokens.
        generator: generator of the masks.
        runtime: device and precision.
    """

    reads_labels = False
    saved = ("_generator", "before")

    def __init__(self, model: nn.Module, mask: Mask, generator: torch.Generator, runtime: Runtime) -> None:
        self.model, self.runtime = model, runtime
        self._mask, self._generator = mask, generator
        self.before: float | None = None  # perplexity before the first update

    def __call__(self, *batches: Batch) -> list[BatchLoss]:
        loss, _ = self._loss(batches[0], self._generator)
        return [BatchLoss(loss, loss, {})]

    def perplexity(self, rows: Blocks, batch_size: int, seed: int, pause: Callable[[], None] = lambda: None) -> float:
        """Return exp of the mean cross entropy over the masked tokens of `rows`, with the same masks in every call.

        Whole words are harder to predict than single tokens, so values with and without `mlm.whole_word` are not
        comparable. `pause` is called after each batch.

        Raises:
            UserError: if no token was masked.
        """
        draws = generator(seed, "mlm held-out masks")
        loss_sum, tokens = 0.0, 0
        self.model.eval()
        with torch.inference_mode(), progress("mlm: perplexity", total=len(rows)) as bar:
            for start in range(0, len(rows), batch_size):
                batch = rows.batch(np.arange(start, min(start + batch_size, len(rows))))
                loss, count = self._loss(batch, draws, "sum")
                loss_sum += loss.item()
                tokens += count
                bar.advance(len(batch.rows))
                pause()
        if not tokens:
            raise UserError("mlm: none of the held-out tokens was masked; see mlm.rows and mlm.mask_probability")
        return math.exp(min(loss_sum / tokens, 700.0))  # exp overflows above 709

    def _loss(self, batch: Batch, draws: torch.Generator, reduction: str = "mean") -> tuple[Tensor, int]:
        """Return the cross entropy over the masked tokens, in float32, and their number.

        The head, a product with the whole vocabulary, is computed for masked tokens only. Without any, as may happen in
        a single short block, the loss is 0.
        """
        gold = batch.inputs[0]["input_ids"].cpu()
        ids, picked = self._mask(gold, draws=draws)
        positions = picked.flatten().nonzero().squeeze(1)
        labels, count = gold.flatten()[positions], len(positions)
        padding = -count % ROUND if count else ROUND
        reduction = reduction if count else "sum"  # the mean of no tokens is not defined
        positions = F.pad(positions, (0, padding)).to(self.runtime.device)
        labels = F.pad(labels, (0, padding), value=NO_LABEL).to(self.runtime.device)
        with self.runtime.autocast(), _head_at(self.model, positions):
            logits = self.model(input_ids=ids.to(self.runtime.device)).logits
        logits = logits.flatten(0, 1).float()
        return F.cross_entropy(logits, labels, reduction=reduction, ignore_index=NO_LABEL), count


def build_trainer(
    model: nn.Module, blocks: np.ndarray, train: np.ndarray, tokenizer: Any, params: Params, runtime: Runtime
) -> Trainer:
    """Return the trainer of a masked-language model on the blocks at the positions `train`."""
    options, seed = params.mlm, params.runtime.seed
    begins = word_beginnings(tokenizer) if options.whole_word else None
    mask = partial(mask_tokens, tokenizer=tokenizer, probability=options.mask_probability, begins=begins)
    rows: Any = Blocks(blocks, train)
    stream = BlockStream(rows, options.batch_size, generator(seed, "mlm order"))
    objective = MlmObjective(model, mask, generator(seed, "mlm masks"), runtime)
    return single_task_trainer(objective, TASK, stream, "mlm", params.model_copy(update={"optimizer": OPTIMIZER}))


def _train(
    model: nn.Module, blocks: np.ndarray, tokenizer: Any, params: Params, runtime: Runtime, checkpoints: Checkpoints
) -> tuple[dict, dict]:
    options, seed = params.mlm, params.runtime.seed
    order = torch.randperm(len(blocks), generator=generator(seed, "mlm held out")).numpy()
    count = min(max(1, round(HELD_OUT * len(blocks))), len(blocks) - 1)
    held_out, train = np.sort(order[:count]), np.sort(order[count:])
    trainer = build_trainer(model, blocks, train, tokenizer, params, runtime)
    objective = cast(MlmObjective, trainer.objective)
    measure = Blocks(blocks, held_out), options.batch_size, seed, checkpoints.pause
    with checkpoints.resumed({"trainer": trainer}):
        if objective.before is None:
            objective.before = objective.perplexity(*measure)
        scale = f"{len(blocks)} blocks, {trainer.total_steps} steps on {runtime.describe()}"
        say(f"mlm: {scale}; held-out perplexity {objective.before:.1f} before")
        for log in trainer.run("mlm", between_steps=checkpoints.after_step):
            checkpoints.after_step(log.step, force=True)
        after = objective.perplexity(*measure)
    say(f"mlm: held-out perplexity {after:.1f} after")
    perplexity = {"before": objective.before, "after": after}
    return {"blocks": len(blocks), "steps": trainer.total_steps, "perplexity": perplexity}, trainer.cost()


@contextmanager
def _head_at(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Context in which a masked-language model's head gets only hidden states at P positions of B x T: [1, P, H]."""

    def select(_: nn.Module, inputs: Any, output: Any) -> Any:
        output["last_hidden_state"] = output.last_hidden_state.flatten(0, 1)[positions].unsqueeze(0)
        return output

    body: Any = model.base_model
    hook = body.register_forward_hook(select)
    try:
        yield
    finally:
        hook.remove()


def mask_tokens(
    blocks: Tensor, tokenizer: Any, probability: float, draws: torch.Generator, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mask tokens for prediction: of the selected tokens, 80 % become [MASK], 10 % a random token, 10 % stay.

    Devlin et al. 2019, section 3.1 and appendix A.1. With `begins`, whole words are selected: the draw of a word's
    first token decides for all its tokens, while the 80/10/10 choice is made for each token, as in the authors' later
    release (google-research/bert, create_pretraining_data.py, `do_whole_word_mask`). Departs from that release: each
    word is selected independently with `probability`, so that the share is reached on average only, whereas the release
    shuffles the words and takes them until it is reached; and words are identified by the tokenizer's marks, see
    `word_beginnings`.

    Args:
        blocks: [B, T], token ids.
        tokenizer: the tokenizer, for its mask and its special tokens, which are never selected.
        probability: share of tokens that are selected.
        draws: generator of all random numbers.
        begins: bool [V], True for tokens that begin a word; None selects tokens independently.

    Returns:
        The changed ids [B, T], and a bool [B, T] that is True for selected tokens.
    """
    special = torch.isin(blocks, torch.tensor(tokenizer.all_special_ids))
    draw = torch.rand(blocks.shape, generator=draws)
    if begins is not None:
        draw = draw.gather(1, _first_of_word(blocks, special, begins))
    picked = (draw < probability) & ~special
    kind = torch.rand(blocks.shape, generator=draws)
    random = torch.randint(len(tokenizer), blocks.shape, generator=draws, dtype=blocks.dtype)
    masked = torch.where(picked & (kind < 0.8), tokenizer.mask_token_id, blocks)
    return torch.where(picked & (kind >= 0.9), random, masked), picked


def _first_of_word(blocks: Tensor, special: Tensor, begins: Tensor) -> Tensor:
    """Return the position of the first token of each token's word: [B, T]. Words end at special tokens and blocks."""
    first = begins[blocks] | special
    first[:, 1:] |= special[:, :-1]
    first[:, 0] = True
    return torch.where(first, torch.arange(blocks.shape[1]), 0).cummax(dim=1).values


def word_beginnings(tokenizer: Any) -> Tensor:
    """Return which tokens of the vocabulary begin a word: bool [V], by token id.

    WordPiece marks tokens that continue a word ("##ing"); byte-level BPE ("Ġgood") and SentencePiece ("▁good") mark
    tokens that begin one. The most frequent of these marks is taken as the tokenizer's. WordPiece tokenizers split off
    punctuation, which forms words of its own; the others mark spaces, so that punctuation belongs to the word before.

    Raises:
        UserError: if no token has such a mark.
    """
    vocabulary = tokenizer.get_vocab()
    marked = {mark: sum(token.startswith(mark) and token != mark for token in vocabulary) for mark in WORD_MARKS}
    mark = max(marked, key=marked.__getitem__)
    if not marked[mark]:
        raise UserError(
            f"mlm.whole_word: found no token in this encoder's vocabulary that begins with {', '.join(WORD_MARKS)}, "
            "expected one of them to mark where words begin or continue; set mlm.whole_word to false"
        )
    begins = np.ones(max(vocabulary.values()) + 1, dtype=bool)
    for token, index in vocabulary.items():
        begins[index] = token.startswith(mark) == (WORD_MARKS[mark] == "begins")
    return torch.from_numpy(begins)
