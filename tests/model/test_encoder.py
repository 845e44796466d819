import pytest
import torch
from transformers import AutoConfig, AutoModel

from bertrio.core.errors import UserError
from bertrio.model.encoder import Encoder, check_length, initial_transformer, load_transformer, set_dropout

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
OPTIONS = {
    "bert": {},
    "minilm": {"model_type": "bert", "type_vocab_size": 1},
    "roberta": {"max_position_embeddings": 66, "pad_token_id": 1},
    "mpnet": {"max_position_embeddings": 66, "pad_token_id": 1},
    "electra": {"embedding_size": 32},
    "deberta-v2": {"type_vocab_size": 0, "relative_attention": True, "position_buckets": 16}
    | {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    | {"position_biased_input": False},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48},
    "modernbert": {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
    | {"global_attn_every_n_layers": 2, "local_attention": 16},
}
POOLERS = {"bert", "minilm", "roberta", "mpnet"}


def config_of(kind):
    """A small config of an architecture."""
    widths = {} if kind == "distilbert" else WIDTHS
    return AutoConfig.for_model(**{"model_type": kind, "vocab_size": 100} | widths | OPTIONS.get(kind, {}))


@pytest.fixture(params=OPTIONS)
def kind(request):
    return request.param


@pytest.fixture
def transformer(kind):
    torch.manual_seed(0)
    return AutoModel.from_config(config_of(kind))


def tokens_of(transformer, lengths=(9, 5)):
    """Token ids above the special ones, padded with the model's own padding id."""
    pad = transformer.config.pad_token_id or 0
    ids = torch.full((len(lengths), max(lengths)), pad)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, 100, (length,), generator=torch.Generator().manual_seed(row))
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def pooled(encoder, tokens):
    return encoder.encode(encoder.embed(tokens), tokens)


def test_embeddings_and_ids_give_the_same_bits(kind, transformer):
    encoder = Encoder(transformer, "cls").eval()
    tokens = tokens_of(transformer)
    accepted = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
    assert torch.equal(pooled(encoder, tokens), transformer(**accepted).last_hidden_state[:, 0])


@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler"])
def test_padding_does_not_change_the_pooled_vector(kind, transformer, pooling):
    if pooling == "pooler" and kind not in POOLERS:
        with pytest.raises(UserError, match=r"encoder\.pooling: .* have no pooler; use cls or mean"):
            Encoder(transformer, pooling)
        return
    encoder = Encoder(transformer, pooling).eval()
    both = tokens_of(transformer)
    short = {name: value[1:, :5] for name, value in both.items()}
    torch.testing.assert_close(pooled(encoder, both)[1:], pooled(encoder, short), atol=1e-5, rtol=1e-5)


def test_dropout_is_set_in_every_architecture(kind):
    config = config_of(kind)
    set_dropout(config, 0.37, 0.21)
    rates = {module.p for module in AutoModel.from_config(config).modules() if isinstance(module, torch.nn.Dropout)}
    assert {0.37} <= rates <= {0.37, 0.21, 0.0}
    attention = {getattr(config, name, None) for name in ("attention_probs_dropout_prob", "attention_dropout")}
    assert 0.21 in attention
    set_dropout(untouched := config_of(kind), None, None)
    assert untouched.to_dict() == config_of(kind).to_dict()


def test_frozen_encoders_have_no_gradient_and_no_dropout():
    encoder = Encoder(AutoModel.from_config(config_of("bert")), "mean", frozen=True).train()
    first, second = (pooled(encoder, tokens_of(encoder.transformer)) for _ in range(2))
    assert torch.equal(first, second) and not first.requires_grad


def test_saved_encoders_load_as_automodel_and_give_the_same_bits(transformer, tmp_path):
    encoder = Encoder(transformer, "cls").eval()
    encoder.save(tmp_path)
    tokens = tokens_of(transformer)
    loaded = Encoder(load_transformer(tmp_path), "cls").eval()
    assert torch.equal(pooled(encoder, tokens), pooled(loaded, tokens))
    assert type(AutoModel.from_pretrained(tmp_path)) is type(transformer)


def named(default_params, name, revision=None):
    return default_params.encoder.model_copy(update={"name": name, "revision": revision})


def test_a_local_folder_is_loaded_in_float32(default_params, tmp_path):
    model = AutoModel.from_config(config_of("bert")).half()
    model.save_pretrained(tmp_path)
    loaded = initial_transformer(named(default_params, str(tmp_path)), 100)
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded.pooler.dense.weight, model.pooler.dense.weight.float())


def test_a_second_token_type_is_ignored_where_the_encoder_has_one():
    encoder = Encoder(AutoModel.from_config(config_of("minilm")), "mean").eval()
    tokens = tokens_of(encoder.transformer)
    second = tokens | {"token_type_ids": torch.ones_like(tokens["input_ids"])}  # as klue/roberta-base has
    torch.testing.assert_close(pooled(encoder, second), pooled(encoder, tokens), atol=0, rtol=0)


def test_an_encoder_without_attention_mask_is_an_error():
    with pytest.raises(UserError, match="encoder.name: fnet models take no attention mask"):
        Encoder(AutoModel.from_config(config_of("fnet")), "mean")


def test_missing_paths_and_hub_ids_are_an_error(default_params, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("./nowhere", "a/b/c"):
        with pytest.raises(UserError, match="there is no file or folder .*--queue or --temp"):
            initial_transformer(named(default_params, name), 100)
    with pytest.raises(UserError, match="this id at revision abc on the Hugging Face hub; without a network"):
        initial_transformer(named(default_params, "nobody/nothing-of-the-kind", "abc"), 100)


@pytest.mark.parametrize(("kind", "limit"), [("bert", 512), ("roberta", 64), ("mpnet", 64)])
def test_texts_longer_than_the_positions_are_an_error(kind, limit):
    """Positions of RoBERTa and MPNet start after the padding id; relative ones have no limit."""
    config = config_of(kind)
    check_length(config, limit, "encoder.max_length")
    encoder = Encoder(AutoModel.from_config(config), "cls").eval()
    assert pooled(encoder, tokens_of(encoder.transformer, lengths=(limit,))).isfinite().all()
    with pytest.raises(UserError, match=rf"encoder\.max_length: found {limit + 1}, .* {limit} tokens at most"):
        check_length(config, limit + 1, "encoder.max_length")
    check_length(config_of("deberta-v2"), 100_000, "encoder.max_length")
