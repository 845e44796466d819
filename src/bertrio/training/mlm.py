"""Masked-language-model pretraining of the encoder on unlabelled text (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.console import progress, say
from bertrio.errors import UserError, need
from bertrio.model.encoder import Encoder, check_length, initial_transformer
from bertrio.model.tokenizer import load_tokenizer
from bertrio.params import MlmParams, Params
from bertrio.runtime import Runtime, generator
from bertrio.training.optimizer import build_lr_schedule, build_optimizer, clip_gradients


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
        The stage's metrics (perplexity on held-out blocks before and after), and what its timing file reports.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    transformer = initial_transformer(params.encoder, len(tokenizer))
    Encoder(transformer, params.encoder.pooling)  # says now, not after hours, if there is no such pooling
    check_length(transformer.config, params.encoder.max_length, "encoder.max_length")
    metrics: dict[str, Any] = {"enabled": params.mlm.enabled}
    timing: dict[str, Any] = {}
    if params.mlm.enabled:
        from transformers import AutoModelForMaskedLM

        check_length(transformer.config, params.mlm.block_size, "mlm.block_size")
        model = initial_transformer(params.encoder, len(tokenizer), AutoModelForMaskedLM).to(runtime.device)
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=Path(folder).parent, prefix=".blocks-") as scratch:
            blocks = token_blocks(corpora, tokenizer, params.mlm.block_size, Path(scratch) / "tokens")
            learned, timing = _train(model, blocks, tokenizer, params, runtime)
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


def mask_tokens(blocks: Tensor, tokenizer: Any, probability: float, of: torch.Generator) -> tuple[Tensor, Tensor]:
    """Masks tokens for prediction: of those picked, 80 % become [MASK], 10 % a random token, 10 % stay.

    Args:
        blocks: [B, T] token ids.
        tokenizer: names the mask and the special tokens, which are never picked.
        probability: the share of tokens that are picked.
        of: the generator that everything is drawn from.

    Returns:
        The changed ids [B, T], and which were picked [B, T].
    """
    special = torch.isin(blocks, torch.tensor(tokenizer.all_special_ids))
    picked = (torch.rand(blocks.shape, generator=of) < probability) & ~special
    kind = torch.rand(blocks.shape, generator=of)
    random = torch.randint(len(tokenizer), blocks.shape, generator=of, dtype=blocks.dtype)
    masked = torch.where(picked & (kind < 0.8), tokenizer.mask_token_id, blocks)
    return torch.where(picked & (kind >= 0.9), random, masked), picked


def _train(model: nn.Module, blocks: np.ndarray, tokenizer: Any, params: Params, runtime: Runtime) -> tuple[dict, dict]:
    options, seed = params.mlm, params.runtime.seed
    order = torch.randperm(len(blocks), generator=generator(seed, "mlm held out")).numpy()
    count = min(max(1, round(options.held_out * len(blocks))), len(blocks) - 1)
    held, train = np.sort(order[:count]), np.sort(order[count:])
    per_epoch = math.ceil(len(train) / options.batch_size)
    total = min(options.epochs * per_epoch, options.max_steps or options.epochs * per_epoch)
    before = perplexity(model, blocks, held, tokenizer, options, seed, runtime)
    say(f"mlm: {len(blocks)} blocks, {total} steps on {runtime.describe()}; held-out perplexity {before:.1f} before")
    began = time.perf_counter()
    _fit(model, blocks, train, total, tokenizer, params, runtime)
    seconds = time.perf_counter() - began
    after = perplexity(model, blocks, held, tokenizer, options, seed, runtime)
    say(f"mlm: held-out perplexity {after:.1f} after")
    metrics = {"blocks": len(blocks), "steps": total, "perplexity": {"before": before, "after": after}}
    return metrics, {"rows_per_second": total * options.batch_size / seconds, "steps": total}


def _fit(
    model: nn.Module,
    blocks: np.ndarray,
    train: np.ndarray,
    total: int,
    tokenizer: Any,
    params: Params,
    runtime: Runtime,
) -> None:
    options, seed = params.mlm, params.runtime.seed
    optimizer = build_optimizer(model, params.optimizer, options.lr * params.encoder.lr_factor)
    lr_schedule = build_lr_schedule(optimizer, params.optimizer, total)
    order_of, masks_of = generator(seed, "mlm order"), generator(seed, "mlm masks")
    order = np.empty(0, dtype=np.int64)
    model.train()
    with progress("mlm", total=total) as bar:
        for _ in range(total):
            if not len(order):
                order = train[torch.randperm(len(train), generator=order_of).numpy()]
            rows, order = order[: options.batch_size], order[options.batch_size :]
            ids, picked = _masked(blocks, rows, tokenizer, options, masks_of)
            loss = _loss(model, ids, picked, blocks[rows], runtime)
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
    tokenizer: Any,
    options: MlmParams,
    seed: int,
    runtime: Runtime,
) -> float:
    """exp of the mean cross entropy over the masked tokens of `rows`, which are masked the same way every time."""
    masks_of = generator(seed, "mlm held-out masks")
    loss_sum, tokens = 0.0, 0
    model.eval()
    with torch.inference_mode(), progress("mlm: perplexity", total=len(rows)) as bar:
        for start in range(0, len(rows), options.batch_size):
            batch = rows[start : start + options.batch_size]
            ids, picked = _masked(blocks, batch, tokenizer, options, masks_of)
            loss_sum += _loss(model, ids, picked, blocks[batch], runtime, "sum").item()
            tokens += int(picked.sum())
            bar.advance(len(batch))
    return math.exp(min(loss_sum / max(tokens, 1), 700.0))  # exp overflows above 709


def _masked(
    blocks: np.ndarray, rows: np.ndarray, tokenizer: Any, options: MlmParams, of: torch.Generator
) -> tuple[Tensor, Tensor]:
    return mask_tokens(torch.from_numpy(blocks[rows].astype(np.int64)), tokenizer, options.mask_probability, of)


def _loss(
    model: nn.Module, ids: Tensor, picked: Tensor, gold: np.ndarray, runtime: Runtime, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in float32 over the picked tokens."""
    with runtime.autocast():
        logits = model(input_ids=ids.to(runtime.device)).logits
    labels = torch.from_numpy(gold.astype(np.int64))[picked].to(runtime.device)
    return F.cross_entropy(logits[picked.to(runtime.device)].float(), labels, reduction=reduction)
