import numpy as np
import pytest
import torch
from scipy.special import softmax

from bertrio.techniques.regularizers.distillation import teacher_divergence, vector_distance


def by_hand(name, outputs, teacher, temperature):
    """The loss, and its gradient with respect to the outputs, in numpy."""
    if name == "squared":
        return ((outputs - teacher) ** 2).mean(), 2 * (outputs - teacher) / len(outputs)
    logits = outputs if outputs.shape[1] > 1 else np.concatenate([0 * outputs, outputs], axis=1)
    q = softmax(logits / temperature, axis=1)
    p = teacher ** (1 / temperature) / (teacher ** (1 / temperature)).sum(axis=1, keepdims=True)
    loss = temperature**2 * (p * np.log(p / q)).sum(axis=1).mean()
    return loss, (temperature * (q - p) / len(q))[:, -outputs.shape[1] :]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(("name", "size"), [("categorical", 5), ("bernoulli", 2), ("bernoulli", 1), ("squared", 1)])
def test_value_and_gradient_by_hand(name, size, temperature):
    outputs, teacher = torch.randn(2, 6, max(2, size), generator=torch.Generator().manual_seed(0)).unbind()
    outputs = outputs[:, :size].clone().requires_grad_()
    teacher = teacher[:, :1] if name == "squared" else teacher.softmax(-1)
    divergence = teacher_divergence(name, outputs, teacher, temperature)
    loss, gradient = by_hand(name, outputs.detach().double().numpy(), teacher.double().numpy(), temperature)
    assert divergence.dtype == torch.float32 and divergence.item() == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(torch.autograd.grad(divergence, outputs)[0], gradient, rtol=1e-4, atol=1e-6)


def test_multilabel_is_the_sum_of_binary_divergences():
    outputs, teacher = torch.randn(6, 3), torch.rand(6, 3)
    each = [(outputs[:, [c]], torch.stack([1 - teacher[:, c], teacher[:, c]], 1)) for c in range(3)]
    expected = sum(teacher_divergence("bernoulli", *sides, 2.0) for sides in each)
    torch.testing.assert_close(teacher_divergence("bernoullis", outputs, teacher, 2.0), expected)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_one_hot_teachers_give_cross_entropy(temperature):
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    divergence = teacher_divergence("categorical", outputs, torch.eye(3)[labels], temperature)
    expected = temperature**2 * torch.nn.functional.cross_entropy(outputs / temperature, labels)
    torch.testing.assert_close(divergence, expected)


def test_vector_distances_by_hand():
    u, v = np.random.default_rng(0).normal(size=(2, 4, 2, 5))
    lengths = np.linalg.norm(u, axis=-1) * np.linalg.norm(v, axis=-1)
    for name, expected in (("cosine", 1 - ((u * v).sum(axis=-1) / lengths).mean()), ("mse", ((u - v) ** 2).mean())):
        assert vector_distance(name, torch.tensor(u), torch.tensor(v)).item() == pytest.approx(expected, rel=1e-5)
