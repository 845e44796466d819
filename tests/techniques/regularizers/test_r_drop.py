import torch

from bertrio.techniques.regularizers.divergences import squared
from bertrio.techniques.regularizers.r_drop import RDrop, RDropOptions
from tests.techniques.regularizers.contexts import Context, setup_of


def test_penalty_is_half_the_divergence_and_trains_both_passes():
    outputs, second = (torch.tensor(x, requires_grad=True) for x in ([[1.0], [4.0]], [[3.0], [5.0]]))
    context = Context(lambda x: x, outputs, None, squared)
    context.with_new_dropout = lambda: [second]
    penalty = RDrop(RDropOptions(alpha=1, tasks=None), setup_of())(context)
    assert penalty.item() == 0.5 * (4 + 1) / 2
    penalty.backward()
    assert (outputs.grad < 0).all() and (second.grad > 0).all()  # descent brings them closer
