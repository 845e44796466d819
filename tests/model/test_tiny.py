import torch
from transformers import AutoModel

from bertrio.model.encoder import initial_transformer
from bertrio.model.tiny import MATCH_SCALE, start_by_matching, tiny_config


def test_a_token_attends_most_to_its_like_wherever_it_stands(default_params):
    torch.manual_seed(0)
    bert = initial_transformer(default_params.encoder, 300).eval()
    bert.set_attn_implementation("eager")
    ids = torch.tensor([[2, 50, 60, 70, 3, 80, 70, 90, 3]])  # 70 stands in both sentences
    types = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1]])
    attention = bert(ids, token_type_ids=types, output_attentions=True).attentions[0].mean(dim=1)[0]
    assert set(attention[3].topk(2).indices.tolist()) == {3, 6}
    assert set(attention[6].topk(2).indices.tolist()) == {3, 6}


def test_queries_equal_keys_with_orthonormal_rows_in_every_head(default_params):
    bert = AutoModel.from_config(tiny_config(default_params.encoder.tiny, 300))
    start_by_matching(bert)
    for layer in bert.encoder.layer:
        query, key = layer.attention.self.query.weight, layer.attention.self.key.weight
        assert torch.equal(query, key)
        for rows in query.split(layer.attention.self.attention_head_size):
            torch.testing.assert_close(rows @ rows.T, MATCH_SCALE**2 * torch.eye(len(rows)), atol=1e-5, rtol=0)
