"""Params that belong to one machine: where files lie there, and how a run is computed."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertrio.experiments.recipes.params import Block, changes, flatten, set_param, value_text, with_numbers

FOLDERS = ("data.path", "data.corpora_path", "encoder.name")
FILES = re.compile(
    r"data\.files\.[^.]+\.(train|dev|test)|data\.extra_train\.[^.]+\.train|tasks\.[^.]+\.data\.(train|dev|test)"
    r"|evaluate\.challenges\.[^.]+\.path"
)
TEACHER = re.compile(r"(ensemble\.members\.[^.]+\.)?distill\.teacher")
OF_MACHINE = re.compile(r"runtime\.(device|threads)|checkpoints\..*")  # how a run is computed, not which run it is
FIELDS = ("data.source", "encoder.name")  # params that a measured file has fields for


def with_absolute_paths(settings: Mapping[str, Any], root: str | Path) -> Block:
    """Return a copy of raw params with absolute paths to existing files and folders that git does not track.

    A copy of the repository, in which `dvc exp run --temp` and `--queue` run, lacks these files. Relative paths start
    at `root`; the name of an encoder that is no folder is an id of the hub.
    """
    result = copy.deepcopy(dict(settings))
    beside_data = result.get("data", {}).get("path") is not None  # files of `data` start there
    for param, value in flatten(settings).items():
        named = param in FOLDERS or FILES.fullmatch(param) or TEACHER.fullmatch(param)
        if not named or not isinstance(value, str) or value == "tiny":
            continue
        path = Path(root) / Path(value).expanduser()
        if (
            path.exists()
            and not _tracked(path, root)
            and not (beside_data and re.match(r"data\.(files|extra_train)\.", param))
        ):
            set_param(result, param, os.path.abspath(path))
    return result


def _tracked(path: Path, root: str | Path) -> bool:
    """Return whether git tracks the file; it may track only part of a folder, and never the target of a link."""
    command = ["git", "--literal-pathspecs", "ls-files", "--error-unmatch", "--", os.path.abspath(path)]
    plain = path.is_file() and not path.is_symlink()
    return plain and subprocess.run(command, cwd=root, capture_output=True).returncode == 0


def without_place(param: str, value: Any) -> Any:
    """Return a param's value as it is on any machine: only the last name of a local folder."""
    if param not in FOLDERS or not isinstance(value, str):
        return value
    folder = Path(value).expanduser()
    return Path(os.path.abspath(folder)).name if folder.is_absolute() or folder.is_dir() else value


def of_any_machine(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted params as they are on any machine, without those that say how a run is computed."""
    return {param: without_place(param, value) for param, value in params.items() if not OF_MACHINE.fullmatch(param)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the params that make two runs different: by dotted name, both values.

    Paths, devices, threads and checkpoints do not; nor does the rest of `mlm` where it is switched off.
    """
    no_mlm = not any(params.get("mlm", {}).get("enabled", False) for params in (old, new))
    return {
        param: values
        for param, values in changes(with_numbers(old), with_numbers(new)).items()
        if not (no_mlm and param.startswith("mlm."))
        and not OF_MACHINE.fullmatch(param)
        and without_place(param, values[0]) != without_place(param, values[1])
    }


def overridden(row: Mapping[str, Any], run: Mapping[str, Any]) -> Block:
    """Return the overrides of a run, compared with its row, as measured files have them: files by their names alone."""
    return by_last_names({param: new for param, (_, new) in differences(row, run).items() if is_override(param)})


def by_last_names(params: Mapping[str, Any]) -> Block:
    """Return dotted params, blocks taken apart, with local folders and data files by their last names."""
    result = {param: without_place(param, value) for param, (_, value) in changes({}, params).items()}
    files = {param: Path(value).name for param, value in result.items() if FILES.fullmatch(param) and value is not None}
    return result | files


def settings_text(overrides: Mapping[str, Any]) -> str:
    """Return overrides as text for a note below a table: `; -S finetune.lr=2e-05`, once for each param."""
    return "".join(f"; -S {param}={value_text(value)}" for param, value in by_last_names(overrides).items())


def is_override(param: str) -> bool:
    """Return whether a measured file lists the param among its `overrides`."""
    return param not in (*FIELDS, *FOLDERS) and not param.startswith(("runtime.", "checkpoints."))
