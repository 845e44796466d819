"""Tokenizers: the encoder's own, or a WordPiece vocabulary trained on the texts at hand for `tiny`."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertrio.errors import need
from bertrio.model.names import source_of
from bertrio.params import EncoderParams

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def build_tokenizer(params: EncoderParams, texts: Iterable[str], folder: str | Path) -> Any:
    """Saves the encoder's tokenizer to `folder` and returns it (a transformers fast tokenizer).

    Args:
        params: the `encoder` group; `name` decides where the tokenizer comes from.
        texts: what the vocabulary of `tiny` is trained on; not read for other encoders.
        folder: where tokenizer.json goes; later stages load it from there.

    Raises:
        UserError: if the encoder has no tokenizer that loads.
    """
    if params.name == "tiny":
        tokenizer = _train_wordpiece(texts, params.tiny.vocab_size)
    else:
        from transformers import AutoTokenizer

        with source_of(params.name, params.revision) as source:
            tokenizer = AutoTokenizer.from_pretrained(source, revision=params.revision)
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer that `build_tokenizer` saved."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(need(folder)))


def _train_wordpiece(texts: Iterable[str], vocab_size: int) -> Any:
    """A lower-casing BERT tokenizer whose vocabulary depends on the texts alone.

    The trainer numbers continuation pieces in the order in which its hash map yields the words, which changes from
    process to process, and breaks ties of merges by those numbers. Giving the one-letter pieces fixed numbers up
    front takes the chance out of it.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizerFast

    texts = list(texts)
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    letters = sorted(set(string.ascii_lowercase + string.digits).union(*map(normalizer.normalize_str, texts)) - {" "})
    pieces = [f"##{letter}" for letter in letters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL + letters + pieces, show_progress=False, min_frequency=2
    )
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = normalizer, splitter
    raw.train_from_iterator(texts, trainer)
    return BertTokenizerFast(vocab=raw.get_vocab(), do_lower_case=True, model_max_length=512)
