"""What in params is of one machine, where things lie there and how a run is made, and so makes no other run of it."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertrio.experiments.recipes.params import Block, changes, value_text, with_numbers

# Params that may name a folder of this machine, or a file
FOLDERS = ("data.path", "data.corpora_path", "encoder.name")
FILES = re.compile(
    r"data\.files\.[^.]+\.(train|dev|test)|data\.more\.[^.]+\.train|tasks\.[^.]+\.data\.(train|dev|test)"
    r"|evaluate\.challenges\.[^.]+\.path"
)
TEACHER = re.compile(r"(ensemble\.members\.[^.]+\.)?distill\.teacher")
OF_MACHINE = re.compile(r"runtime\.(device|threads)|checkpoints\..*")  # params that say how a run is made, not which
FIELDS = ("data.source", "encoder.name")  # params that a measured file has fields for


def with_absolute_paths(settings: Mapping[str, Any], root: str | Path) -> Block:
    """A copy of raw params in which folders and files that git does not track are named by absolute paths, where they
    are there as seen from `root`. The name of an encoder that is no folder is an id, and stays."""
    result = copy.deepcopy(dict(settings))
    for block, key in _named_outside(result, result.get("data", {}).get("path") is not None):
        value = block[key]
        if isinstance(value, str) and value != "tiny":
            path = Path(root) / Path(value).expanduser()
            if path.exists() and not _tracked(path, root):
                block[key] = os.path.abspath(path)
    return result


def _named_outside(block: Block, beside_data: bool, at: str = "") -> Iterator[tuple[Block, str]]:
    """The blocks of raw params and their keys that may name what a copy of the repository lacks.

    Args:
        block: the params at the dotted name `at`.
        beside_data: whether the files that `data` names start at `data.path`, and so stay as they are.
    """
    for key, value in block.items():
        param = f"{at}{key}"
        if isinstance(value, dict):
            yield from _named_outside(value, beside_data, f"{param}.")
        elif beside_data and param.startswith(("data.files.", "data.more.")):
            continue
        elif param in FOLDERS or TEACHER.fullmatch(param) or FILES.fullmatch(param):
            yield block, key


def _tracked(path: Path, root: str | Path) -> bool:
    """Whether git has the file, so that a copy of the repository has it too. Of a folder it may have a part alone, and
    of a link not what it leads to."""
    command = ["git", "--literal-pathspecs", "ls-files", "--error-unmatch", "--", os.path.abspath(path)]
    plain = path.is_file() and not path.is_symlink()
    return plain and subprocess.run(command, cwd=root, capture_output=True).returncode == 0


def without_place(param: str, value: Any) -> Any:
    """A param's value as it is on any machine: of a local folder only its last name."""
    if param not in FOLDERS or not isinstance(value, str):
        return value
    folder = Path(value).expanduser()
    return Path(os.path.abspath(folder)).name if folder.is_absolute() or folder.is_dir() else value


def of_any_machine(params: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted params as they are on any machine, without those that say how a run is made."""
    return {param: without_place(param, value) for param, value in params.items() if not OF_MACHINE.fullmatch(param)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The params in which two runs differ that are not the same run: by dotted name, both values.

    Where folders lie, on which device and on how many threads a run is made, and how often it saves, does not make it
    another; nor does the rest of `mlm` where that is switched off.
    """
    found = changes(with_numbers(old), with_numbers(new))
    no_mlm = not any(params.get("mlm", {}).get("enabled", False) for params in (old, new))
    return {
        param: values
        for param, values in found.items()
        if not (no_mlm and param.startswith("mlm."))
        and not OF_MACHINE.fullmatch(param)
        and without_place(param, values[0]) != without_place(param, values[1])
    }


def overridden(row: Mapping[str, Any], run: Mapping[str, Any]) -> Block:
    """What the params of a run have in place of those of its row, as measured files name it: a file by its name alone,
    as it lies elsewhere on another machine."""
    found = {param: value for param, (_, value) in differences(row, run).items() if is_override(param)}
    return by_last_names(found)


def by_last_names(params: Mapping[str, Any]) -> Block:
    """Dotted params in which local folders and files of data stand by their last names. Blocks are taken apart."""
    leaves = {param: without_place(param, value) for param, (_, value) in changes({}, params).items()}
    files = {param for param, value in leaves.items() if FILES.fullmatch(param) and isinstance(value, str)}
    return {param: Path(value).name if param in files else value for param, value in leaves.items()}


def settings_text(overrides: Mapping[str, Any]) -> str:
    """What `-S` set, for a note below a table, which may be kept: `; -S finetune.lr=2e-05`, once for each param."""
    return "".join(f"; -S {param}={value_text(value)}" for param, value in by_last_names(overrides).items())


def is_override(param: str) -> bool:
    """Whether a measured file has it among `overrides`: not what has a field of its own, nor where data lies and how it
    was computed."""
    return param not in (*FIELDS, *FOLDERS) and not param.startswith(("runtime.", "checkpoints."))
