"""The switches that forward selection may add to a base: recipes/extensions.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.files import ExtensionFile, check_name, checked, nearest, read_file

FILE = "extensions.yaml"
BASE = "base"  # the name of a set without extensions


@dataclass(frozen=True)
class Extension:
    """One switch that may be added to a base.

    Args:
        name: as in experiments and ladders.
        title: as in the paper.
        what: one line about what it does.
        overrides: values by dotted param.
        excludes: extensions that it can't be combined with.
        needs: extensions without which it has no effect.
    """

    name: str
    title: str
    what: str
    overrides: Mapping[str, Any]
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def load_extensions(folder: str | Path = "recipes") -> dict[str, Extension]:
    """Load the extensions of a folder of recipes, by name.

    Raises:
        UserError: naming the file, the extension and the key that is wrong.
    """
    path = Path(folder) / FILE
    raw = read_file(path)
    extensions = {}
    for name, block in raw.items():
        check_name(name, str(path))
        given = checked(ExtensionFile, block, f"{path}: {name}")
        for key, others in (("excludes", given.excludes), ("needs", given.needs)):
            for other in others:
                if other not in raw or other == name:
                    raise UserError(f"{path}: {name}: {key}: {other}: no other extension; {nearest(other, raw)}")
        extensions[name] = Extension(name, given.title, given.what, given.set, given.excludes, given.needs)
    if BASE in extensions:
        raise UserError(f"{path}: {BASE}: is the name of a set without extensions; give it another name")
    return extensions


def check_candidates(names: Sequence[str], extensions: Mapping[str, Extension]) -> None:
    """Raise a UserError if a candidate is unknown or given twice."""
    for name in names:
        if name not in extensions:
            raise UserError(f"--candidates {name}: no such extension in recipes/{FILE}; {nearest(name, extensions)}")
        if list(names).count(name) > 1:
            raise UserError(f"--candidates {name}: is given twice")
