import pytest
import torch
from torch import nn

from bertrio.techniques import gradients as module
from bertrio.techniques.gradients import TaskGradients, conflict_rows


class Model(nn.Module):
    """A shared encoder with a scalar parameter and one that no task uses, and a head for each task."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(2, 2))
        self.only_a = nn.Parameter(torch.ones(4))  # part of the encoder that only task a passes through
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})

    def shared(self):
        return [*self.encoder.parameters(), self.scale, self.unused, self.only_a]

    def loss(self, task):
        x = torch.arange(6.0).reshape(2, 3) / 5 + (task == "b")
        hidden = torch.tanh(self.encoder(x)) * self.scale
        if task == "a":
            hidden = hidden * self.only_a
        return self.heads[task](hidden).square().mean()


def collect(model, tasks=("a", "b")):
    """Collect the gradients of these tasks, each on its own."""
    store = TaskGradients(model.shared())
    for task in tasks:
        model.loss(task).backward()
        store.take(task)
    return store


def flat(model, task):
    """Return the task's gradient over all shared parameters as one float64 vector, from its own backward pass."""
    gradients = torch.autograd.grad(model.loss(task), model.shared(), materialize_grads=True)
    return torch.cat([gradient.double().reshape(-1) for gradient in gradients])


def test_weights_of_one_give_the_plain_sum_bit_for_bit():
    model, plain = Model(), Model()
    collect(model).put([1.0, 1.0])
    for task in ("a", "b"):
        plain.loss(task).backward()
    sums = [[parameter.grad for parameter in module.parameters()] for module in (model, plain)]
    torch.testing.assert_close(*sums, rtol=0, atol=0)
    assert model.scale.grad.shape == () and model.scale.grad != 0


def test_put_is_the_weighted_sum_and_empties_the_store():
    model = Model()
    expected = 0.3 * flat(model, "a") - 2.0 * flat(model, "b")
    store = collect(model)
    store.put(torch.tensor([0.3, -2.0], dtype=torch.float64))
    result = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in model.shared()])
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-6)
    assert store.tasks == () and model.unused.grad is None


def test_gramian_equals_that_of_flattened_gradients_in_float64():
    model = Model()
    g = torch.stack([flat(model, "a"), flat(model, "b")])
    gramian = collect(model).gramian()
    assert gramian.dtype == torch.float64 and gramian.device.type == "cpu" and torch.equal(gramian, gramian.T)
    torch.testing.assert_close(gramian, g @ g.T, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tasks", ["ab", "abcdefgh"])  # few: products of two; many: a product of matrices
def test_gramian_of_a_large_parameter_is_as_exact(tasks):
    parameter = nn.Parameter(torch.zeros(1000, 1000))
    store = TaskGradients([parameter])
    sets = [torch.rand(1000, 1000, generator=torch.Generator().manual_seed(seed)) for seed in range(len(tasks))]
    sets[1] = sets[1].T  # not contiguous: the layout must not matter
    for task, gradient in zip(tasks, sets):
        parameter.grad = gradient
        store.take(task)
    g = torch.stack([gradient.double().reshape(-1) for gradient in sets])
    torch.testing.assert_close(store.gramian(), g @ g.T, rtol=1e-6, atol=0)


def test_conflict_rows_by_hand():
    g = torch.tensor([[3.0, 4.0], [-3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    rows = conflict_rows(7, ["a", "b", "c"], g @ g.T)
    assert rows[0] == {
        "step": 7, "task_a": "a", "task_b": "b", "dot": 7.0, "cosine": 0.28, "norm_a": 5.0, "norm_b": 5.0
    }  # fmt: skip
    assert [(row["task_a"], row["task_b"]) for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [row["cosine"] for row in rows[1:]] == [0.0, 0.0]
    over = torch.tensor([[1.0, 1.0000001], [1.0000001, 1.0]], dtype=torch.float64)
    assert conflict_rows(0, ["a", "b"], over)[0]["cosine"] == 1.0


IDS = {"a": [[3, 7, 7, 9], [1, 7, 19, 3]], "b": [[9, 2, 7, 2], [0, 18, 1, 4]], "c": [[5, 7, 2, 2], [3, 3, 8, 4]]}


class Words(nn.Module):
    """Embeddings of three tasks with words in common, with sparse or dense gradients."""

    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.Embedding(20, 5, sparse=sparse), nn.Linear(5, 2)

    def shared(self):
        return list(self.parameters())

    def loss(self, task):
        squares = self.layer(self.words(torch.tensor(IDS[task]))).square()
        return (squares.mean(dim=(1, 2)) * torch.tensor([1.0, 2.0])).sum()


@pytest.mark.parametrize(("weights", "few"), [((1.0, 1.0, 1.0), 0), ((0.3, -2.0, 0.7), 6)])
def test_sparse_gradients_combine_like_dense_ones(weights, few, monkeypatch):
    monkeypatch.setattr(module, "FEW", few)
    gramians, sums = [], []
    for sparse in (True, False):
        model = Words(sparse)
        store = collect(model, "abc")
        gramians.append(store.gramian())
        store.put(weights)
        assert model.words.weight.grad.is_sparse == sparse
        sums.append([parameter.grad.to_dense() for parameter in model.parameters()])
    torch.testing.assert_close(*gramians, rtol=1e-6, atol=0)
    torch.testing.assert_close(*sums, rtol=1e-5, atol=1e-7)


def test_order_of_tasks_is_that_of_the_step():
    model = Model()
    store = TaskGradients(model.shared())
    store.begin(("a", "b"))
    for task in ("b", "a"):
        model.loss(task).backward()
        store.take(task)
    assert store.tasks == ("a", "b")
