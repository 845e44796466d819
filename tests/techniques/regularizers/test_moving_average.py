import torch
from torch import nn

from bertrio.techniques.regularizers.moving_average import moving_average


def test_the_copy_takes_no_gradient_and_buffers_are_copied():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model(torch.randn(5, 3)).sum().backward()
    average = moving_average(model, lambda: 0.9)
    assert not any(x.requires_grad or x.grad is not None for x in average.module.parameters())
    model(torch.randn(8, 3) + 5)
    average.update_parameters(model)
    assert average.module[1].running_mean.equal(model[1].running_mean)


def test_shared_parameters_are_moved_once_and_stay_shared():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    start = model[0].weight.detach().clone()
    average = moving_average(model, lambda: 0.9)
    with torch.no_grad():
        model[0].weight.add_(1)
    average.update_parameters(model)
    assert average.module[0].weight is average.module[1].weight
    torch.testing.assert_close(average.module[0].weight, 0.9 * start + 0.1 * model[0].weight.detach())
