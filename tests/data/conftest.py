"""Tasks and params for tests of bertrio.data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bertrio.config import DataParams, Params, load_params, merged
from bertrio.core.tasks import Task, build_target


@pytest.fixture(scope="session")
def tasks() -> dict[str, Task]:
    return {
        "sst": Task("sst", "single", "cross", build_target("ordered", 5)),
        "qqp": Task("qqp", "pair", "cross", build_target("binary")),
        "sts": Task("sts", "pair", "cross", build_target("score", limits=(0, 5))),
    }


@pytest.fixture(scope="session")
def make_frame() -> Callable[..., pd.DataFrame]:
    """Return labelled rows of 1 to 29 random words, as single texts and as pairs."""

    def make(seed: int, rows: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        words = ["good", "bad", "film", "question", "why"]
        names = ("text", "text_a", "text_b")
        texts = {name: [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(rows)] for name in names}
        return pd.DataFrame({"id": [f"q{i}" for i in range(rows)], **texts, "label": 1.0})

    return make


@pytest.fixture
def params(root: Path) -> Callable[..., Params]:
    """Return the default params with overrides by group, such as `params(data={"source": "files"})`."""
    base = load_params(root / "params.yaml").model_dump(by_alias=True)
    return lambda **groups: Params.model_validate(merged(base, groups))


@pytest.fixture
def data_params(params: Callable[..., Params]) -> Callable[..., DataParams]:
    """Return the default group `data` with overrides, without the checks of its source."""
    base: dict[str, Any] = params().data.model_dump(by_alias=True)
    return lambda **overrides: DataParams.model_validate(merged(base, overrides))
