"""Peer: a plain training loop around transformers' AutoModel, with SMART of smart-pytorch or PCGrad of TorchJD.

It reads the same batches as ours, so that only the step differs. With `--shuffled` rows come in random order and are
padded batch by batch, which is common practice. `plain` is the baseline of both methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from case import Clock, case_parser, load, training_rows, write_result
from torch import Tensor, nn
from transformers import AutoModel

from bertrio.training.build import build_streams

LOSSES = {
    "sst": F.cross_entropy,
    "qqp": lambda logits, labels: F.binary_cross_entropy_with_logits(logits.squeeze(1), labels),
    "sts": lambda logits, labels: F.mse_loss(logits.squeeze(1), labels),
}


class Model(nn.Module):
    """Encoder, mean of its hidden states, dropout, and a linear layer for each task."""

    def __init__(self, encoder: nn.Module, sizes: dict[str, int]) -> None:
        super().__init__()
        self.encoder, self.dropout = encoder, nn.Dropout(0.1)
        self.heads = nn.ModuleDict({task: nn.Linear(encoder.config.hidden_size, n) for task, n in sizes.items()})

    def pooled(self, tokens: dict[str, Tensor], embeddings: Tensor | None = None) -> Tensor:
        """Return the mean over the tokens without padding, [B, H]."""
        if embeddings is None:
            embeddings = self.encoder.get_input_embeddings()(tokens["input_ids"])
        rest = {name: value for name, value in tokens.items() if name != "input_ids"}
        hidden = self.encoder(inputs_embeds=embeddings, **rest).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        return (hidden * mask).sum(1) / mask.sum(1)

    def head(self, task: str, pooled: Tensor) -> Tensor:
        """Return the logits of a task, [B, size]."""
        return self.heads[task](self.dropout(pooled)).float()


def plain(model: Model, batches: Sequence[Any], autocast: Any) -> None:
    """Backpropagate the sum of the losses, with one pass per task."""
    for batch in batches:
        with autocast():
            loss = LOSSES[batch.task](model.head(batch.task, model.pooled(batch.inputs[0])), batch.labels)
        loss.backward()


def smart(model: Model, batches: Sequence[Any], autocast: Any) -> None:
    """Backpropagate a loss with SMART on word embeddings, as in the README of smart-pytorch."""
    from smart_pytorch import SMARTLoss, kl_loss, sym_kl_loss

    (batch,) = batches
    tokens = batch.inputs[0]
    with autocast():
        embeddings = model.encoder.get_input_embeddings()(tokens["input_ids"])

        def evaluate(embeddings: Tensor) -> Tensor:
            return model.head(batch.task, model.pooled(tokens, embeddings))

        logits = evaluate(embeddings)
        penalty = SMARTLoss(evaluate, kl_loss, sym_kl_loss, num_steps=1)(embeddings, logits)
        loss = LOSSES[batch.task](logits, batch.labels) + 0.02 * penalty
    loss.backward()


def pcgrad(model: Model, batches: Sequence[Any], autocast: Any) -> None:
    """Set gradients by TorchJD's PCGrad over the encoder's parameters, which all tasks share."""
    from torchjd.aggregation import PCGrad
    from torchjd.autojac import jac_to_grad, mtl_backward

    losses, features = [], []
    with autocast():
        for batch in batches:
            features.append(model.pooled(batch.inputs[0]))
            losses.append(LOSSES[batch.task](model.head(batch.task, features[-1]), batch.labels))
    mtl_backward(losses, features)
    jac_to_grad([p for p in model.encoder.parameters() if getattr(p, "jac", None) is not None], PCGrad())


STEPS = {"plain": plain, "smart": smart, "pcgrad": pcgrad}


def shuffled(rows: Any, size: int, seed: int) -> Iterator[Any]:
    """Yield full batches of rows in random order, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).numpy()
        yield from (rows.batch(order[start : start + size]) for start in range(0, len(order) - size + 1, size))


def train(args: Any) -> dict[str, Any]:
    """Time steps of the loop on a batch of each task."""
    params, runtime = load(args)
    rows = training_rows(args, params)
    streams = build_streams(rows, params)
    if args.shuffled:
        streams = {task: shuffled(rows[task], params.tasks[task].batch_size, args.seed) for task in rows}
    encoder = AutoModel.from_pretrained(str(args.work / "models/encoder"), dtype=torch.float32)
    model = Model(encoder, {task: rows[task].task.target.size for task in rows}).to(runtime.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.finetune.lr, fused=True)
    row_count = 0
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: row_count)
    for step in range(1, params.finetune.max_steps + 1):
        batches = [next(streams[task]).to(runtime.device) for task in rows]
        STEPS[args.method](model, batches, runtime.autocast)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        row_count += sum(len(batch.rows) for batch in batches)
        clock(step)
    return clock.measured() | {"runtime": runtime.describe()}


def main() -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--method", choices=list(STEPS), required=True)
    parser.add_argument("--shuffled", action="store_true", help="batches of rows of any length")
    args = parser.parse_args()
    write_result(args, train(args))


if __name__ == "__main__":
    main()
