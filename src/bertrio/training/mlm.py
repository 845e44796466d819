"""Masked-language-model pretraining of the encoder on unlabelled text (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pyarrow.dataset import dataset
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.config import Params
from bertrio.core.console import progress, say
from bertrio.core.errors import UserError, need
from bertrio.core.files import whole_folder
from bertrio.core.runtime import Runtime, choose, generator
from bertrio.data.batches import Batch, BatchStream
from bertrio.model.attention import cheap_dropout
from bertrio.model.encoder import Encoder, check_length, initial_language_model, initial_transformer
from bertrio.model.names import fetch_encoder, local_folder
from bertrio.model.tokenizer import load_tokenizer, pinned
from bertrio.training.checkpoints import Checkpoints, open_checkpoints
from bertrio.training.loop import Trainer, single_task_trainer
from bertrio.training.objective import Parts, StepObjective

Mask = Callable[..., tuple[Tensor, Tensor]]  # `mask_tokens` with all but the blocks and the generator filled in
READS = {  # the params that pretraining reads
    **dict.fromkeys(("runtime", "optimizer", "mlm"), True),
    "encoder": {"name", "revision", "tiny"},
}
# Places of a pass of the head are rounded up to a multiple: nearly every step has a number of its own, and a CPU's
# matrix products take longer to set up for a new size than to do
ROUND = 64
NO_LABEL = -100
HELD_OUT = 0.05  # share of the blocks that perplexity is measured on
WORD_MARKS = {"##": "continues", "Ġ": "begins", "▁": "begins"}  # WordPiece, byte-level BPE, SentencePiece

TASK = "mlm"


def pretrain_mlm(
    params: Params, runtime: Runtime, corpora: str, tokenizer_folder: str, folder: str
) -> tuple[dict, dict]:
    """Writes the encoder that the pipeline starts from to `folder`, pretrained on the corpora if `mlm.enabled`.

    A run that was stopped goes on where it was, see `training.checkpoints`, and writes the same bytes.

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
    encoder = Encoder(transformer, params.encoder.pooling)  # says now, not after hours, if there is no such pooling
    check_length(transformer.config, params.encoder.max_length, "encoder.max_length")
    if not params.mlm.enabled:
        with whole_folder(folder) as new:
            encoder.save(new)
        return {"enabled": False}, {}
    check_length(transformer.config, params.mlm.block_size, "mlm.block_size")
    precise = choose(str(runtime.device), params.runtime.precision, transformer.config.hidden_size)
    runtime = replace(runtime, compute=precise.compute)  # the width, which has a say in it, was not known before
    inputs: list[str | Path] = [corpora, tokenizer_folder]
    if start.name != "tiny":
        inputs.append(local_folder(start.name) or fetch_encoder(start.name, start.revision))
    with open_checkpoints("pretrain_mlm", params, READS, inputs, runtime) as checkpoints:
        model, own_head = initial_language_model(start, len(tokenizer))
        cheap_dropout(model)
        say(f"mlm: the language-model head is {'that of the checkpoint' if own_head else 'fresh'}")
        blocks = token_blocks(corpora, tokenizer, params.mlm.block_size, Path(folder).parent)
        learned, timing = _train(model.to(runtime.device), blocks, tokenizer, params, runtime, checkpoints)
        # strict=False: masked-language models come without the pooler, which stays as it was
        _, unexpected = transformer.load_state_dict(model.base_model.state_dict(), strict=False)
        assert not unexpected, unexpected
        with whole_folder(folder) as new:
            encoder.save(new)
        checkpoints.finish()
    return {"enabled": True, "head": "checkpoint" if own_head else "fresh", **learned}, timing


def token_blocks(corpora: str | Path, tokenizer: Any, block_size: int, folder: Path) -> np.ndarray:
    """All texts tokenised, concatenated and cut in blocks: a memory-mapped array [N, block_size].

    Each text keeps its own [CLS] and [SEP] (or what the tokenizer has for them); what is left over at the end is
    dropped. Only one batch of rows is in memory at a time: the tokens are in a file in `folder` that has no name, and
    is gone with the array, or the process.

    Raises:
        UserError: if the texts make fewer than two blocks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        texts = dataset(sorted(map(str, need(corpora).glob("*.parquet"))))
        with progress("mlm: tokenising", total=texts.count_rows()) as bar:
            for batch in texts.to_batches(columns=["text"], batch_size=1000):
                ids = tokenizer(batch["text"].to_pylist(), padding=False, truncation=False, verbose=False)["input_ids"]
                file.write(np.concatenate([np.asarray(row, dtype=np.int32) for row in ids]).tobytes())
                bar.advance(batch.num_rows)
        tokens = file.tell() // 4
        count = tokens // block_size
        if count < 2:
            raise UserError(
                f"{corpora}: found {tokens} tokens, expected at least {2 * block_size}; see mlm.rows and mlm.block_size"
            )
        return np.memmap(file, dtype=np.int32, mode="r", shape=(count, block_size))


class Blocks:
    """The blocks of token ids [N, T] at some positions, as rows; the positions are their ids."""

    def __init__(self, blocks: np.ndarray, positions: np.ndarray) -> None:
        self._blocks, self.ids = blocks, positions

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: np.ndarray) -> Batch:
        """Return some of the blocks."""
        ids = torch.from_numpy(self._blocks[self.ids[rows]].astype(np.int64))
        return Batch(TASK, rows, ({"input_ids": ids},), None)


class BlockStream(BatchStream):
    """An endless stream of batches of blocks, which are of one length; every pass has an order of its own."""

    def _pass(self) -> list[np.ndarray]:
        order = torch.randperm(len(self.rows), generator=self._generator).numpy()
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]


class MlmObjective(StepObjective):
    """Cross entropy of the masked tokens of a batch of blocks, as an objective of `training.loop.Trainer`.

    Args:
        model: a masked-language model, on its device.
        mask: picks and masks.
        generator: that masks are drawn from.
        runtime: device and precision.
    """

    saved = ("_generator", "before")

    def __init__(self, model: nn.Module, mask: Mask, generator: torch.Generator, runtime: Runtime) -> None:
        self.model, self.runtime = model, runtime
        self._mask, self._generator = mask, generator
        self.before: float | None = None  # perplexity before the first update

    def __call__(self, *batches: Batch) -> list[Parts]:
        loss, _ = self._loss(batches[0], self._generator)
        return [Parts(loss, loss, {})]

    def perplexity(self, rows: Blocks, batch_size: int, seed: int, pause: Callable[[], None] = lambda: None) -> float:
        """Return exp of the mean cross entropy over the masked tokens of `rows`, masked the same way every time.

        `pause` is called after each batch.

        Words masked whole are harder to guess than tokens: numbers with and without `mlm.whole_word` don't compare.
        """
        masks_of = generator(seed, "mlm held-out masks")
        loss_sum, tokens = 0.0, 0
        self.model.eval()
        with torch.inference_mode(), progress("mlm: perplexity", total=len(rows)) as bar:
            for start in range(0, len(rows), batch_size):
                batch = rows.batch(np.arange(start, min(start + batch_size, len(rows))))
                loss, picked = self._loss(batch, masks_of, "sum")
                loss_sum += loss.item()
                tokens += picked
                bar.advance(len(batch.rows))
                pause()
        return math.exp(min(loss_sum / max(tokens, 1), 700.0))  # exp overflows above 709

    def _loss(self, batch: Batch, masks_of: torch.Generator, reduction: str = "mean") -> tuple[Tensor, int]:
        """Return cross entropy in float32 over the masked tokens, and how many they are; the head, a product with all
        words, works on these alone.

        Of a batch without any, such as a single short block, it is 0.
        """
        gold = batch.inputs[0]["input_ids"].cpu()
        ids, picked = self._mask(gold, of=masks_of)
        places = picked.flatten().nonzero().squeeze(1)
        labels, count = gold.flatten()[places], len(places)
        idle = -count % ROUND if count else ROUND
        reduction = reduction if count else "sum"  # there is nothing to divide by
        places = F.pad(places, (0, idle)).to(self.runtime.device)
        labels = F.pad(labels, (0, idle), value=NO_LABEL).to(self.runtime.device)
        with self.runtime.autocast(), _head_reads(self.model, places):
            logits = self.model(input_ids=ids.to(self.runtime.device)).logits
        logits = logits.flatten(0, 1).float()
        return F.cross_entropy(logits, labels, reduction=reduction, ignore_index=NO_LABEL), count


def build_trainer(
    model: nn.Module, blocks: np.ndarray, train: np.ndarray, mask: Mask, params: Params, runtime: Runtime
) -> Trainer:
    """Return the trainer of a masked-language model on the blocks at the positions `train`."""
    seed = params.runtime.seed
    rows: Any = Blocks(blocks, train)
    stream = BlockStream(rows, params.mlm.batch_size, generator(seed, "mlm order"))
    objective = MlmObjective(model, mask, generator(seed, "mlm masks"), runtime)
    return single_task_trainer(objective, TASK, stream, "mlm", params)


def _train(
    model: nn.Module, blocks: np.ndarray, tokenizer: Any, params: Params, runtime: Runtime, checkpoints: Checkpoints
) -> tuple[dict, dict]:
    options, seed = params.mlm, params.runtime.seed
    order = torch.randperm(len(blocks), generator=generator(seed, "mlm held out")).numpy()
    count = min(max(1, round(HELD_OUT * len(blocks))), len(blocks) - 1)
    held, train = np.sort(order[:count]), np.sort(order[count:])
    begins = word_beginnings(tokenizer) if options.whole_word else None
    mask = partial(mask_tokens, tokenizer=tokenizer, probability=options.mask_probability, begins=begins)
    trainer = build_trainer(model, blocks, train, mask, params, runtime)
    objective = cast(MlmObjective, trainer.objective)
    measured = Blocks(blocks, held), options.batch_size, seed, checkpoints.pause
    with checkpoints.resumed({"trainer": trainer}):
        trainer.checkpoint = checkpoints.after_step
        if objective.before is None:
            objective.before = objective.perplexity(*measured)
        scale = f"{len(blocks)} blocks, {trainer.total_steps} steps on {runtime.describe()}"
        say(f"mlm: {scale}; held-out perplexity {objective.before:.1f} before")
        for log in trainer.run("mlm"):
            checkpoints.after_step(log.step, force=True)
        after = objective.perplexity(*measured)
    say(f"mlm: held-out perplexity {after:.1f} after")
    perplexity = {"before": objective.before, "after": after}
    return {"blocks": len(blocks), "steps": trainer.total_steps, "perplexity": perplexity}, trainer.cost()


@contextmanager
def _head_reads(model: nn.Module, places: Tensor) -> Iterator[None]:
    """A context in which a masked-language model's head gets the hidden states at P `places` of B x T: [1, P, H]."""

    def at_places(_: nn.Module, given: Any, output: Any) -> Any:
        output["last_hidden_state"] = output.last_hidden_state.flatten(0, 1)[places].unsqueeze(0)
        return output

    body: Any = model.base_model
    hook = body.register_forward_hook(at_places)
    try:
        yield
    finally:
        hook.remove()


def mask_tokens(
    blocks: Tensor, tokenizer: Any, probability: float, of: torch.Generator, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Masks tokens for prediction: of those picked, 80 % become [MASK], 10 % a random token, 10 % stay.

    Devlin et al. 2019, section 3.1 and appendix A.1. With `begins`, whole words are picked: the draw of a word's first
    token decides for all of it, while the 80/10/10 stay a matter of each token, as in the authors' own later release
    (google-research/bert, create_pretraining_data.py, `do_whole_word_mask`). Departs from that release: each word is
    picked on its own with `probability`, where it shuffles the words and takes them until the share is reached, so the
    share is the same on average alone; and words are told apart by the tokenizer's marks, see `word_beginnings`.

    Args:
        blocks: [B, T] token ids.
        tokenizer: names the mask and the special tokens, which are never picked.
        probability: the share of tokens that are picked.
        of: the generator that everything is drawn from.
        begins: [V], which tokens begin a word; None picks tokens one by one.

    Returns:
        The changed ids [B, T], and which were picked [B, T].
    """
    special = torch.isin(blocks, torch.tensor(tokenizer.all_special_ids))
    draw = torch.rand(blocks.shape, generator=of)
    if begins is not None:
        draw = draw.gather(1, _first_of_word(blocks, special, begins))
    picked = (draw < probability) & ~special
    kind = torch.rand(blocks.shape, generator=of)
    random = torch.randint(len(tokenizer), blocks.shape, generator=of, dtype=blocks.dtype)
    masked = torch.where(picked & (kind < 0.8), tokenizer.mask_token_id, blocks)
    return torch.where(picked & (kind >= 0.9), random, masked), picked


def _first_of_word(blocks: Tensor, special: Tensor, begins: Tensor) -> Tensor:
    """For every place [B, T], that of the first token of its word. No word reaches over a special token or a block."""
    first = begins[blocks] | special
    first[:, 1:] |= special[:, :-1]
    first[:, 0] = True
    return torch.where(first, torch.arange(blocks.shape[1]), 0).cummax(dim=1).values


def word_beginnings(tokenizer: Any) -> Tensor:
    """Which tokens of the vocabulary begin a word: bool [V], by token id.

    WordPiece marks the tokens that continue a word ("##ing"), byte-level BPE ("Ġgood") and SentencePiece
    ("▁good") those that begin one; of the three, the mark that most tokens have is the tokenizer's. A WordPiece
    tokenizer has cut punctuation off before, so that it makes words of its own; with the others, which mark blanks,
    it belongs to the word that it is written to.

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
