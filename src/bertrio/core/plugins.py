"""Parts that other installed packages add: losses, heads and the like, found by their entry points.

A package names what it offers in its own pyproject.toml:

    [project.entry-points."bertrio.techniques.losses"]
    focal = "my_package.losses:focal"

and `loss: focal` is then a choice like any of bertrio's own. To list entry points imports nothing of theirs, so that
params are checked without torch; a part is imported when it is used. Nothing else is ever loaded by name: no path and
no module that params could point to, only what is installed and says that it is meant for this.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError

GROUPS = {  # name of the entry points' group, after `bertrio.`: what one of them is called
    "losses": "loss",
    "heads": "head",
    "poolings": "pooling",
    "schedules": "schedule",
    "surgeries": "surgery",
    "weightings": "weighting",
}
LONGEST = 100  # characters of a name that a message shows


@dataclass(frozen=True)
class Plugin:
    """One entry point: in which `group`, under which `name`, which `value` (module:object), of which distribution."""

    group: str
    name: str
    value: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{GROUPS[self.group]} {self.name} (of {self.distribution} {self.version})"

    def load(self) -> Any:
        """The object itself.

        Raises:
            UserError: if it can't be imported, or what it needs can't.
        """
        try:
            return EntryPoint(self.name, self.value, f"bertrio.{self.group}").load()
        except Exception as error:  # it is another's code, and runs while it is imported
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            raise UserError(
                f"{self}: {self.value} can't be imported ({reason}); mend {self.distribution}, or install it again"
            ) from error

    def facts(self) -> dict[str, str]:
        """What decides what it does: the object's name, the version, and the SHA-256 of its package's Python files.

        The files count because the version of a package that is being worked on stays the same.
        """
        digest = hashlib.sha256()
        for path in self._files():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        own = {"distribution": self.distribution, "version": self.version, "object": self.value}
        return own | {"sha256": digest.hexdigest()}

    def _files(self) -> list[Path]:
        """The Python files of the package that it lies in, sorted; none if there is no such package.

        Of bertrio's own package the module alone: the stages list what else of it they depend on.
        """
        module, *inner = self.value.partition(":")[0].split(".")
        spec = find_spec(module)  # the first part alone: imports nothing
        if spec is None:
            return []
        if module == "bertrio":
            path = Path(spec.origin).parent.joinpath(*inner)
            return [found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file()]
        if spec.submodule_search_locations is None:
            return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
        return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))


def installed(group: str) -> dict[str, list[Plugin]]:
    """The entry points of a group by name, each with all packages that offer it."""
    found: dict[str, list[Plugin]] = {}
    for plugin in _installed(tuple(sys.path)):
        if plugin.group == group:
            found.setdefault(plugin.name, []).append(plugin)
    return found


@lru_cache
def _installed(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """All plugins, sorted. `path` is where packages are looked for: another one has other packages."""
    every = entry_points()  # once: it looks at all packages that are installed
    found = [
        Plugin(group, point.name, point.value, str(point.dist.name), str(point.dist.version))
        for group in GROUPS
        for point in every.select(group=f"bertrio.{group}")
    ]
    return tuple(sorted(found, key=lambda plugin: (plugin.group, plugin.name, plugin.distribution)))


def find(group: str, own: Collection[str], name: str) -> Plugin | None:
    """The plugin called `name`; None if it is one of bertrio's own.

    Args:
        group: a key of GROUPS.
        own: the names of bertrio's own.
        name: as params give it.

    Raises:
        ValueError: if there is none of that name, or more than one.
    """
    offered = installed(group)
    plugins = offered.get(name, [])
    if (name in own) + len(plugins) > 1:
        owners = ["bertrio"] * (name in own) + [f"{one.distribution} {one.version}" for one in plugins]
        raise ValueError(
            f"{name} is a {GROUPS[group]} of {' and of '.join(owners)}; rename the entry point in group "
            f"bertrio.{group}, or uninstall the package"
        )
    if plugins:
        return plugins[0]
    if name in own:
        return None
    known, name = [*own, *offered], name[:LONGEST]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    guess = f"; did you mean {close[0]}?" if close else ""
    listed = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}" if len(known) > 1 else repr(known[0])
    raise ValueError(f"expected {listed}, found {name!r}{guess}")


def choose(group: str, own: Mapping[str, Any], name: str) -> tuple[Any, Plugin | None]:
    """The part called `name`: `own[name]`, or what an installed package offers under that name, and the plugin if so.

    Args:
        group: a key of GROUPS.
        own: bertrio's own, by name.
        name: as params give it.

    Raises:
        ValueError: if there is none of that name, or more than one.
        UserError: if it can't be imported.
    """
    try:
        plugin = find(group, own, name)
    except ValueError as error:
        raise ValueError(f"{GROUPS[group]}: {error}") from None
    return (own[name], None) if plugin is None else (plugin.load(), plugin)


@contextmanager
def blamed(plugin: Plugin | None) -> Iterator[None]:
    """Errors in the block are told as the plugin's: to whoever runs bertrio, a traceback into its code says little.

    Args:
        plugin: whose code runs in the block; None: bertrio's own, whose errors stay as they are.

    Raises:
        UserError: for any error, if it is a plugin.
    """
    try:
        yield
    except Exception as error:  # it is another's code
        if plugin is None or isinstance(error, UserError):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        told = " ".join(str(error).split()).removeprefix(f"{GROUPS[plugin.group]} {plugin.name}: ")
        raise UserError(f"{plugin}: {kind}{told[:500]}") from error


def keyword_options(part: Any) -> set[str]:
    """The names of a function's keyword-only arguments, which are the options that params may set."""
    return {name for name, of in signature(part).parameters.items() if of.kind is Parameter.KEYWORD_ONLY}


def check_options(given: Collection[str], known: Collection[str], whose: str = "") -> None:
    """Checks the names of options that are `given` against those that are `known`.

    Raises:
        ValueError: naming those that are not; begins with `whose`.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        expected = " or ".join(sorted(known)) or "no options"
        raise ValueError(f"{whose}unknown option {', '.join(unknown)}: expected {expected}")
