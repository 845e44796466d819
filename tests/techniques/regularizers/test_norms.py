import torch

from bertrio.techniques.regularizers.norms import l1, l2


def test_norms_equal_hand_algebra():
    parameters = [torch.tensor([[1.0, -2.0]]), torch.tensor([0.5])]
    assert l1(parameters).item() == 1 + 2 + 0.5
    assert l2(parameters).item() == 1 + 4 + 0.25  # squares, no root
    assert l1([]).item() == l2(iter(())).item() == 0.0


def test_gradients_equal_hand_algebra():
    for norm, expected in ((l1, [1.0, -1.0, 0.0]), (l2, [6.0, -4.0, 0.0])):
        weights = torch.tensor([3.0, -2.0, 0.0], requires_grad=True)
        norm([weights]).backward()
        assert weights.grad.tolist() == expected


def test_norms_are_summed_in_float32():
    weights = torch.ones(4097, dtype=torch.bfloat16)
    for norm in (l1, l2):
        assert norm([weights]).item() == 4097.0  # bf16 has no such number
        assert norm([weights]).dtype == torch.float32
