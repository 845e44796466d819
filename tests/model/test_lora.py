import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, BertModel

from bertrio.core.errors import UserError
from bertrio.core.runtime import Runtime
from bertrio.model.encoder import Encoder
from bertrio.model.lora import add_lora
from bertrio.model.multitask import MultitaskModel

pytest.importorskip("peft")


@pytest.fixture
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    return BertModel(config).eval()


def tokens(rows=4, length=7):
    ids = torch.randint(5, 50, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def hidden(transformer):
    transformer.eval()
    with torch.no_grad():
        return transformer(**tokens()).last_hidden_state


def adapted(bert, targets=None, alpha=16, dropout=0.0):
    """Adapters whose B is not zero any more, as after training."""
    add_lora(bert, rank=2, alpha=alpha, dropout=dropout, targets=targets)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in bert.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return bert


def test_training_starts_at_the_encoder_as_it_was(bert):
    before = hidden(bert)
    add_lora(bert, rank=2, alpha=16, dropout=0.1, targets=None)
    assert torch.equal(hidden(bert), before)


def test_an_adapted_layer_is_the_equation_by_hand(bert):
    layer = bert.encoder.layer[0].attention.self
    weight, bias = layer.query.weight.double().clone(), layer.query.bias.double()
    adapted(bert, targets=["query"], alpha=6)
    down, up = (getattr(layer.query, name)["default"].weight.double() for name in ("lora_A", "lora_B"))
    assert down.shape == (2, 16) and up.shape == (16, 2)
    x = torch.randn(3, 16)
    by_hand = x.double() @ (weight + 6 / 2 * up @ down).T + bias
    torch.testing.assert_close(layer.query(x).double(), by_hand, rtol=1e-5, atol=1e-6)


def test_only_adapters_and_heads_train_and_the_rest_stays_to_the_bit(bert):
    adapted(bert)
    model = MultitaskModel(
        Encoder(bert, "mean"), {"a": nn.Linear(16, 1)}, {}, Runtime(torch.device("cpu"), torch.float32)
    )
    live = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert live == {name for name, _ in model.named_parameters() if ".lora_" in name or name.startswith("heads.")}
    assert sum(".lora_A." in name for name in live) == sum(".lora_B." in name for name in live) > 0
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model("a", (tokens(),)).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == live


@pytest.mark.parametrize("targets", [None, ["query", "dense"]])
def test_the_saved_encoder_is_a_plain_one_with_the_adapted_outputs(bert, targets, tmp_path):
    names = set(bert.state_dict())
    plain = hidden(bert)
    adapted(bert, targets, dropout=0.3)
    expected = hidden(bert)
    assert (expected - plain).abs().max() > 0.01
    Encoder(bert, "mean").save(tmp_path / "encoder")
    loaded, found = AutoModel.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert set(loaded.state_dict()) == names
    torch.testing.assert_close(hidden(loaded), expected, rtol=0, atol=1e-6)
    assert sorted(path.name for path in (tmp_path / "encoder").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("fails", [False, True])
def test_saving_leaves_the_weights_in_memory_as_they_were_even_if_it_fails(bert, tmp_path, fails):
    encoder = Encoder(adapted(bert), "mean")
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    outputs = hidden(bert)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) if fails else nullcontext():
        encoder.save(tmp_path / ("file/encoder" if fails else "encoder"))
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
    torch.testing.assert_close(hidden(bert), outputs, rtol=0, atol=1e-6)
    live = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert live and all(".lora_" in name for name in live)


def test_targets_that_are_not_there_are_an_error_that_names_them(bert):
    with pytest.raises(UserError, match=r"encoder\.lora\.targets: found \['quarry'\]; .*not found"):
        add_lora(bert, rank=2, alpha=16, dropout=0.0, targets=["quarry"])


def test_without_peft_the_error_says_how_to_install_it(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"encoder\.lora: needs the package peft; install .* 'bertrio\[lora\]'"):
        add_lora(bert, rank=2, alpha=16, dropout=0.0, targets=None)
