"""One encoder with a head for each task, and the folder that a trained model is saved in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertrio.errors import UserError
from bertrio.files import whole_file, write_json
from bertrio.model.encoder import Encoder, Tokens, check_length, load_transformer
from bertrio.model.heads import HEADS, HeadOutput
from bertrio.params import Params, build_tasks
from bertrio.runtime import Runtime


class MultitaskModel(nn.Module):
    """An encoder that all tasks share, and `heads` by task name.

    Heads run in float32 on pooled vectors that may come out of bf16 autocast.
    """

    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module], runtime: Runtime) -> None:
        super().__init__()
        self.encoder, self.heads, self.runtime = encoder, nn.ModuleDict(heads), runtime
        self.to(runtime.device)

    def embed(self, tokens: Tokens) -> Tensor:
        """Word embeddings [B, T, H]."""
        return self.encoder.embed(tokens)

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Pooled vectors [B, H], in float32."""
        with self.runtime.autocast():
            pooled = self.encoder.encode(embeddings, tokens)
        return pooled.float()

    def forward(self, task: str, inputs: tuple[Tokens, ...]) -> HeadOutput:
        """The outputs of `task` for a batch: one encoder pass for each of `inputs`, then the task's head."""
        return self.heads[task](*[self.encode(self.embed(tokens), tokens) for tokens in inputs])


def build_model(params: Params, encoder_folder: str | Path, runtime: Runtime) -> MultitaskModel:
    """The model that `params` describes, the encoder from `encoder_folder`, fresh heads from the global generator."""
    options = params.encoder
    transformer = load_transformer(encoder_folder, options.dropout, options.attention_dropout)
    check_length(transformer.config, options.max_length, "encoder.max_length")
    for name in params.tasks:
        if hasattr(nn.ModuleDict, name):  # torch keeps such names for itself
            raise UserError(f"tasks.{name}: a task can't have this name; choose another")
    encoder = Encoder(transformer, options.pooling, options.frozen)
    heads = {
        name: HEADS[params.tasks[name].head](encoder.size, task.target.size, params.tasks[name].dropout)
        for name, task in build_tasks(params).items()
    }
    return MultitaskModel(encoder, heads, runtime)


def save_model(model: MultitaskModel, folder: str | Path, about: dict[str, Any]) -> None:
    """Writes encoder/ (a transformers folder), heads.safetensors and bertrio.json (`about`: what the model is)."""
    folder = Path(folder)
    model.encoder.save(folder / "encoder")
    save_heads(model, list(model.heads), folder)
    write_json(folder / "bertrio.json", about)


def save_heads(model: MultitaskModel, tasks: list[str], folder: str | Path) -> None:
    """Writes the heads of `tasks` to heads.safetensors."""
    heads = nn.ModuleDict({task: model.heads[task] for task in tasks})
    with whole_file(Path(folder) / "heads.safetensors") as path:
        save_file({name: value.detach().cpu().contiguous() for name, value in heads.state_dict().items()}, path)


def load_heads(model: MultitaskModel, folder: str | Path) -> None:
    """Puts the heads in heads.safetensors, if there is such a file, into `model`; its other heads stay as they are."""
    path = Path(folder) / "heads.safetensors"
    if path.exists():
        _, unexpected = model.heads.load_state_dict(load_file(path), strict=False)
        assert not unexpected, unexpected
