"""One encoder with a head for each task, and the folder that a trained model is saved in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertrio.errors import UserError
from bertrio.files import whole_file, write_json
from bertrio.model.encoder import Encoder, Tokens, check_length, load_transformer
from bertrio.model.heads import HeadSpec, build_heads
from bertrio.model.lora import add_lora
from bertrio.params import Params, build_tasks
from bertrio.runtime import Runtime
from bertrio.tasks import HeadOutput, Target


class MultitaskModel(nn.Module):
    """An encoder that all tasks share, and `heads` and `targets` by task name.

    Heads run in float32 on pooled vectors that may come out of bf16 autocast. Heads may share layers, whose parameters
    then stand in `state_dict()` once for each of them, and in `parameters()` once.
    """

    def __init__(
        self, encoder: Encoder, heads: dict[str, nn.Module], targets: dict[str, Target], runtime: Runtime
    ) -> None:
        super().__init__()
        self.encoder, self.heads, self.targets, self.runtime = encoder, nn.ModuleDict(heads), targets, runtime
        self.to(runtime.device)

    def embed(self, tokens: Tokens) -> Tensor:
        """Word embeddings [B, T, H]."""
        return self.encoder.embed(tokens)

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Pooled vectors [B, H], in float32."""
        with self.runtime.autocast():
            pooled = self.encoder.encode(embeddings, tokens)
        return pooled.float()

    def from_embeddings(self, task: str, embeddings: tuple[Tensor, ...], inputs: tuple[Tokens, ...]) -> HeadOutput:
        """The outputs of `task` from word embeddings [B, T, H] of each of `inputs`, which say the rest."""
        return self.heads[task](*[self.encode(of, tokens) for of, tokens in zip(embeddings, inputs)])

    def forward(self, task: str, inputs: tuple[Tokens, ...]) -> HeadOutput:
        """The outputs of `task` for a batch: one encoder pass for each of `inputs`, then the task's head."""
        return self.from_embeddings(task, tuple(self.embed(tokens) for tokens in inputs), inputs)


def build_model(params: Params, encoder_folder: str | Path, runtime: Runtime) -> MultitaskModel:
    """The model that `params` describes, the encoder from `encoder_folder`, fresh heads from the global generator."""
    options = params.encoder
    transformer = load_transformer(encoder_folder, options.dropout, options.attention_dropout)
    check_length(transformer.config, options.max_length, "encoder.max_length")
    for name in params.tasks:
        if hasattr(nn.ModuleDict, name):  # torch keeps such names for itself
            raise UserError(f"tasks.{name}: a task can't have this name; choose another")
    encoder = Encoder(transformer, options.pooling, options.frozen)
    targets = {name: task.target for name, task in build_tasks(params).items()}
    specs = {name: _head_spec(params, name, target) for name, target in targets.items()}
    shared = params.sharing.tasks if params.sharing.layer != "none" else ()
    heads = build_heads(specs, encoder.size, params.sharing.layer, shared)
    if options.lora.rank:  # after the heads, so that they start alike with and without
        add_lora(encoder.transformer, **options.lora.model_dump())
    return MultitaskModel(encoder, heads, targets, runtime)


def _head_spec(params: Params, name: str, target: Target) -> HeadSpec:
    task = params.tasks[name]
    return HeadSpec(task.head, target, target.outputs_for(task.loss), task.dropout, task.head_options.given())


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
        # clones: safetensors refuses tensors that share memory, as shared layers do
        save_file({name: value.detach().cpu().contiguous().clone() for name, value in heads.state_dict().items()}, path)


def load_heads(model: MultitaskModel, folder: str | Path) -> None:
    """Puts the heads in heads.safetensors, if there is such a file, into `model`; its other heads stay as they are."""
    path = Path(folder) / "heads.safetensors"
    if path.exists():
        _, unexpected = model.heads.load_state_dict(load_file(path), strict=False)
        assert not unexpected, unexpected
