"""The project's params.yaml with overrides."""

import pytest
import yaml

from bertrio.config import load_params, member_params, merged, read_yaml
from tests.linear_heads import LINEAR_HEADS


@pytest.fixture
def load(tmp_path, root):
    """Load the project's params.yaml with linear heads and overrides on top."""

    def run(overrides, member=None):
        path = tmp_path / "params.yaml"
        params = merged(merged(read_yaml(root / "params.yaml"), LINEAR_HEADS), overrides)
        path.write_text(yaml.safe_dump(params, sort_keys=False))
        loaded = load_params(path)
        return member_params(loaded, member) if member else loaded

    return run
