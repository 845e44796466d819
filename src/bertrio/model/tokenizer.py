"""Tokenizers: the encoder's own, or a WordPiece vocabulary trained on the texts at hand for `tiny`."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertrio.config import EncoderParams
from bertrio.core.errors import need
from bertrio.core.files import read_json, write_json
from bertrio.model.names import loading, local_folder, source_of

OVERLONG = re.compile(r"(\S{1000})(?=\S)")  # longer than any word; WordPiece makes [UNK] of more than 100 letters
SOURCE = "source.json"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def build_tokenizer(params: EncoderParams, texts: Iterable[str], folder: str | Path) -> Any:
    """Save the encoder's tokenizer to `folder` and return it (a transformers fast tokenizer).

    Args:
        params: the `encoder` group; `name` decides where the tokenizer comes from.
        texts: what the vocabulary of `tiny` is trained on; not read for other encoders.
        folder: where tokenizer.json goes; later stages load it from there. Of a hub id, source.json beside it says
            which commit it was, so that they load the encoder at that one, see `pinned`.

    Raises:
        UserError: if the encoder has no tokenizer that loads.
    """
    if params.name == "tiny":
        tokenizer = _train_wordpiece(texts, params.tiny.vocab_size)
    else:
        from transformers import AutoTokenizer

        with source_of(params.name, params.revision, "tokenizer") as source:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if local_folder(params.name) is None:
            write_json(Path(folder) / SOURCE, {"id": params.name, "commit": Path(source).name})
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def pinned(params: EncoderParams, folder: str | Path) -> EncoderParams:
    """Return the same params at the commit that the tokenizer in `folder` came from, where it came from the hub."""
    source = Path(folder) / SOURCE
    return params.model_copy(update={"revision": read_json(source)["commit"]}) if source.is_file() else params


def load_tokenizer(folder: str | Path) -> Any:
    """Return the tokenizer that `build_tokenizer` saved.

    Raises:
        UserError: if it is not there, or damaged.
    """
    from transformers import AutoTokenizer

    need(Path(folder) / "tokenizer.json")  # without it transformers makes one that knows no word
    with loading(folder):
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)


def _train_wordpiece(texts: Iterable[str], vocab_size: int) -> Any:
    """Train a lower-casing BERT tokenizer whose vocabulary depends on the texts alone.

    The trainer numbers continuation pieces in the order in which its hash map yields the words, which changes from
    process to process, and breaks ties of merges by those numbers. Giving the one-letter pieces fixed numbers up
    front takes the chance out of it. Its time grows with the square of a word's length, so that what no one would
    call a word is cut: a line of a megabyte without a space took hours.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizerFast  # type: ignore[attr-defined]  # made when it is asked for

    texts = list(texts)
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    letters = sorted(set(string.ascii_lowercase + string.digits).union(*map(normalizer.normalize_str, texts)) - {" "})
    pieces = [f"##{letter}" for letter in letters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL + letters + pieces, show_progress=False, min_frequency=2
    )
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = normalizer, splitter
    raw.train_from_iterator((OVERLONG.sub(r"\1 ", text) for text in texts), trainer)
    return BertTokenizerFast(vocab=raw.get_vocab(), do_lower_case=True, model_max_length=512)
