"""Models with a head or a pooling of another package: exported where a format can have them, else refused in words."""

import sys

import pytest

from bertrio.core.errors import UserError
from bertrio.inference.export.export import export_model
from tests.core.test_plugins import install

MODULE = """
    import torch
    from torch import nn

    from bertrio.core.tasks import HeadOutput

    class Joined(nn.Module):
        vectors = 2

        def __init__(self, hidden_size, target, size, dropout):
            super().__init__()
            self.project = nn.Linear(2 * hidden_size, size)  # a name that bertrio's own heads have another use for

        def forward(self, u, v):
            return HeadOutput(self.project(torch.cat((u, v), dim=1)))

    class Plain(nn.Module):
        vectors = 1

        def __init__(self, hidden_size, target, size, dropout):
            super().__init__()
            self.linear = nn.Linear(hidden_size, size)

        def forward(self, u):
            return HeadOutput(self.linear(u))

    def first(output, mask):
        return output.last_hidden_state[:, 0]
"""
POINTS = {
    "heads": {"joined": "own_parts:Joined", "plain": "own_parts:Plain"},
    "poolings": {"first": "own_parts:first"},
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("site")
        patch.syspath_prepend(str(install(folder / "own", "own", points=POINTS, module=MODULE)))
        yield
    sys.modules.pop("own_parts", None)


@pytest.fixture(scope="module")
def own_heads(package, make_model):
    return make_model(tasks={"sts": {"encoding": "bi", "head": "joined"}, "qqp": {"head": "plain"}})


@pytest.fixture(scope="module")
def own_pooling(package, make_model):
    return make_model(encoder={"pooling": "first"})


def test_vectors_in_front_of_a_head_of_another_package_are_exported(own_heads, tmp_path):
    assert export_model(own_heads, tmp_path / "out", "sentence-transformer", "sts").difference < 1e-4


def test_the_encoder_is_exported_under_a_pooling_of_another_package(own_pooling, tmp_path):
    assert export_model(own_pooling, tmp_path / "out", "encoder").difference < 1e-4


@pytest.mark.parametrize("form", ["classifier", "cross-encoder"])
def test_another_packages_pooling_is_refused_by_its_name(own_pooling, form, tmp_path):
    with pytest.raises(UserError, match=r"encoder\.pooling: found first, and .* can only have cls, mean, pooler"):
        export_model(own_pooling, tmp_path / "out", form, "qqp")


def test_another_packages_head_is_refused_as_one(own_heads, tmp_path):
    with pytest.raises(UserError, match="task qqp: only a head linear or mlp can be made"):
        export_model(own_heads, tmp_path / "out", "cross-encoder", "qqp")
    with pytest.raises(UserError, match="task qqp: only a head linear"):
        export_model(own_heads, tmp_path / "out", "classifier", "qqp")
