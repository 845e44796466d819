import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, EsmConfig, RobertaPreLayerNormConfig, XLMConfig

from bertrio.core.errors import UserError
from bertrio.model.encoder import Encoder
from bertrio.model.upper import UpperLayers, layers_of
from tests.model.test_encoder import CONFIGS, tokens_of


def clean_pass(encoder, upper, tokens):
    with upper.recording(torch.get_rng_state):
        return encoder.encode(encoder.embed(tokens), tokens)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", CONFIGS)
def test_upper_layers_on_their_own_hidden_states_give_the_clean_pass_to_the_bit(kind, count):
    torch.manual_seed(0)
    encoder = Encoder(AutoModel.from_config(CONFIGS[kind]()), "mean").train()
    upper, tokens = UpperLayers(encoder, count), tokens_of(encoder.transformer)
    expected = clean_pass(encoder, upper, tokens)
    torch.set_rng_state(upper.state)
    assert torch.equal(upper(upper.hidden, tokens["attention_mask"]), expected)
    assert not torch.equal(upper(upper.hidden + 0.1, tokens["attention_mask"]), expected)


def test_the_first_layer_that_runs_again_is_counted_from_the_top():
    torch.manual_seed(0)
    transformer = BertModel(BertConfig(hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=8))
    encoder = Encoder(transformer, "pooler").eval()
    upper = UpperLayers(encoder, 1)
    tokens = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    pooled = clean_pass(encoder, upper, tokens)
    states = transformer(**tokens, output_hidden_states=True).hidden_states
    assert torch.equal(upper.hidden, states[3])  # embeddings, and what layers 1 to 3 made of them
    assert torch.equal(upper(states[3], tokens["attention_mask"]), pooled)
    assert all(not layer._forward_pre_hooks for layer in layers_of(transformer))


def test_an_architecture_without_a_list_of_layers_is_an_error():
    transformer = BertModel(BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8))
    transformer.config.num_hidden_layers = 3
    with pytest.raises(UserError, match=r"smart.layers: bert models have no list of 3 layers; set it to null"):
        layers_of(transformer)


def test_more_layers_than_there_are_is_an_error():
    transformer = BertModel(BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8))
    with pytest.raises(UserError, match="smart.layers: found 3, but this encoder has 2 layers"):
        UpperLayers(Encoder(transformer, "mean"), 3)


UNFIT = {
    "esm": lambda: EsmConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        pad_token_id=1,
        mask_token_id=32,
        emb_layer_norm_before=False,
    ),
    "roberta-prelayernorm": lambda: RobertaPreLayerNormConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    ),
    "xlm": lambda: XLMConfig(vocab_size=40, emb_dim=16, n_layers=2, n_heads=2),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_architecture_that_does_more_than_run_its_layers_is_an_error(kind):
    encoder = Encoder(AutoModel.from_config(UNFIT[kind]()), "mean").train()
    tokens = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    with pytest.raises(UserError, match=f"smart.layers: {kind} models"):
        clean_pass(encoder, UpperLayers(encoder, 1), tokens)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_gradient_of_the_upper_layers_reaches_the_embeddings(kind):
    torch.manual_seed(0)
    encoder = Encoder(AutoModel.from_config(CONFIGS[kind]()), "mean").train()
    upper, tokens = UpperLayers(encoder, 1), tokens_of(encoder.transformer)
    clean_pass(encoder, upper, tokens)
    noise = torch.zeros_like(upper.hidden, requires_grad=True)
    upper(upper.hidden + noise, tokens["attention_mask"]).square().sum().backward()
    assert noise.grad.any() and encoder.transformer.get_input_embeddings().weight.grad.to_dense().any()
