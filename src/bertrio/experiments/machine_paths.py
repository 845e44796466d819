"""Params that depend on the machine: paths of files, and options of how a run is computed."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertrio.experiments.recipes.params import Block, changes, flatten, set_param, value_text

FOLDERS = ("data.path", "data.corpora_path", "encoder.name")
FILES = re.compile(
    r"data\.files\.[^.]+\.(train|dev|test)|data\.extra_train\.[^.]+\.train|tasks\.[^.]+\.data\.(train|dev|test)"
    r"|data\.unlabelled\.[^.]+\.path|evaluate\.challenges\.[^.]+\.path|distill\.teacher"
)
MACHINE_PARAMS = re.compile(r"runtime\.(device|threads)|checkpoints\..*")  # how a run is computed, not its result
FIELDS = ("data.source", "encoder.name")  # params that are fields of a measured file


def with_absolute_paths(settings: Mapping[str, Any]) -> Block:
    """Return a copy of raw params with absolute paths to existing files and folders that git does not track.

    The copies of the repository in which `dvc exp run --temp` and `--queue` run lack these files. An encoder
    name that is not a folder is an id on the hub.
    """
    result = copy.deepcopy(dict(settings))
    has_data_path = result.get("data", {}).get("path") is not None  # where paths of data.files start
    for param, value in flatten(settings).items():
        if (param in FOLDERS or FILES.fullmatch(param)) and isinstance(value, str) and value != "tiny":
            path = Path(value).expanduser()
            below_data_path = has_data_path and re.match(r"data\.(files|extra_train|unlabelled)\.", param)
            if path.exists() and not below_data_path and not _tracked(path):
                set_param(result, param, os.path.abspath(path))
    return result


def _tracked(path: Path) -> bool:
    """Return whether git tracks the file; False for folders and links, whose contents it may not track."""
    command = ["git", "--literal-pathspecs", "ls-files", "--error-unmatch", "--", os.path.abspath(path)]
    regular = path.is_file() and not path.is_symlink()
    return regular and subprocess.run(command, capture_output=True).returncode == 0


def without_folder(param: str, value: Any) -> Any:
    """Return a param's value independent of the machine: of a local folder only its last name."""
    if param not in FOLDERS or not isinstance(value, str):
        return value
    folder = Path(value).expanduser()
    return Path(os.path.abspath(folder)).name if folder.is_absolute() or folder.is_dir() else value


def machine_independent(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted params without `MACHINE_PARAMS`, and with the last names of local folders."""
    return {
        param: without_folder(param, value) for param, value in params.items() if not MACHINE_PARAMS.fullmatch(param)
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the params that make two runs different, by dotted name, with both values.

    Folders of data and encoder, devices, threads and checkpoints do not count, nor do params of `mlm` where it is
    disabled in both.
    """
    no_mlm = not any(params.get("mlm", {}).get("enabled", False) for params in (old, new))
    return {
        param: values
        for param, values in changes(old, new).items()
        if not (no_mlm and param.startswith("mlm."))
        and not MACHINE_PARAMS.fullmatch(param)
        and _same_place(param, values[0]) != _same_place(param, values[1])
    }


def _same_place(param: str, value: Any) -> Any:
    """Return a value that is equal for two names of one file, and for local folders of one name."""
    if FILES.fullmatch(param) and not param.startswith("data.") and isinstance(value, str):  # those start at data.path
        return os.path.abspath(os.path.expanduser(value))
    return without_folder(param, value)


def overridden(row: Mapping[str, Any], run: Mapping[str, Any]) -> Block:
    """Return the params of a run that differ from its row, as in measured files: files by their last names."""
    return by_last_names({param: new for param, (_, new) in differences(row, run).items() if is_override(param)})


def by_last_names(params: Mapping[str, Any]) -> Block:
    """Return flat dotted params, with local folders and data files by their last names."""
    result = {param: without_folder(param, value) for param, (_, value) in changes({}, params).items()}
    files = {param: Path(value).name for param, value in result.items() if FILES.fullmatch(param) and value is not None}
    return result | files


def settings_text(overrides: Mapping[str, Any]) -> str:
    """Return overrides as text for notes and titles: `; -S finetune.lr=2e-05` for each param."""
    return "".join(f"; -S {param}={value_text(value)}" for param, value in by_last_names(overrides).items())


def is_override(param: str) -> bool:
    """Return whether a measured file lists the param among its `overrides`."""
    return param not in (*FIELDS, *FOLDERS) and not param.startswith(("runtime.", "checkpoints."))
