"""Tokenizers: that of the encoder, or for `tiny` a WordPiece vocabulary trained on the training texts."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from bertrio.config import EncoderParams
from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json, write_json
from bertrio.model.names import encoder_source, loading, local_folder

OVERLONG = re.compile(r"(\S{1000})(?=\S)")  # longer than any word; WordPiece replaces more than 100 letters by [UNK]
SOURCE = "source.json"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def build_tokenizer(params: EncoderParams, texts: Iterable[str], folder: str | Path) -> Any:
    """Save the encoder's tokenizer to `folder` and return it (a transformers fast tokenizer).

    Args:
        params: the `encoder` group; `name` selects the tokenizer.
        texts: training texts for the vocabulary of `tiny`, read twice; ignored for other encoders.
        folder: folder for tokenizer.json, which later stages load. For a hub id, source.json holds its commit, so that
            later stages load the same one, see `pinned`.

    Raises:
        UserError: if the encoder's tokenizer is missing or can't be loaded.
    """
    if params.name == "tiny":
        tokenizer = _train_wordpiece(texts, params.tiny.vocab_size)
    else:
        from transformers import AutoTokenizer

        with encoder_source(params.name, params.revision, "tokenizer") as source:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if local_folder(params.name) is None:
            write_json(Path(folder) / SOURCE, {"id": params.name, "commit": Path(source).name})
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def pinned(params: EncoderParams, folder: str | Path) -> EncoderParams:
    """Return `params` with `revision` set to the commit of the tokenizer in `folder`, if that is from the hub."""
    source = Path(folder) / SOURCE
    return params.model_copy(update={"revision": read_json(source)["commit"]}) if source.is_file() else params


def load_tokenizer(folder: str | Path) -> Any:
    """Return the tokenizer that `build_tokenizer` saved.

    Raises:
        UserError: if it is missing or damaged, or has no padding token.
    """
    from transformers import AutoTokenizer

    need(Path(folder) / "tokenizer.json")  # without it transformers makes a tokenizer without words
    with loading(folder):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no padding token; choose an encoder whose tokenizer has one")
    return tokenizer


def _train_wordpiece(texts: Iterable[str], vocab_size: int) -> Any:
    """Train a lower-casing BERT tokenizer whose vocabulary depends only on the texts.

    The trainer numbers continuation pieces in the order of its hash map, which differs between processes, and breaks
    ties of merges by those numbers. Fixed numbers of the one-letter pieces make the result deterministic. The training
    time is quadratic in the length of a word, so overlong ones are cut: a megabyte without spaces takes hours.
    """
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    raw = BertWordPieceTokenizer()
    characters = set(string.ascii_lowercase + string.digits).union(chain.from_iterable(texts))
    letters = sorted(set(raw.normalize("".join(sorted(characters)))) - {" "})
    raw.train_from_iterator(
        (OVERLONG.sub(r"\1 ", text) for text in texts),
        vocab_size,
        limit_alphabet=len(letters),
        special_tokens=[*SPECIAL, *letters, *(f"##{letter}" for letter in letters)],
        show_progress=False,
    )
    return BertTokenizerFast(vocab=raw.get_vocab(), do_lower_case=True, model_max_length=512)
