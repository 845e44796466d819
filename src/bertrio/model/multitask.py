"""One encoder with a head for each task, and the folder of a saved model."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.config import Params, build_tasks
from bertrio.core.errors import UserError, need
from bertrio.core.files import whole_file, write_json
from bertrio.core.runtime import Runtime
from bertrio.core.tasks import HeadOutput, Target
from bertrio.model.config import CONFIG_FILE, ModelConfig, read_model_config
from bertrio.model.encoder import Encoder, Tokens, check_length, load_transformer, recompute_hidden_states
from bertrio.model.heads import build_heads
from bertrio.model.lora import add_lora

HEADS_FILE = "heads.safetensors"


@dataclass(frozen=True)
class TokenBlock:
    """Texts of one or several batches as one batch of tokens, for a single pass of the encoder.

    Args:
        tokens: the texts of all inputs, padded to the longest: [N, T].
        layout: for each batch its task, and the number of rows of each input (two inputs for a bi-encoded pair).
        text_groups: for each batch the name of its group: batches of a group have the same texts.
    """

    tokens: Tokens
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    text_groups: tuple[str, ...]

    @classmethod
    def from_batches(cls, batches: Sequence[tuple[str, tuple[Tokens, ...]]], groups: Sequence[str] = ()) -> TokenBlock:
        """Make a block of `(task, inputs)` of each batch; `groups` are its text groups, by default one each."""
        groups = tuple(groups) or tuple(task for task, _ in batches)
        parts = [tokens for _, inputs in dict(zip(groups, batches)).values() for tokens in inputs]
        layout = tuple((task, tuple(len(tokens["input_ids"]) for tokens in inputs)) for task, inputs in batches)
        if len(parts) == 1:
            return cls(parts[0], layout, groups)
        width = max(tokens["input_ids"].shape[1] for tokens in parts)
        # Any padding id will do, as the attention mask is padded with 0 as well
        padded = {
            name: torch.cat([F.pad(tokens[name], (0, width - tokens[name].shape[1])) for tokens in parts])
            for name in parts[0]
        }
        return cls(padded, layout, groups)

    def split(self, pooled: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the pooled vectors [B, H] of each input, by batch, for those of all texts [N, H]."""
        sizes = dict(zip(self.text_groups, (sizes for _, sizes in self.layout)))
        vectors = iter(pooled.split([rows for counts in sizes.values() for rows in counts]))
        by_group = {group: tuple(next(vectors) for _ in counts) for group, counts in sizes.items()}
        return [by_group[group] for group in self.text_groups]


class TaskHeads(nn.ModuleDict):
    """Heads by task, registered as `task_<name>` to avoid clashes with attributes of the module."""

    def __setitem__(self, task: str, head: nn.Module) -> None:
        self.add_module(f"task_{task}", head)

    def __getitem__(self, task: str) -> nn.Module:
        return self._modules[f"task_{task}"]

    def __contains__(self, task: str) -> bool:
        return f"task_{task}" in self._modules

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix("task_") for name in self._modules)

    def tensors(self, tasks: Iterable[str]) -> dict[str, Tensor]:
        """Return parameters and buffers of the heads of `tasks` as `<task>.<name>`, as in heads.safetensors."""
        return {f"{task}.{name}": value for task in tasks for name, value in self[task].state_dict().items()}


class MultitaskModel(nn.Module):
    """Shared encoder, with `heads` and `targets` by task name.

    Heads run in float32; the encoder may run under bf16 autocast. `state_dict()` contains layers that heads share once
    for each head, `parameters()` only once.
    """

    def __init__(
        self, encoder: Encoder, heads: dict[str, nn.Module], targets: dict[str, Target], runtime: Runtime
    ) -> None:
        super().__init__()
        self.encoder, self.heads, self.targets, self.runtime = encoder, TaskHeads(heads), targets, runtime
        self.to(runtime.device)

    def embed(self, tokens: Tokens) -> Tensor:
        """Return word embeddings [B, T, H]."""
        return self.encoder.embed(tokens)

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Return pooled vectors [B, H], in float32."""
        with self.runtime.autocast():
            pooled = self.encoder.encode(embeddings, tokens)
        return pooled.float()

    def from_embeddings(self, embeddings: Tensor, block: TokenBlock) -> list[HeadOutput]:
        """Return the outputs of each batch in `block` for word embeddings [N, T, H] of its tokens."""
        return self.from_pooled(self.encode(embeddings, block.tokens), block)

    def from_pooled(self, pooled: Tensor, block: TokenBlock) -> list[HeadOutput]:
        """Return the outputs of each batch in `block` for pooled vectors [N, H]."""
        return [self.heads[task](*vectors) for (task, _), vectors in zip(block.layout, block.split(pooled))]

    def forward(self, task: str, inputs: tuple[Tokens, ...]) -> HeadOutput:
        """Return the outputs of `task` for the inputs of a batch: one encoder pass, then the task's head."""
        block = TokenBlock.from_batches([(task, inputs)])
        return self.from_embeddings(self.embed(block.tokens), block)[0]


def build_model(params: Params, encoder_folder: str | Path, runtime: Runtime) -> MultitaskModel:
    """Build a model with the encoder in `encoder_folder` and new heads, initialised from the global generator."""
    options = params.encoder
    transformer = load_transformer(encoder_folder, options.dropout, options.attention_dropout)
    check_length(transformer.config, options.max_length, "encoder.max_length")
    if options.checkpointing:
        recompute_hidden_states(transformer)
    encoder, heads, targets = _parts(params, transformer, options.frozen)
    if options.lora.rank:  # after the heads, so that their initial weights do not depend on it
        add_lora(transformer, **options.lora.model_dump())
    return MultitaskModel(encoder, heads, targets, runtime)


def load_model(folder: str | Path, runtime: Runtime) -> MultitaskModel:
    """Load a model that `save_model` wrote, in evaluation mode; the global generators are unaffected.

    LoRA adapters are already merged into the encoder.

    Raises:
        UserError: if there is no such model, or a part of it is missing or damaged.
    """
    folder = Path(folder)
    heads = need(folder / HEADS_FILE)
    config = read_model_config(folder)
    with torch.random.fork_rng(devices=[]):  # initial weights are replaced below
        model = MultitaskModel(*_parts(config, load_transformer(folder / "encoder")), runtime)
    missing = sorted(model.heads.tensors(model.heads).keys() - load_heads(model, folder))
    if missing:
        raise UserError(f"{heads}: lacks {missing[0]}, which {CONFIG_FILE} names; run the finetune stage again")
    return model.eval()


def _parts(
    config: Params | ModelConfig, transformer: nn.Module, frozen: bool = False
) -> tuple[Encoder, dict[str, nn.Module], dict[str, Target]]:
    """Return the encoder, new heads and targets by task of the model that `config` describes."""
    encoder = Encoder(transformer, config.encoder.pooling, frozen)
    targets = {name: task.target for name, task in build_tasks(config).items()}
    specs = {name: task.head_spec(name, config.sharing) for name, task in config.tasks.items()}
    return encoder, build_heads(specs, encoder.size, config.sharing.layer, config.sharing.tasks), targets


def save_model(model: MultitaskModel, folder: str | Path, config: ModelConfig, tokenizer: str | Path) -> None:
    """Write a self-contained model folder: encoder/, heads.safetensors and bertrio.json.

    Args:
        model: the model.
        folder: folder to write.
        config: description of the model, for bertrio.json.
        tokenizer: the tokenizer's folder. Its files are copied to encoder/, where transformers expects them.
    """
    folder = Path(folder)
    model.encoder.save(folder / "encoder")
    for file in sorted(need(tokenizer).iterdir()):
        shutil.copyfile(file, folder / "encoder" / file.name)
    save_heads(model, list(model.heads), folder)
    write_json(folder / CONFIG_FILE, config.as_json(), digits=None)


def save_heads(model: MultitaskModel, tasks: list[str], folder: str | Path) -> None:
    """Write the heads of `tasks` to heads.safetensors."""
    heads = model.heads.tensors(tasks)
    with whole_file(Path(folder) / HEADS_FILE) as path:
        # clones: safetensors refuses tensors that share memory, as shared layers do
        save_file({name: value.detach().cpu().contiguous().clone() for name, value in heads.items()}, path)


def load_heads(model: MultitaskModel, folder: str | Path) -> set[str]:
    """Load the heads in heads.safetensors, if there is such a file, into `model`; its other heads are unchanged.

    Returns:
        Names of the tensors in the file.

    Raises:
        UserError: if the file is damaged, or the shape of one of its heads differs from the model's.
    """
    path = Path(folder) / HEADS_FILE
    if not path.exists():
        return set()
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: can't be loaded ({error}); run the stage that writes it again") from error
    broken = next((name for name, value in saved.items() if not value.isfinite().all()), None)
    if broken:
        raise UserError(f"{path}: is damaged, {broken} holds numbers that are not finite; run the stage again")
    for task in dict.fromkeys(name.partition(".")[0] for name in saved):
        state = {name.partition(".")[2]: value for name, value in saved.items() if name.startswith(f"{task}.")}
        try:
            model.heads[task].load_state_dict(state)
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"{path}: the head of task {task} there is not the one that params ask for: they must have the same "
                f"tasks.{task}.head and head_options, and the same sharing, in prefinetune and in every member"
            ) from error
    return set(saved)
