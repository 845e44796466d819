"""The encoder: any `AutoModel` of transformers that maps tokens to hidden states; loading and saving."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertrio.config import EncoderParams
from bertrio.core.errors import UserError, need
from bertrio.model.attention import cheap_dropout
from bertrio.model.lora import merged_weights
from bertrio.model.names import encoder_source, loading
from bertrio.model.pooling import POOLINGS
from bertrio.model.tiny import start_by_matching, tiny_config

Tokens = dict[str, Tensor]

MANY_WORDS = 8192  # vocabulary size from which sparse gradients pay off: a batch has hundreds of words

# Names of the two rates in the architectures. Embeddings, layers and pooler share the first.
DROPOUT_FIELDS = (
    "hidden_dropout_prob", "dropout", "hidden_dropout", "embedding_dropout", "mlp_dropout", "pooler_dropout",
)  # fmt: skip
ATTENTION_DROPOUT_FIELDS = ("attention_probs_dropout_prob", "attention_dropout")


class Encoder(nn.Module):
    """Transformer and pooling: tokens -> word embeddings -> hidden states -> one vector for each text.

    `embed` and `encode` are separate, so that a regularizer can perturb the word embeddings in between. `encode` passes
    them as `inputs_embeds`, to which the transformer adds positions, token types and LayerNorm.

    Args:
        transformer: an encoder of transformers.
        pooling: `cls`, `mean` or `pooler`.
        frozen: use the encoder as a fixed feature extractor, without gradients and dropout.

    Raises:
        UserError: if the architecture takes no attention mask or, for pooling `pooler`, has no pooler.
    """

    def __init__(self, transformer: Any, pooling: str, frozen: bool = False) -> None:
        super().__init__()
        pooler = getattr(transformer, "pooler", None)
        if pooling == "pooler" and pooler is None:
            kind = transformer.config.model_type
            raise UserError(f"encoder.pooling: {kind} models have no pooler; use cls or mean")
        cheap_dropout(transformer)
        self.transformer, self.pooling, self.frozen = transformer, POOLINGS[pooling], frozen
        self._accepts = set(inspect.signature(transformer.forward).parameters)
        if "attention_mask" not in self._accepts:
            kind = transformer.config.model_type
            raise UserError(f"encoder.name: {kind} models take no attention mask, so padding would change predictions")
        if getattr(transformer.config, "type_vocab_size", 2) == 1:  # its tokenizer may give two types
            self._accepts.discard("token_type_ids")
        if frozen:
            self.requires_grad_(False)
        elif pooler is not None and pooling != "pooler":
            pooler.requires_grad_(False)  # unused here, but part of the saved encoder

    @property
    def size(self) -> int:
        """Width H of hidden states and pooled vectors."""
        return self.transformer.config.hidden_size

    def train(self, mode: bool = True) -> Encoder:
        return super().train(mode and not self.frozen)

    def embed(self, tokens: Tokens) -> Tensor:
        """Return word embeddings [B, T, H], before positions and token types.

        On the CPU the gradient of a large embedding matrix is sparse, as a batch uses about a hundredth of its rows. A
        dense one has to be allocated, zeroed, accumulated and measured, up to a fifth of a small encoder's step. On a
        GPU and for small vocabularies this cost is negligible, and on a GPU sparse gradients need synchronisation.
        """
        words = self.transformer.get_input_embeddings()
        if type(words) is nn.Embedding:  # subclasses may do more than a lookup
            words.sparse = words.weight.is_cpu and words.num_embeddings >= MANY_WORDS
        return words(tokens["input_ids"])

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Return pooled vectors [B, H] for word embeddings [B, T, H]."""
        extra = {name: value for name, value in tokens.items() if name != "input_ids" and name in self._accepts}
        return self.pooling(self.transformer(inputs_embeds=embeddings, **extra), tokens["attention_mask"])

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which `AutoModel.from_pretrained` loads; adapters are merged in."""
        from transformers import logging

        logging.disable_progress_bar()  # writing is too fast for a progress bar
        with merged_weights(self.transformer) as weights:
            self.transformer.save_pretrained(str(folder), state_dict=weights)


def load_transformer(folder: str | Path, dropout: float | None = None, attention_dropout: float | None = None) -> Any:
    """Return an encoder from a folder with config.json and safetensors weights, in float32.

    Args:
        folder: a folder written by `Encoder.save` or `save_pretrained`.
        dropout, attention_dropout: new rates; None keeps those of the checkpoint.

    Raises:
        UserError: if the folder is missing or damaged.
    """
    from transformers import AutoConfig, AutoModel

    with loading(need(folder)):
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        set_dropout(config, dropout, attention_dropout)
        return _from_folder(AutoModel, str(folder), config=config)[0]


def initial_transformer(params: EncoderParams, vocab_size: int) -> Any:
    """Return the encoder that the pipeline starts from: fresh for `tiny`, else from its folder or the hub.

    Args:
        params: the `encoder` group.
        vocab_size: vocabulary size of the tokenizer.

    Raises:
        UserError: if the weights can't be loaded, do not fit the config, or have fewer embeddings than the tokenizer
            has tokens.
    """
    from transformers import AutoModel

    return _initial(params, vocab_size, AutoModel)[0]


def initial_language_model(params: EncoderParams, vocab_size: int) -> tuple[Any, bool]:
    """Return the same encoder with a masked-language-model head, and whether all of the head is from the checkpoint.

    Tensors of the head that the checkpoint lacks are initialised at random. Arguments and errors are those of
    `initial_transformer`.
    """
    from transformers import AutoModelForMaskedLM

    model, missing = _initial(params, vocab_size, AutoModelForMaskedLM)
    body = f"{model.base_model_prefix}."
    return model, all(name.startswith(body) for name in missing)


def _initial(params: EncoderParams, vocab_size: int, auto_class: Any) -> tuple[Any, set[str]]:
    """Return the model of `auto_class`, and the names of its tensors that are not from a checkpoint."""
    if params.name == "tiny":
        model = auto_class.from_config(tiny_config(params.tiny, vocab_size))
        start_by_matching(model.base_model)
        return model, set(model.state_dict())
    with encoder_source(params.name, params.revision, "weights") as source:
        model, missing = _from_folder(auto_class, source)
    rows = model.get_input_embeddings().num_embeddings
    if rows < vocab_size:
        raise UserError(
            f"encoder.name: {params.name} has {rows} token embeddings, but its tokenizer {vocab_size} tokens"
        )
    return model, missing


def _from_folder(auto_class: Any, folder: str, **options: Any) -> tuple[Any, set[str]]:
    """Return the model in a folder in float32, and the names of head and pooler tensors that the folder lacks.

    Raises:
        ValueError: if tensors of the encoder are missing or their shapes differ from the config. Transformers would
            initialise them at random, with a warning in the log at most.
    """
    model, report = auto_class.from_pretrained(
        folder,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **options,
    )
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    body = {prefix + name for name in model.base_model.state_dict() if "pooler" not in name}
    misfits = body.intersection(report["missing_keys"]).union(name for name, *_ in report["mismatched_keys"])
    if misfits:
        raise ValueError(f"config.json does not fit the weights: {len(misfits)} tensors, such as {min(misfits)}")
    return model, set(report["missing_keys"])


def recompute_hidden_states(transformer: Any) -> None:
    """Recompute hidden states inside layers in the backward pass instead of storing them (Chen et al. 2016).

    Raises:
        UserError: if the architecture does not support it.
    """
    if not transformer.supports_gradient_checkpointing:
        raise UserError(f"encoder.checkpointing: {transformer.config.model_type} models can't do that; set it to false")
    # the older name is removed in transformers 6, the newer one is missing in early versions of 5
    name = "activation" if hasattr(transformer, "activation_checkpointing_enable") else "gradient"
    getattr(transformer, f"{name}_checkpointing_enable")({"use_reentrant": False})


def check_length(config: Any, tokens: int, param: str) -> None:
    """Check that the architecture has positions for texts of `tokens` tokens.

    Raises:
        UserError: if it has fewer; the message names `param`.
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not limit or getattr(config, "position_biased_input", True) is False:  # DeBERTa-v3 has only relative positions
        return
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        limit -= config.pad_token_id + 1  # their positions start after the padding id
    if tokens > limit:
        raise UserError(f"{param}: found {tokens}, but this encoder has positions for {limit} tokens at most")


def set_dropout(config: Any, dropout: float | None, attention_dropout: float | None) -> None:
    """Set the dropout rates in the config of any architecture; None leaves a rate unchanged."""
    for fields, value in ((DROPOUT_FIELDS, dropout), (ATTENTION_DROPOUT_FIELDS, attention_dropout)):
        for field in fields:
            if value is not None and hasattr(config, field):
                setattr(config, field, value)
