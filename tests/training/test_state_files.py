"""What goes into the files of a state comes out of them, bit by bit; or they say that they are damaged."""

import errno
import json
import random

import numpy as np
import pytest
import torch
from safetensors import safe_open

from bertrio.training.state_files import DTYPES, MANIFEST, REST, TENSORS, Damaged, read_state, write_state

BYTES = torch.randint(0, 256, (960,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
SHARED = torch.arange(12.0).reshape(3, 4)
TREE = {
    "floats": [0.1, 1 / 3, -0.0, 5e-324, 2.2e-308, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf")],
    "integers": [0, -1, 2**63, -(2**200), True, False],
    "texts": {
        "": "",
        "nul": "a\0b",
        "emoji": "😀",
        "half of one": "\ud83d",
        "line": "\u2028\r\n",
        "a.b": "x",
        "a": {"b": "y"},
    },
    "nothing": [None, [], {}, [[]], {"deep": {"deeper": [{}]}}],
    "python": [3, random.Random(5).getstate()[1], None],
}
TENSORS_OF_ALL_KINDS = {
    "empty": torch.empty(0),
    "empty rows": torch.empty(3, 0, 2, dtype=torch.bfloat16),
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "transposed": SHARED.T,
    "every other": SHARED[:, ::2],
    "expanded": torch.tensor([7]).expand(5, 2),
    "same memory": [SHARED, SHARED, SHARED[1:]],
    "odd floats": torch.tensor([float("nan"), -0.0, 0.0, float("inf"), 1e-45, 1e-38]),
    "odd bf16": torch.tensor([float("nan"), -0.0, float("-inf"), 1e-40]).bfloat16(),
    "parameter": torch.nn.Parameter(torch.ones(3)).detach(),
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
    "read only": np.broadcast_to(np.float32(1), (2, 2)),
}


def same(one, other):
    """Equal in type, shape and every bit; a list stands for a tuple too."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
        return torch.equal(*bits)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and (one.dtype, one.shape, one.tobytes()) == (
            other.dtype,
            other.shape,
            other.tobytes(),
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def through_files(folder, state):
    folder.mkdir()
    write_state(folder, state)
    return read_state(folder)


@pytest.mark.parametrize(
    "state",
    [{}, TREE, TENSORS_OF_ALL_KINDS, ARRAYS_OF_ALL_KINDS, {"all": [TREE, ARRAYS_OF_ALL_KINDS, TENSORS_OF_ALL_KINDS]}],
    ids=["nothing", "json", "tensors", "arrays", "together"],
)
def test_a_state_comes_back_exactly(tmp_path, state):
    assert same(state, through_files(tmp_path / "state", state))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3, 5)], ids=str)
def test_every_bit_pattern_of_every_type_comes_back(tmp_path, dtype, shape):
    kind, count = getattr(torch, dtype), int(np.prod(shape))
    if dtype == "bool":
        tensor = (BYTES[:count] > 127).reshape(shape)
    else:
        tensor = BYTES[: count * kind.itemsize].view(kind).reshape(shape)
    state = {"tensor": tensor} | ({} if dtype == "bfloat16" else {"array": tensor.numpy()})
    assert same(state, through_files(tmp_path / "state", state))


def test_random_trees_come_back_exactly(tmp_path):
    rng = random.Random(0)

    def leaf():
        size = [rng.randrange(3) for _ in range(rng.randrange(4))]
        kind = getattr(torch, rng.choice([name for name in DTYPES if name != "bool"]))
        patterns = torch.tensor(list(rng.randbytes(int(np.prod(size)) * kind.itemsize)), dtype=torch.uint8)
        tensor = patterns.view(kind).reshape(size) if len(patterns) else torch.empty(size, dtype=kind)
        number = np.frombuffer(rng.randbytes(8))[0].item()
        return rng.choice(
            [tensor, tensor.T if tensor.dim() == 2 else None, number, rng.getrandbits(90), chr(rng.randrange(0x110000))]
        )

    def tree(depth):
        kind = rng.randrange(3) if depth else 2
        if kind == 0:
            return {f"{rng.choice('ab.$/ ')}{index}": tree(depth - 1) for index in range(rng.randrange(4))}
        return [tree(depth - 1) for _ in range(rng.randrange(4))] if kind == 1 else leaf()

    for index in range(40):
        state = {"tree": [tree(4) for _ in range(3)]}
        assert same(state, through_files(tmp_path / str(index), state)), index


def test_tensors_come_back_apart_and_writable(tmp_path):
    back = through_files(tmp_path / "state", {"one": SHARED, "other": SHARED, "array": np.ones(3)})
    back["one"].zero_()
    back["array"][0] = 5
    assert torch.equal(back["other"], SHARED)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in (back["one"], back["other"]))


def test_safetensors_reads_the_tensors(tmp_path):
    through_files(tmp_path / "state", {"model": {"weight": SHARED.T, "flag": torch.tensor(True)}})
    with safe_open(tmp_path / "state" / TENSORS, "pt") as file:
        names = {name.split(" ", 1)[1]: name for name in file.keys()}  # noqa: SIM118
        assert torch.equal(file.get_tensor(names["state.model.weight"]), SHARED.T)
        assert file.get_tensor(names["state.model.flag"]).item() is True


@pytest.mark.parametrize(
    ("leaf", "told"),
    [
        (object(), "state.a.1: a state cannot hold a object"),
        ({3: 1}, "state.a.1: a state has keys of text, .* found 3"),
        ({"$": 1}, "found '\\$'"),
        (np.float32(1), "float32"),
        (np.array(["x"]), "ndarray of <U1"),
        (np.array([1.0], dtype=">f8"), "ndarray of >f8"),
        (torch.zeros(2, dtype=torch.complex64), "Tensor of torch.complex64"),
        (torch.zeros(2, 2).to_sparse(), "Tensor of torch.float32"),
        (b"bytes", "bytes"),
        ({1}, "set"),
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else str(value),
)
def test_what_cannot_be_written_is_named_before_anything_is(tmp_path, leaf, told):
    with pytest.raises(TypeError, match=told):
        write_state(tmp_path, {"a": [torch.ones(2), leaf]})
    assert not list(tmp_path.iterdir())


@pytest.fixture
def written(tmp_path):
    state = {"weights": torch.arange(5.0), "loss": 0.25, "order": np.arange(3)}
    write_state(tmp_path, state)
    return tmp_path, state


@pytest.mark.parametrize("name", [TENSORS, REST, MANIFEST])
def test_no_flipped_bit_and_no_missing_byte_goes_unseen(written, name):
    folder, state = written
    whole = (folder / name).read_bytes()
    flipped = (whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole)))
    shorter = (whole[:length] for length in range(0, len(whole), 5))
    for content in [*flipped, *shorter, whole + b"\0", whole + whole]:
        (folder / name).write_bytes(content)
        try:
            back = read_state(folder)
        except Damaged:
            continue
        # all that can change is the space between two words of the manifest
        assert name == MANIFEST and json.loads(content) == json.loads(whole) and same(state, back)


@pytest.mark.parametrize("name", [TENSORS, REST, MANIFEST])
def test_a_missing_or_unreadable_file_is_named(written, name):
    folder, _ = written
    (folder / name).unlink()
    with pytest.raises(Damaged, match=f"{name}: No such file"):
        read_state(folder)
    (folder / name).mkdir()
    with pytest.raises(Damaged, match=f"{name}: Is a directory"):
        read_state(folder)


def test_what_the_disk_cannot_read_now_is_not_called_damaged(written, monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr("pathlib.Path.read_bytes", fails)
    with pytest.raises(OSError, match="no"):
        read_state(written[0])
