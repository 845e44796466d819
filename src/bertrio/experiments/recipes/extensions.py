"""What forward stepwise selection may add to a base: recipes/extensions.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from bertrio.core.errors import UserError
from bertrio.core.options import Group
from bertrio.experiments.recipes.files import Overrides, Text, Texts, check_names, checked, nearest, read_file

FILE = "extensions.yaml"
BASE = "base"  # what a set without extensions is called


@dataclass(frozen=True)
class Extension:
    """One switch that may be added to a base.

    Args:
        name: as experiments and ladders call it.
        title: as a paper calls it.
        what: one line about what it does.
        overrides: on params.yaml, nested as there.
        excludes: extensions that it can't stand beside, whichever comes first.
        needs: extensions without which it has no effect.
    """

    name: str
    title: str
    what: str
    overrides: Mapping[str, Any]
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


class ExtensionFile(Group):
    """One block of the file."""

    title: Text
    what: Text
    set: Annotated[Overrides, Field(min_length=1)]
    excludes: Texts
    needs: Texts


def load_extensions(folder: str | Path = "recipes") -> dict[str, Extension]:
    """The extensions of a folder of recipes, by name.

    Raises:
        UserError: naming the file, the extension and the key that is wrong.
    """
    path = Path(folder) / FILE
    raw = read_file(path)
    check_names(raw, str(path))
    extensions = {}
    for name, block in raw.items():
        given = checked(ExtensionFile, block, f"{path}: {name}")
        for key, others in (("excludes", given.excludes), ("needs", given.needs)):
            for other in others:
                if other not in raw or other == name:
                    raise UserError(f"{path}: {name}: {key}: {other}: no other extension; {nearest(other, raw)}")
        extensions[name] = Extension(
            name, given.title, given.what, given.set, tuple(given.excludes), tuple(given.needs)
        )
    if BASE in extensions:
        raise UserError(f"{path}: {BASE}: is what a set without extensions is called; give it another name")
    return extensions


def check_candidates(names: Sequence[str], extensions: Mapping[str, Extension]) -> None:
    """Checks the names of candidates.

    Raises:
        UserError: with the nearest name, if one is unknown or given twice.
    """
    for name in names:
        if name not in extensions:
            raise UserError(f"--candidates {name}: no such extension in recipes/{FILE}; {nearest(name, extensions)}")
        if list(names).count(name) > 1:
            raise UserError(f"--candidates {name}: is given twice")
