import torch

from bertrio.model.encoder import initial_transformer
from bertrio.model.tiny import MATCH_SCALE


def test_queries_equal_keys_with_orthonormal_rows(default_params):
    """A token then attends most to equal tokens, at any position."""
    for layer in initial_transformer(default_params.encoder, 300).encoder.layer:
        query, key = layer.attention.self.query.weight, layer.attention.self.key.weight
        assert torch.equal(query, key)
        for rows in query.split(layer.attention.self.attention_head_size):
            torch.testing.assert_close(rows @ rows.T, MATCH_SCALE**2 * torch.eye(len(rows)), atol=1e-5, rtol=0)
