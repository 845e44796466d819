import copy
import sys

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from bertrio.core.errors import UserError
from bertrio.model.encoder import Encoder
from bertrio.model.lora import add_lora

pytest.importorskip("peft")


@pytest.fixture
def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=50, **sizes)).eval()


@torch.no_grad()
def hidden(transformer):
    ids = torch.randint(5, 50, (4, 7), generator=torch.Generator().manual_seed(0))
    return transformer.eval()(input_ids=ids).last_hidden_state


def add_trained_lora(bert, targets=None, alpha=16, dropout=0.0):
    """Add adapters with non-zero B, as after training."""
    add_lora(bert, rank=2, alpha=alpha, dropout=dropout, targets=targets)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in bert.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)


def test_an_adapted_layer_equals_its_equation(bert):
    layer = bert.encoder.layer[0].attention.self
    weight, bias = layer.query.weight.double().clone(), layer.query.bias.double()
    add_trained_lora(bert, targets=["query"], alpha=6)
    down, up = (getattr(layer.query, name)["default"].weight.double() for name in ("lora_A", "lora_B"))
    assert down.shape == (2, 16) and up.shape == (16, 2)
    x = torch.randn(3, 16)
    by_hand = x.double() @ (weight + 6 / 2 * up @ down).T + bias
    torch.testing.assert_close(layer.query(x).double(), by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("targets", [None, ["query", "dense"]])
def test_saved_encoders_are_merged_and_the_one_in_memory_is_not(bert, targets, tmp_path):
    plain = hidden(bert)
    add_lora(fresh := copy.deepcopy(bert), rank=2, alpha=16, dropout=0.3, targets=targets)
    assert torch.equal(hidden(fresh), plain), "training starts at the unchanged encoder"
    add_trained_lora(bert, targets, dropout=0.3)
    expected, trainable = hidden(bert), {name for name, value in bert.named_parameters() if value.requires_grad}
    assert (expected - plain).abs().max() > 0.01
    assert trainable and all(".lora_" in name for name in trainable)
    Encoder(bert, "mean").save(tmp_path / "encoder")
    torch.testing.assert_close(hidden(bert), expected, rtol=0, atol=1e-6)
    loaded, report = AutoModel.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(hidden(loaded), expected, rtol=0, atol=1e-6)
    assert sorted(path.name for path in (tmp_path / "encoder").iterdir()) == ["config.json", "model.safetensors"]


def test_unknown_targets_and_missing_peft_are_an_error(bert, monkeypatch):
    with pytest.raises(UserError, match=r"encoder\.lora\.targets: found \['quarry'\]; .*not found"):
        add_lora(bert, rank=2, alpha=16, dropout=0.0, targets=["quarry"])
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"encoder\.lora: needs the package peft; install .* 'bertrio\[lora\]'"):
        add_lora(bert, rank=2, alpha=16, dropout=0.0, targets=None)
