import math

import pytest
import torch

from bertrio.techniques.weighting import WEIGHTINGS, Uncertainty


def test_uncertainty_and_its_gradients_by_hand():
    weighting = Uncertainty(["sst"]).double()
    w = weighting.log_variances["sst"]
    w.data.fill_(0.3)
    loss = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    value = weighting("sst", loss)
    value.backward()
    assert value.item() == pytest.approx(math.exp(-0.3) * 1.7 + 0.3, rel=1e-12)
    assert w.grad.item() == pytest.approx(1 - math.exp(-0.3) * 1.7, rel=1e-12)
    assert loss.grad.item() == pytest.approx(math.exp(-0.3), rel=1e-12)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_tasks_without_a_given_weight_start_at_1(name):
    assert WEIGHTINGS[name](["sst", "sts"], {"sst": 2.0})("sts", torch.tensor(0.5)).item() == 0.5
