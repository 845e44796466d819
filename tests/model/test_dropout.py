import pytest
import torch
from torch import nn

from bertrio.model.attention import LEVELS, BitDropout, use_bit_dropout


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_zeros_come_as_often_as_asked_and_the_mean_stays(p):
    torch.manual_seed(0)
    values = BitDropout(p).train()(torch.ones(1000, 1001))  # no multiple of 4
    share = (values == 0).double().mean().item()
    spread = 4 * (p * (1 - p) / values.numel()) ** 0.5
    assert share == pytest.approx(p, abs=spread + 1 / LEVELS)
    assert values.double().mean().item() == pytest.approx(1, abs=spread / (1 - p))
    assert set(values.unique().tolist()) == {0.0, values.max().item()}
    assert values.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_entries_are_zero_independently_of_their_neighbours():
    """Entries that share a draw of 64 bits do not go together: the chi-square of all 16 patterns of four."""
    torch.manual_seed(0)
    zero = (BitDropout(0.5).train()(torch.ones(4 * 40_000)) == 0).view(-1, 4).long()
    counts = torch.bincount(zero @ torch.tensor([8, 4, 2, 1]), minlength=16).double()
    assert ((counts - 2500) ** 2 / 2500).sum() < 37.7  # 15 degrees of freedom, 1 in 1,000


def test_it_does_nothing_in_evaluation_or_at_rate_0_and_leaves_nothing_at_rate_1():
    values = torch.randn(5, 5)
    assert torch.equal(BitDropout(0.5).eval()(values), values)
    assert torch.equal(BitDropout(0.0).train()(values), values)
    assert not BitDropout(1.0).train()(values).any()


def test_every_plain_dropout_is_replaced_with_its_rate_and_mode_and_nothing_else_is():
    class Own(nn.Dropout):
        pass

    module = nn.Sequential(nn.Dropout(0.2), nn.ModuleDict({"a": nn.Dropout(0.3), "b": Own(0.4)}), nn.Linear(2, 2))
    module[0].eval()
    use_bit_dropout(module)
    replaced = [(type(part), part.p, part.training) for part in (module[0], module[1]["a"])]
    assert replaced == [(BitDropout, 0.2, False), (BitDropout, 0.3, True)]
    assert type(module[1]["b"]) is Own
