"""Masked-language-model pretraining of the encoder on unlabelled text (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.console import progress, say
from bertrio.errors import UserError, need
from bertrio.model.dropout import draw_bits
from bertrio.model.encoder import Encoder, check_length, initial_language_model, initial_transformer
from bertrio.model.tokenizer import load_tokenizer
from bertrio.params import Params
from bertrio.runtime import Runtime, generator
from bertrio.training.optimizer import build_lr_schedule, build_optimizer, clip_gradients

Mask = Callable[..., tuple[Tensor, Tensor]]  # `mask_tokens` with all but the blocks and the generator filled in
WORD_MARKS = {"##": "continues", "Ġ": "begins", "▁": "begins"}  # WordPiece, byte-level BPE, SentencePiece


def pretrain_mlm(
    params: Params, runtime: Runtime, corpora: str, tokenizer_folder: str, folder: str
) -> tuple[dict, dict]:
    """Writes the encoder that the pipeline starts from to `folder`, pretrained on the corpora if `mlm.enabled`.

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
    transformer = initial_transformer(params.encoder, len(tokenizer))
    Encoder(transformer, params.encoder.pooling)  # says now, not after hours, if there is no such pooling
    check_length(transformer.config, params.encoder.max_length, "encoder.max_length")
    metrics: dict[str, Any] = {"enabled": params.mlm.enabled}
    timing: dict[str, Any] = {}
    if params.mlm.enabled:
        check_length(transformer.config, params.mlm.block_size, "mlm.block_size")
        model, own_head = initial_language_model(params.encoder, len(tokenizer))
        draw_bits(model)
        metrics["head"] = "checkpoint" if own_head else "fresh"
        say(f"mlm: the language-model head is {'that of the checkpoint' if own_head else 'fresh'}")
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=Path(folder).parent, prefix=".blocks-") as scratch:
            blocks = token_blocks(corpora, tokenizer, params.mlm.block_size, Path(scratch) / "tokens")
            learned, timing = _train(model.to(runtime.device), blocks, tokenizer, params, runtime)
        metrics.update(learned)
        # strict=False: masked-language models come without the pooler, which stays as it was
        _, unexpected = transformer.load_state_dict(model.base_model.state_dict(), strict=False)
        assert not unexpected, unexpected
    transformer.save_pretrained(str(folder))
    return metrics, timing


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
    mark = max(marked, key=marked.get)
    if not marked[mark]:
        raise UserError(
            f"mlm.whole_word: found no token in this encoder's vocabulary that begins with {', '.join(WORD_MARKS)}, "
            "expected one of them to mark where words begin or continue; set mlm.whole_word to false"
        )
    begins = np.ones(max(vocabulary.values()) + 1, dtype=bool)
    for token, index in vocabulary.items():
        begins[index] = token.startswith(mark) == (WORD_MARKS[mark] == "begins")
    return torch.from_numpy(begins)


def _train(model: nn.Module, blocks: np.ndarray, tokenizer: Any, params: Params, runtime: Runtime) -> tuple[dict, dict]:
    options, seed = params.mlm, params.runtime.seed
    order = torch.randperm(len(blocks), generator=generator(seed, "mlm held out")).numpy()
    count = min(max(1, round(options.held_out * len(blocks))), len(blocks) - 1)
    held, train = np.sort(order[:count]), np.sort(order[count:])
    per_epoch = math.ceil(len(train) / options.batch_size)
    total = min(options.epochs * per_epoch, options.max_steps or options.epochs * per_epoch)
    begins = word_beginnings(tokenizer) if options.whole_word else None
    mask = partial(mask_tokens, tokenizer=tokenizer, probability=options.mask_probability, begins=begins)
    before = perplexity(model, blocks, held, mask, options.batch_size, seed, runtime)
    say(f"mlm: {len(blocks)} blocks, {total} steps on {runtime.describe()}; held-out perplexity {before:.1f} before")
    began = time.perf_counter()
    _fit(model, blocks, train, total, mask, params, runtime)
    seconds = time.perf_counter() - began
    after = perplexity(model, blocks, held, mask, options.batch_size, seed, runtime)
    say(f"mlm: held-out perplexity {after:.1f} after")
    metrics = {"blocks": len(blocks), "steps": total, "perplexity": {"before": before, "after": after}}
    return metrics, {"rows_per_second": total * options.batch_size / seconds, "steps": total}


def _fit(
    model: nn.Module,
    blocks: np.ndarray,
    train: np.ndarray,
    total: int,
    mask: Mask,
    params: Params,
    runtime: Runtime,
) -> None:
    options, seed = params.mlm, params.runtime.seed
    optimizer = build_optimizer(model, params.optimizer, options.lr * params.encoder.lr_factor)
    per_epoch = math.ceil(len(train) / options.batch_size)
    ends = [per_epoch * (epoch + 1) for epoch in range(options.epochs)]
    lr_schedule = build_lr_schedule(optimizer, params.optimizer, total, ends)
    order_of, masks_of = generator(seed, "mlm order"), generator(seed, "mlm masks")
    order = np.empty(0, dtype=np.int64)
    model.train()
    with progress("mlm", total=total) as bar:
        for _ in range(total):
            if not len(order):
                order = train[torch.randperm(len(train), generator=order_of).numpy()]
            rows, order = order[: options.batch_size], order[options.batch_size :]
            ids, picked = mask(_ids(blocks, rows), of=masks_of)
            loss = _loss(model, ids, picked, _ids(blocks, rows), runtime)
            if not math.isfinite(loss.item()):
                raise UserError(f"the masked-language-model loss is {loss.item()}; try a lower mlm.lr")
            loss.backward()
            clip_gradients(model, params.optimizer.max_grad_norm)
            optimizer.step()
            lr_schedule.step()
            optimizer.zero_grad(set_to_none=True)
            bar.advance(note=f"loss {loss.item():.3f}")


def perplexity(
    model: nn.Module,
    blocks: np.ndarray,
    rows: np.ndarray,
    mask: Mask,
    batch_size: int,
    seed: int,
    runtime: Runtime,
) -> float:
    """exp of the mean cross entropy over the masked tokens of `rows`, which are masked the same way every time.

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
    return math.exp(min(loss_sum / max(tokens, 1), 700.0))  # exp overflows above 709


def _ids(blocks: np.ndarray, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(blocks[rows].astype(np.int64))


def _loss(
    model: nn.Module, ids: Tensor, picked: Tensor, gold: Tensor, runtime: Runtime, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in float32 over the picked tokens."""
    with runtime.autocast():
        logits = model(input_ids=ids.to(runtime.device)).logits
    labels = gold[picked].to(runtime.device)
    return F.cross_entropy(logits[picked.to(runtime.device)].float(), labels, reduction=reduction)
