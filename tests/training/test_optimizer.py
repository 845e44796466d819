from itertools import accumulate

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, get_scheduler

from bertrio.training import optimizer
from bertrio.training.optimizer import RowGradients, build_optimizer, clip_gradients, layers_below_heads, lr_factor


def options(default_params, **changes):
    return default_params.optimizer.model_copy(update=changes)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "step"])
def test_every_schedule_warms_up_linearly_to_its_peak(default_params, name):
    factors = [lr_factor(step, 20, 4, options(default_params, lr_schedule=name), [20]) for step in range(5)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_linear_and_cosine_decay_match_transformers(default_params, name):
    params = options(default_params, lr_schedule=name)
    optimizer = build_optimizer(nn.Linear(3, 4), params, 0.1)
    scheduler = get_scheduler(name, optimizer, 0, 7)
    for step in range(7):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * lr_factor(step, 7, 0, params), rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_step_schedule_decays_every_fifth_epoch_of_any_length(default_params):
    step = options(default_params, lr_schedule="step", step_epochs=5, gamma=0.1)
    lengths = [3, 1, 4, 2, 2, 3, 3, 3, 3, 3, 1, 1]
    ends = list(accumulate(lengths))
    by_hand = [0.1 ** (epoch // 5) for epoch, length in enumerate(lengths) for _ in range(length)]
    assert [lr_factor(update, ends[-1], 0, step, ends) for update in range(ends[-1])] == pytest.approx(by_hand)
    assert by_hand[11] == 1 and by_hand[12] == 0.1, "epochs 1 to 5 hold 12 updates"


class ThreeLayers(nn.Module):
    """A small encoder of three layers and a head, with parameter names as in MultitaskModel."""

    def __init__(self, kind, **options):
        super().__init__()
        sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
        self.encoder = nn.Module()
        config = AutoConfig.for_model(kind, **sizes, intermediate_size=16, **options)
        self.encoder.transformer = AutoModel.from_config(config)
        self.heads = nn.ModuleDict({"a": nn.ModuleDict({"hidden": nn.ModuleList([nn.Linear(8, 8)])})})


IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
RELATIVE = {"relative_attention": True, "norm_rel_ebd": "layer_norm"}
BERT = {
    "pooler.dense": 0, "encoder.layer.2.output.LayerNorm": 1, "encoder.layer.1.output.dense": 2,
    "encoder.layer.0.attention.self.query": 3, "embeddings.word_embeddings": 4, "embeddings.LayerNorm": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("bert", {}, BERT),
        # a norm after the last layer counts with the heads
        ("modernbert", IDS, {"final_norm": 0, "embeddings.tok_embeddings": 4, "layers.0.attn.Wqkv": 3}),
        ("roberta-prelayernorm", {}, {"LayerNorm": 0, "embeddings.LayerNorm": 4, "encoder.layer.2.output.dense": 1}),
        ("megatron-bert", {}, {"encoder.ln": 0, "encoder.layer.2.ln": 1, "encoder.layer.0.attention.ln": 3}),
        # the norm of relative positions, which all layers use
        ("deberta-v2", RELATIVE, {"encoder.rel_embeddings": 4, "encoder.LayerNorm": 4}),
    ],
)
def test_layers_are_numbered_from_the_heads_down(kind, options, expected):
    model = ThreeLayers(kind, **options)
    depths = layers_below_heads(model)
    assert depths.keys() == dict(model.named_parameters()).keys()
    assert {name: depths[f"encoder.transformer.{name}.weight"] for name in expected} == expected
    assert depths["heads.a.hidden.0.weight"] == 0, "numbers in head names are not layers"


def test_adamw_groups_have_layer_decay_and_decay_weights_only(default_params):
    model, params = ThreeLayers("bert"), options(default_params, layer_decay=0.5, eps=1e-2, weight_decay=0.1)
    model.encoder.transformer.pooler.requires_grad_(False)
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = build_optimizer(model, params, 0.8).param_groups
    group_of = {names[id(parameter)]: group for group in groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(group_of) == len(names)
    for name, group in group_of.items():
        assert group["lr"] == pytest.approx(0.8 * 0.5 ** layers_below_heads(model)[name]), name
        assert group["weight_decay"] == (0.1 if dict(model.named_parameters())[name].ndim > 1 else 0), name
        assert group["eps"] == 1e-2 and group["betas"] == (0.9, 0.999)
    constant = options(default_params, layer_decay=0.5, lr_schedule="constant", warmup_fraction=0.0)
    assert optimizer.Optimization(model, constant, 0.8, [[("a",)]]).step() == 0.8


# ---- sparse gradients


def sparse(rows, values, height=6):
    return torch.sparse_coo_tensor(torch.tensor([rows]), torch.tensor(values), (height, len(values[0])))


def test_sparse_gradients_make_the_same_updates_bit_for_bit(default_params):
    """Rows may occur twice or not at all; rows without a gradient still move and decay."""
    torch.manual_seed(0)
    start = torch.randn(6, 3)
    a, b = nn.Embedding(6, 3, _weight=start.clone()), nn.Embedding(6, 3, _weight=start.clone())
    optimizers, buffers = [build_optimizer(model, default_params.optimizer, 0.1) for model in (a, b)], RowGradients()
    for rows in ([1, 4, 1], [2], [], [0, 5, 4, 4]):
        gradient = sparse(rows, torch.randn(len(rows), 3).tolist()) if rows else sparse([0], [[0.0] * 3])
        a.weight.grad, b.weight.grad = gradient.to_dense(), gradient
        optimizers[0].step()
        with buffers.dense(b.parameters()):
            assert not b.weight.grad.is_sparse
            optimizers[1].step()
        assert torch.equal(a.weight, b.weight)


@pytest.mark.parametrize("norm", [0.5, 1000.0])
def test_clipping_sparse_gradients_equals_clipping_dense_ones(norm):
    gradients = []
    for dense in (True, False):
        model = nn.ModuleList([nn.Embedding(6, 3), nn.Linear(3, 2)])
        gradient = sparse([1, 4, 1], [[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0], [2.0, -2.0, 1.0]])
        model[0].weight.grad = gradient.to_dense() if dense else gradient
        model[1].weight.grad = torch.arange(6.0).view(2, 3)
        clip_gradients(model, norm)
        gradients.append([model[0].weight.grad.to_dense(), model[1].weight.grad])
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=0)
    length = torch.cat([gradient.flatten() for gradient in gradients[0]]).norm().item()
    assert length == pytest.approx(0.5, rel=1e-4) if norm == 0.5 else length < 1000
