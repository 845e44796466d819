"""A small BERT on disk, for tests of encoders from a folder or the hub."""

from pathlib import Path

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def save_bert(folder: Path, words: tuple[str, ...] = ("a", "film"), bias: float = 0.0) -> None:
    """Save a BERT of one layer and its tokenizer; `bias` is that of the pooler."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    vocab = {word: number for number, word in enumerate((*SPECIAL, *words))}
    BertTokenizerFast(vocab=vocab).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=len(vocab), **sizes))
    torch.nn.init.constant_(model.pooler.dense.bias, bias)
    model.save_pretrained(folder)
