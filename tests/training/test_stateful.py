"""A state that is written to files comes back bit by bit."""

import random

import numpy as np
import pytest
import safetensors
import torch

from bertrio.core.runtime import set_up
from bertrio.training.stateful import REST, TENSORS, GlobalGenerators, read_state, write_state

SHARED = torch.arange(12.0).reshape(3, 4)
PLAIN = {
    "floats": [0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf")],
    "integers": [0, -1, 2**63, -(2**200), True, False],
    "texts": {"": "", "nul": "a\0b", "emoji": "😀", "half of one": "\ud83d", "line": "\u2028\r\n", "a.b": "x"},
    "nested": {"a": {"b": "y"}, "empty": [None, [], {}, [[]], {"deep": {"deeper": [{}]}}]},
    "python": [3, random.Random(5).getstate()[1], None],
}
TENSORS_OF_ALL_KINDS = {
    "empty": torch.empty(3, 0, 2, dtype=torch.bfloat16),
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "transposed": SHARED.T,
    "every other": SHARED[:, ::2],
    "expanded": torch.tensor([7]).expand(5, 2),
    "same memory": [SHARED, SHARED, SHARED[1:]],
    "odd": torch.tensor([float("nan"), -0.0, 0.0, float("inf"), 1e-45, 1e-38]),
    "odd bf16": torch.tensor([float("nan"), -0.0, float("-inf"), 1e-40]).bfloat16(),
    "generator": torch.Generator().manual_seed(7).get_state(),
    "flags": torch.tensor([[True], [False]]),
}
ARRAYS_OF_ALL_KINDS = {
    "empty": np.empty((0, 3)),
    "scalar": np.array(2, dtype=np.int16),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "backwards": np.arange(5)[::-1],
    "odd": np.array([np.nan, -0.0, np.inf, 5e-324]),
    "generator": np.random.MT19937(3).state["state"]["key"],
}


def same(one, other):
    """Equal in type, shape and every bit; a list stands for a tuple too."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return torch.equal(*[tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)])
    if isinstance(one, np.ndarray):
        describe = lambda array: (array.dtype, array.shape, array.tobytes())  # noqa: E731
        return isinstance(other, np.ndarray) and describe(one) == describe(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize(
    "state",
    [{}, PLAIN, TENSORS_OF_ALL_KINDS, ARRAYS_OF_ALL_KINDS, {"a": [PLAIN, ARRAYS_OF_ALL_KINDS, TENSORS_OF_ALL_KINDS]}],
    ids=["nothing", "json", "tensors", "arrays", "together"],
)
def test_a_state_comes_back_exactly(tmp_path, state):
    write_state(tmp_path, state)
    assert same(state, read_state(tmp_path))


def test_tensors_come_back_apart_writable_and_aligned(tmp_path):
    write_state(tmp_path, {"one": SHARED, "other": SHARED, "array": np.ones(3)})
    back = read_state(tmp_path)
    back["one"].zero_()
    back["array"][0] = 5
    assert torch.equal(back["other"], SHARED)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in (back["one"], back["other"]))


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (object(), "state.a.1: a state cannot hold a object"),
        ({3: 1}, "state.a.1: found the key 3, expected text"),
        ({"$": 1}, "found the key '\\$'"),
        (np.float32(1), "float32"),
        (torch.zeros(2, 2).to_sparse(), "sparse tensor"),
        (b"bytes", "bytes"),
    ],
    ids=["object", "number as key", "reserved key", "scalar of numpy", "sparse", "bytes"],
)
def test_what_cannot_be_written_is_named_before_anything_is(tmp_path, leaf, message):
    with pytest.raises(TypeError, match=message):
        write_state(tmp_path, {"a": [torch.ones(2), leaf]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [TENSORS, REST])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut off", "a flipped bit"])
def test_a_state_that_is_not_whole_is_refused(tmp_path, name, damage):
    write_state(tmp_path, {"weights": torch.arange(5.0), "loss": 0.25})
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if damage != "missing":
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        left = {"empty": b"", "cut off": content[:-1], "a flipped bit": flipped}
        (tmp_path / name).write_bytes(left[damage])
    with pytest.raises((OSError, ValueError, safetensors.SafetensorError)):
        read_state(tmp_path)


def test_global_generators_go_on_where_they_were(tmp_path):
    def draw():
        return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random(), random.gauss()

    generators = GlobalGenerators(set_up(3, "cpu"))
    random.gauss()
    write_state(tmp_path, generators.state_dict())
    drawn = draw()
    generators.load_state_dict(read_state(tmp_path))
    assert draw() == drawn
