import math
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import BertForMaskedLM, BertModel

from bertrio.core.errors import UserError
from bertrio.core.runtime import generator, set_up
from bertrio.model.encoder import load_transformer
from bertrio.model.tokenizer import load_tokenizer
from bertrio.training import mlm
from bertrio.training.mlm import Blocks, MlmObjective, mask_tokens, token_blocks, word_beginnings


@pytest.fixture
def corpora(workspace):
    (workspace.root / "data/corpora").mkdir()
    for name, texts in (("imdb", workspace.texts[:90]), ("sick", workspace.texts[90:])):
        pq.write_table(pa.table({"text": texts}), workspace.root / "data/corpora" / f"{name}.parquet", row_group_size=7)
    return "data/corpora"


def test_blocks_concatenate_all_texts(workspace, corpora):
    tokenizer = load_tokenizer("models/tokenizer")
    blocks = token_blocks(corpora, tokenizer, 16, workspace.root)
    flat = [token for text in workspace.texts for token in tokenizer(text)["input_ids"]]
    assert blocks.shape == (len(flat) // 16, 16)
    assert blocks.flatten().tolist() == flat[: blocks.size]
    assert isinstance(blocks, np.memmap)


def test_empty_corpora_add_nothing_and_no_text_is_an_error(workspace, corpora):
    tokenizer = load_tokenizer("models/tokenizer")
    blocks = token_blocks(corpora, tokenizer, 16, workspace.root)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), workspace.root / corpora / "multinli.parquet")
    assert np.array_equal(token_blocks(corpora, tokenizer, 16, workspace.root), blocks)
    for path in (workspace.root / corpora).iterdir():
        path.unlink()
    with pytest.raises(UserError, match="found 0 tokens, expected at least 32"):
        token_blocks(corpora, tokenizer, 16, workspace.root)


def test_masking_has_the_rates_of_the_paper(tokenizer):
    blocks = torch.randint(5, len(tokenizer), (400, 128), generator=torch.Generator().manual_seed(0))
    blocks[:, 0] = tokenizer.cls_token_id
    ids, picked = mask_tokens(blocks, tokenizer, 0.15, generator(1, "x"))
    assert not picked[:, 0].any()
    assert torch.equal(ids[~picked], blocks[~picked])
    assert picked[:, 1:].float().mean().item() == pytest.approx(0.15, abs=0.005)
    masked, kept = ids[picked] == tokenizer.mask_token_id, ids[picked] == blocks[picked]
    chance = 1 / len(tokenizer)  # a random token may be the mask or the old one
    assert masked.float().mean().item() == pytest.approx(0.8 + 0.1 * chance, abs=0.015)
    assert kept.float().mean().item() == pytest.approx(0.1 + 0.1 * chance, abs=0.015)


def tokenizer_of(words):
    """Return a tokenizer with this vocabulary."""
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    vocabulary = {token: index for index, token in enumerate([*special.values(), "[MASK]", *words])}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, mask_token="[MASK]", **special)


def test_words_end_at_special_tokens_and_block_boundaries():
    tokenizer = tokenizer_of(["a", "##b", "##c"])
    begins = word_beginnings(tokenizer)
    a, b, sep = (tokenizer.convert_tokens_to_ids(token) for token in ("a", "##b", "[SEP]"))
    blocks = torch.tensor([[b, b, sep, b, b, a, b]]).repeat(3000, 1)
    _, picked = mask_tokens(blocks, tokenizer, 0.4, generator(3, "x"), begins)
    for start, end in ((0, 1), (3, 4), (5, 6)):
        assert torch.equal(picked[:, start], picked[:, end])
    for i, j in ((1, 3), (4, 5), (1, 5)):  # words are picked independently
        assert (picked[:, i] & picked[:, j]).float().mean().item() == pytest.approx(0.4**2, abs=0.03)


@pytest.mark.parametrize(
    ("words", "beginning"),
    [
        (["good", "##ness", "##s", "."], {"good", "."}),
        (["Ġgood", "ness", "Ġfilm", "####", "."], {"Ġgood", "Ġfilm"}),  # RoBERTa's vocabulary has tokens of # as well
        (["▁good", "▁", "ness", "▁film"], {"▁good", "▁", "▁film"}),
    ],
)
def test_word_beginnings_of_each_kind_of_tokenizer(words, beginning):
    tokenizer = tokenizer_of(words)
    begins = word_beginnings(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(words)
    assert {word for word, index in zip(words, ids) if begins[index]} == beginning


def test_a_tokenizer_without_word_marks_is_an_error():
    with pytest.raises(UserError, match="mlm.whole_word: found no token .* set mlm.whole_word to false"):
        word_beginnings(tokenizer_of(["good", "film", "##"]))


def test_perplexity_equals_its_definition_and_is_deterministic(workspace, corpora):
    tokenizer, model = load_tokenizer("models/tokenizer"), language_model("bert").eval()
    blocks = token_blocks(corpora, tokenizer, 16, workspace.root)
    mask = partial(mask_tokens, tokenizer=tokenizer, probability=0.15)
    objective = MlmObjective(model, mask, generator(1, "x"), set_up(1, "cpu", "float32"))
    gold, draws = torch.from_numpy(blocks[:8].astype(np.int64)), generator(1, "mlm held-out masks")
    ids, picked = (torch.cat(parts) for parts in zip(*[mask(batch, draws=draws) for batch in gold.split(3)]))
    log_probabilities = model(input_ids=ids).logits.double().log_softmax(-1)[picked]
    by_hand = math.exp(-log_probabilities.gather(1, gold[picked].unsqueeze(1)).mean().item())
    perplexities = [objective.perplexity(Blocks(blocks, np.arange(8)), 3, 1) for _ in range(2)]
    assert perplexities[0] == perplexities[1] == pytest.approx(by_hand, rel=1e-5)
    with pytest.raises(UserError, match="none of the held-out tokens was masked"):
        objective_at(model, torch.zeros(8, 16, dtype=torch.bool)).perplexity(Blocks(blocks, np.arange(8)), 8, 1)


def objective_at(model, picked):
    """Return an objective that masks nothing and predicts the picked tokens."""
    return MlmObjective(model, lambda gold, draws: (gold, picked), generator(1, "x"), set_up(1, "cpu", "float32"))


def language_model(kind):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.AutoConfig.for_model(kind, vocab_size=200, embedding_size=32, **sizes)
    return transformers.AutoModelForMaskedLM.from_config(config)


def batch_of(ids):
    return Blocks(ids.numpy(), np.arange(len(ids))).batch(np.arange(len(ids)))


def test_batches_without_picked_tokens_have_no_gradient():
    model = language_model("bert")
    ids = torch.randint(5, 200, (1, 8))
    loss = objective_at(model, torch.zeros_like(ids, dtype=torch.bool))(batch_of(ids))[0].total
    loss.backward()
    assert loss.item() == 0 and not any(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(("kind", "share"), [("bert", 0.6), ("roberta", 0.15), ("distilbert", 0.15), ("electra", 0.15)])
def test_head_on_picked_tokens_alone_has_the_full_gradient(kind, share):
    model = language_model(kind).eval()
    ids = torch.randint(5, 200, (8, 32))
    picked = torch.rand(8, 32, generator=generator(1, "picks")) < share
    rounded = -(-int(picked.sum()) // 64) * 64
    expected = F.cross_entropy(model(input_ids=ids).logits[picked], ids[picked])
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    sizes = []
    model.get_output_embeddings().register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[-2]))
    loss = objective_at(model, picked)(batch_of(ids))[0].total
    loss.backward()
    assert sizes == [rounded] and rounded < picked.numel(), "the head must see the picked tokens alone, rounded up"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, atol=1e-6, rtol=1e-4)
    assert model(input_ids=ids).logits.shape == (8, 32, 200), "the model is unchanged"


def pretrained(workspace, folder, encoder=None, **options):
    small = {"block_size": 16, "batch_size": 8, "epochs": 15, "lr": 0.01}
    params = workspace.params(encoder=encoder or {}, mlm=small | options)
    runtime = set_up(**params.runtime.model_dump())
    return mlm.pretrain_mlm(params, runtime, "data/corpora", "models/tokenizer", folder)


def test_pretraining_lowers_the_held_out_perplexity(workspace, corpora, capsys):
    metrics, timing = pretrained(workspace, "models/out", enabled=True)
    assert metrics["perplexity"]["after"] < 0.6 * metrics["perplexity"]["before"]
    assert timing["steps"] == metrics["steps"] > 10
    plain, _ = pretrained(workspace, "models/plain", enabled=False)
    assert plain == {"enabled": False} and "pretrain_mlm: off" in capsys.readouterr().err
    learned, fresh = load_transformer("models/out"), load_transformer("models/plain")
    assert not torch.equal(learned.get_input_embeddings().weight, fresh.get_input_embeddings().weight)
    assert torch.equal(learned.pooler.dense.weight, fresh.pooler.dense.weight)


def test_perplexity_is_measured_on_blocks_that_are_not_trained_on(workspace, corpora, monkeypatch):
    measured, trained = [], []
    draw = mlm.BlockStream._pass
    monkeypatch.setattr(mlm.BlockStream, "_pass", lambda stream: trained.append(set(stream.rows.ids)) or draw(stream))
    monkeypatch.setattr(MlmObjective, "perplexity", lambda _, rows, *__: measured.append(set(rows.ids)) or 1.0)
    metrics, _ = pretrained(workspace, "models/out", enabled=True, max_steps=1)
    (train,), (before, after) = trained, measured
    assert before == after and before and not train & before
    assert train | before == set(range(metrics["blocks"]))


@pytest.mark.parametrize(("kind", "head"), [(BertForMaskedLM, "checkpoint"), (BertModel, "fresh")])
def test_the_language_model_head_of_a_checkpoint_is_used(workspace, corpora, kind, head):
    tokenizer = load_tokenizer("models/tokenizer")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    kind(transformers.BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained("start")
    tokenizer.save_pretrained("start")
    metrics, _ = pretrained(workspace, "out", {"name": "start"}, enabled=True, max_steps=1)
    assert metrics["head"] == head
