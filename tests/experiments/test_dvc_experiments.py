"""Experiments that are really run are in test_running.py."""

import os

import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.dvc_experiments import experiments


def test_a_folder_without_dvc_is_an_error(tmp_path):
    with pytest.raises(UserError, match="run this from the folder that holds dvc.yaml"):
        experiments(tmp_path)
    assert os.listdir(tmp_path) == []
