import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from bertrio.errors import UserError
from bertrio.model.encoder import load_transformer
from bertrio.model.tokenizer import load_tokenizer
from bertrio.runtime import generator, set_up
from bertrio.training.mlm import mask_tokens, perplexity, pretrain_mlm, token_blocks


@pytest.fixture
def corpora(workspace):
    (workspace.root / "data/corpora").mkdir()
    for name, texts in (("imdb", workspace.texts[:90]), ("sick", workspace.texts[90:])):
        pq.write_table(pa.table({"text": texts}), workspace.root / "data/corpora" / f"{name}.parquet", row_group_size=7)
    return "data/corpora"


def test_blocks_hold_all_texts_one_after_the_other(workspace, corpora):
    tokenizer = load_tokenizer("models/tokenizer")
    blocks = token_blocks(corpora, tokenizer, 16, workspace.root / "tokens")
    flat = [token for text in workspace.texts for token in tokenizer(text)["input_ids"]]
    assert blocks.shape == (len(flat) // 16, 16)
    assert blocks.flatten().tolist() == flat[: blocks.size]
    assert isinstance(blocks, np.memmap)


def test_too_little_text_is_an_error(workspace, corpora):
    with pytest.raises(UserError, match=r"found \d+ tokens, expected at least 20000"):
        token_blocks(corpora, load_tokenizer("models/tokenizer"), 10000, workspace.root / "tokens")


def test_masks_are_picked_and_shared_out_as_in_the_paper(tokenizer):
    blocks = torch.randint(5, len(tokenizer), (400, 128), generator=torch.Generator().manual_seed(0))
    blocks[:, 0] = tokenizer.cls_token_id
    ids, picked = mask_tokens(blocks, tokenizer, 0.15, generator(1, "x"))
    assert not picked[:, 0].any()
    assert torch.equal(ids[~picked], blocks[~picked])
    assert picked[:, 1:].float().mean().item() == pytest.approx(0.15, abs=0.005)
    masked, kept = ids[picked] == tokenizer.mask_token_id, ids[picked] == blocks[picked]
    by_chance = 1 / len(tokenizer)  # a random token may be the mask or the old one
    assert masked.float().mean().item() == pytest.approx(0.8 + 0.1 * by_chance, abs=0.015)
    assert kept.float().mean().item() == pytest.approx(0.1 + 0.1 * by_chance, abs=0.015)


def test_perplexity_equals_the_definition_and_is_the_same_twice(workspace, corpora):
    params = workspace.params()
    tokenizer = load_tokenizer("models/tokenizer")
    blocks = token_blocks(corpora, tokenizer, 16, workspace.root / "tokens")
    gold = torch.from_numpy(blocks[:8].astype(np.int64))

    class Uniform(torch.nn.Module):
        """Sees nothing: the perplexity of guessing is the size of the vocabulary."""

        def forward(self, input_ids):
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, len(tokenizer))})

    args = (blocks, np.arange(8), tokenizer, params.mlm, 1, set_up(1, "cpu", "float32"))
    assert perplexity(Uniform(), *args) == pytest.approx(len(tokenizer), rel=1e-5)

    class Bigram(Uniform):
        def forward(self, input_ids):
            return type("Output", (), {"logits": F.one_hot(input_ids, len(tokenizer)).float()})

    ids, picked = mask_tokens(gold, tokenizer, params.mlm.mask_probability, generator(1, "mlm held-out masks"))
    logits = F.one_hot(ids, len(tokenizer)).double()
    by_hand = math.exp(-logits.log_softmax(-1)[picked].gather(1, gold[picked].unsqueeze(1)).mean())
    assert perplexity(Bigram(), *args) == pytest.approx(by_hand, rel=1e-5)


def pretrained(workspace, folder, **mlm):
    params = workspace.params(mlm={"block_size": 16, "batch_size": 8, "epochs": 15, "lr": 0.01, "held_out": 0.1, **mlm})
    runtime = set_up(**params.runtime.model_dump())
    return pretrain_mlm(params, runtime, "data/corpora", "models/tokenizer", folder)


def test_pretraining_lowers_the_held_out_perplexity_and_leaves_no_litter(workspace, corpora):
    metrics, timing = pretrained(workspace, "models/out", enabled=True)
    assert metrics["perplexity"]["after"] < 0.6 * metrics["perplexity"]["before"]
    assert timing["steps"] == metrics["steps"] > 10
    assert sorted(path.name for path in (workspace.root / "models").iterdir()) == [
        "encoder", "out", "prefinetuned", "tokenizer",
    ]  # fmt: skip
    plain, _ = pretrained(workspace, "models/plain", enabled=False)
    assert plain == {"enabled": False}
    learned, fresh = load_transformer("models/out"), load_transformer("models/plain")
    assert not torch.equal(learned.get_input_embeddings().weight, fresh.get_input_embeddings().weight)
    assert torch.equal(learned.pooler.dense.weight, fresh.pooler.dense.weight)


def test_max_steps_stops_early_and_two_runs_are_the_same_bytes(workspace, corpora):
    results = [pretrained(workspace, name, enabled=True, max_steps=5) for name in ("a", "b")]
    assert results[0][0] == results[1][0]
    assert results[0][0]["steps"] == 5
    assert (workspace.root / "a/model.safetensors").read_bytes() == (
        workspace.root / "b/model.safetensors"
    ).read_bytes()


def test_a_diverging_run_stops_and_says_so_and_saves_nothing(workspace, corpora):
    with pytest.raises(UserError, match=r"loss is (nan|inf); try a lower mlm\.lr"):
        pretrained(workspace, "models/out", enabled=True, lr=1e30)
    assert not (workspace.root / "models/out").exists()
