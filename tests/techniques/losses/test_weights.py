import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from bertrio.techniques.losses import inverse_frequency
from bertrio.techniques.losses.weights import weighted_mean


@pytest.mark.parametrize("counts", [[10, 20, 30], [1, 999], [7, 7, 7, 7], [5]])
def test_inverse_frequency_equals_scikit_learns_balanced(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    balanced = compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels)
    np.testing.assert_allclose(inverse_frequency(counts).numpy(), balanced, rtol=1e-6)


def test_an_absent_class_weighs_nothing():
    assert inverse_frequency([4, 0, 2]).tolist() == [0.75, 0.0, 1.5]


def test_a_batch_of_one_class_keeps_its_weight():
    rows, labels = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0])
    assert weighted_mean(rows, labels, torch.tensor([9.0, 0.5])).item() == 1.0
