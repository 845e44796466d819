from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModel, ModernBertModel

from bertrio.model.attention import LEVELS, NAME, BitDropout, attend, cheap_dropout, dropout_mask, use_bit_dropout
from bertrio.model.encoder import Encoder, load_transformer, set_dropout
from tests.model.test_encoder import config_of, pooled, tokens_of

B, HEADS, T, D = 3, 2, 7, 5
LAYER = SimpleNamespace(is_causal=False)


def inputs(dtype=torch.float32):
    """Queries, keys and values as layers pass them: views with heads and tokens transposed."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(B, T, HEADS, D, generator=generator).to(dtype) for _ in range(3)]
    return [values.transpose(1, 2).requires_grad_() for values in drawn]


def hidden_keys():
    """A mask as made by transformers: the last keys of the first text are padding."""
    mask = torch.ones(B, 1, T, T, dtype=torch.bool)
    mask[0, :, :, -3:] = False
    return mask


def drawn_mask():
    """The dropout mask, as factors, that `attend` draws first at rate 0.3 after seed 1."""
    torch.manual_seed(1)
    kept, factor = dropout_mask(torch.ones(B, HEADS, T, T, dtype=torch.float64), 0.3)
    return kept * factor


def by_hand(query, key, value, mask, kept, scale):
    """The formula in float64, for a given dropout mask."""
    query, key, value = (tensor.double() for tensor in (query, key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bqhd", weights * kept, value)


@pytest.mark.parametrize("masked", [None, "boolean", "additive"])
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_outputs_and_gradients_match_the_formula(dtype, bound, scaling, masked):
    sides, copies = inputs(dtype), inputs(dtype)
    mask = hidden_keys() if masked else None
    passed = torch.zeros(mask.shape).masked_fill(~mask, -1e9) if masked == "additive" else mask
    torch.manual_seed(1)
    output, weights = attend(LAYER, *sides, passed, dropout=0.3, scaling=scaling)
    assert weights is None and output.dtype == dtype
    kept = drawn_mask()
    assert 0.1 < (kept == 0).double().mean() < 0.5
    expected = by_hand(*copies, mask, kept, D**-0.5 if scaling is None else scaling)
    torch.testing.assert_close(output.double(), expected, rtol=bound, atol=bound)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    output.backward(upstream.to(dtype))
    expected.backward(upstream.double())
    gradients = [[tensor.grad for tensor in tensors] for tensors in (sides, copies)]
    torch.testing.assert_close(*gradients, rtol=2 * bound, atol=2 * bound)


def test_under_autocast_scores_and_softmax_stay_in_float32():
    """Scores near 80 are 0.5 apart in bf16: weights would be off by a third."""
    query, key, value = (tensor.detach() for tensor in inputs(torch.bfloat16))
    query = query * 20
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = attend(LAYER, query, key, value, None, dropout=0.3)
    expected = by_hand(query, key, value, None, drawn_mask(), D**-0.5)
    torch.testing.assert_close(output.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("additive", [None, torch.float32, torch.float64])
def test_fully_masked_rows_have_finite_outputs_and_gradients(additive):
    query, key, value = inputs()
    mask = hidden_keys()
    mask[0, :, -1] = False
    if additive:
        mask = torch.zeros(mask.shape, dtype=additive).masked_fill(~mask, -torch.inf)
    out, _ = attend(LAYER, query, key, value, mask, dropout=0.3)
    out.sum().backward()
    assert all(tensor.isfinite().all() for tensor in (out, query.grad, key.grad, value.grad))


@pytest.mark.parametrize(
    ("layer", "heads", "options"),
    [
        (LAYER, HEADS, {"dropout": 0.0}),
        (LAYER, HEADS, {"dropout": 0.3, "is_causal": True}),
        (SimpleNamespace(), HEADS, {"dropout": 0.3}),  # causal by default
        (SimpleNamespace(is_causal=False, num_key_value_groups=2), 1, {"dropout": 0.3}),
        (LAYER, HEADS, {"dropout": 0.3, "position_bias": torch.randn(1, HEADS, T, T)}),
    ],
)
def test_other_cases_fall_back_to_sdpa(layer, heads, options):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query, key, value = inputs()
    arguments = query, key[:, :heads], value[:, :heads], None
    torch.manual_seed(1)
    expected, _ = sdpa_attention_forward(layer, *arguments, **options)
    torch.manual_seed(1)
    assert torch.equal(attend(layer, *arguments, **options)[0], expected)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"])
def test_every_architecture_trains_as_with_sdpa(monkeypatch, kind):
    """With dropout masks of ones, outputs and gradients are those at rate 0."""
    if kind == "modernbert" and not ModernBertModel._can_set_attn_implementation():
        pytest.skip("transformers before 5.10 has no other attention than its own in ModernBERT")
    calls, layers = [], 0 if kind == "deberta-v2" else 2

    def all_kept(values, p):
        calls.append(p)
        return torch.ones_like(values), 1.0

    monkeypatch.setattr("bertrio.model.attention.dropout_mask", all_kept)
    monkeypatch.setattr(BitDropout, "forward", lambda self, values: values)  # ModernBERT has one at that rate
    config = config_of(kind)
    torch.manual_seed(0)
    set_dropout(config, 0.0, 0.0)
    plain = AutoModel.from_config(config)
    tokens = tokens_of(plain, lengths=(40, 23))
    config = config_of(kind)
    set_dropout(config, 0.0, 0.5 if layers else 0.0)
    encoder = Encoder(AutoModel.from_config(config), "mean").train()
    encoder.transformer.load_state_dict(plain.state_dict())
    gradients = []
    for model in (encoder, reference := Encoder(plain, "mean").train()):
        pooled(model, tokens).pow(2).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        assert len(calls) == layers, "no mask is drawn at rate 0"
    torch.testing.assert_close(pooled(encoder, tokens), pooled(reference, tokens), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_saved_configs_and_other_attention_are_left_alone(tmp_path):
    Encoder(AutoModel.from_config(config_of("bert")), "mean").save(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
    assert load_transformer(tmp_path).config._attn_implementation == "sdpa"
    eager = AutoModel.from_config(config_of("bert"), attn_implementation="eager")
    cheap_dropout(eager)
    assert eager.config._attn_implementation == "eager"
    assert type(eager.encoder.layer[0].attention.self.dropout) is BitDropout


# Dropout by bits


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_bit_dropout_has_its_rate_and_keeps_the_mean(p):
    torch.manual_seed(0)
    values = BitDropout(p).train()(torch.ones(1000, 1001))  # no multiple of 4
    share = (values == 0).double().mean().item()
    spread = 4 * (p * (1 - p) / values.numel()) ** 0.5
    assert share == pytest.approx(p, abs=spread + 1 / LEVELS)
    assert values.double().mean().item() == pytest.approx(1, abs=spread / (1 - p))
    assert set(values.unique().tolist()) == {0.0, values.max().item()}
    assert values.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_bit_dropout_drops_neighbours_independently():
    """Chi-square of the 16 patterns of four entries, which share a draw of 64 bits."""
    torch.manual_seed(0)
    zero = (BitDropout(0.5).train()(torch.ones(4 * 40_000)) == 0).view(-1, 4).long()
    counts = torch.bincount(zero @ torch.tensor([8, 4, 2, 1]), minlength=16).double()
    assert ((counts - 2500) ** 2 / 2500).sum() < 37.7  # 15 degrees of freedom, 1 in 1,000


def test_bit_dropout_in_evaluation_and_at_rates_0_and_1():
    values = torch.randn(5, 5)
    assert torch.equal(BitDropout(0.5).eval()(values), values)
    assert torch.equal(BitDropout(0.0).train()(values), values)
    assert not BitDropout(1.0).train()(values).any()


def test_plain_dropout_is_replaced_with_rate_and_mode():
    class Subclass(nn.Dropout):
        pass

    module = nn.Sequential(nn.Dropout(0.2), nn.ModuleDict({"a": nn.Dropout(0.3), "b": Subclass(0.4)}), nn.Linear(2, 2))
    module[0].eval()
    use_bit_dropout(module)
    replaced = [(type(part), part.p, part.training) for part in (module[0], module[1]["a"])]
    assert replaced == [(BitDropout, 0.2, False), (BitDropout, 0.3, True)]
    assert type(module[1]["b"]) is Subclass
