"""Safe reading and writing of YAML by the core schema of YAML 1.2, as DVC reads it; errors name the line."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from bertrio.core.errors import UserError

MAX_DEPTH = 50  # of nested blocks; params.yaml has 4
MAX_VALUES = 100_000  # in a file with aliases expanded; params.yaml has 300
MAX_DIGITS = 256  # of a number; a float holds integers of as many, in any base
TAG = "tag:yaml.org,2002:"
MERGE = f"{TAG}merge"
TOO_LARGE = "a number that is too large; put text in quotes"
SCALARS = {  # plain scalars that are not text: the core schema (YAML 1.2.2, section 10.3.2), and what DVC adds to it
    "null": r"~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
    "odd": r"\d{4}-\d\d?-\d\d?([Tt ].*)?|=|[-+]?0b[01_]+|[-+]0[xo][\da-fA-F_]+|[-+]?\d+_[\d_.]*([eE][-+]?\d+)?",
}


def read_yaml(path: str | Path, content: bytes | None = None) -> dict[str, Any]:
    """Read a YAML file that holds one mapping, by the core schema of YAML 1.2: `no` is text and `2e-05` a number.

    If `content` is given, it is read instead, and messages call it `path`.

    Raises:
        UserError: if the file is missing, not UTF-8, not YAML or not a mapping.
    """
    try:
        content = Path(path).read_bytes() if content is None else content
        raw = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); run this in the repository") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: is not valid YAML: line {line} is not UTF-8; save the file as UTF-8") from error
    except yaml.YAMLError as error:
        lines = [line.replace('in "<unicode string>", ', "at ") for line in str(error).splitlines()]
        raise UserError(printable("\n".join([f"{path}: is not valid YAML:", *lines]))) from error
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else type(raw).__name__
        raise UserError(f"{path}: found {found}, expected groups of params such as 'runtime:'")
    return raw


def yaml_text(value: Any) -> str:
    """Return a value as YAML that versions 1.1 and 1.2 read alike: text that looks like another type is quoted."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def printable(text: str) -> str:
    """Return `text` with unpaired surrogates escaped: YAML can hold them, terminals cannot print them."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Dumper(yaml.SafeDumper):
    """Safe dumper that knows the plain scalars of both versions."""


class _Loader(yaml.SafeLoader):
    """Safe loader of the core schema that also rejects duplicate keys, recursive aliases, files that are too deep or
    too large with aliases expanded, and values that do not match their tag.
    """

    yaml_implicit_resolvers: dict[str | None, Any] = {}  # noqa: RUF012 - PyYAML's own; without those of YAML 1.1
    yaml_constructors = {  # noqa: RUF012
        key: function
        for key, function in yaml.SafeLoader.yaml_constructors.items()
        if key is None or key.removeprefix(TAG) in ("map", "seq", "str")
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth, self._values = 0, 0  # current depth, values read
        self._sizes: dict[yaml.Node | None, int] = {}  # values in each finished node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark, is_alias, before = self.peek_event().start_mark, self.check_event(yaml.AliasEvent), self._values
        if self._depth == MAX_DEPTH:
            raise _problem(f"blocks stand in blocks more than {MAX_DEPTH} deep", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and node not in self._sizes:
            raise _problem("an alias stands inside of what it stands for", mark)
        self._values += self._sizes[node] if is_alias else 1
        if self._values > MAX_VALUES:
            raise _problem(f"there are more than {MAX_VALUES} values, aliases written out", mark)
        self._sizes[node] = self._values - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # else SafeLoader raises
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in seen:
                    raise _problem(f"key {key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Construct a null, boolean, integer or float.

    Raises:
        yaml.YAMLError: if the text is none of its tag, DVC's reader takes it for something else, or it is too large.
    """
    kind, text, problem = node.tag.removeprefix(TAG), loader.construct_scalar(node), TOO_LARGE
    if not re.fullmatch(SCALARS[kind], text):
        problem = f"which is no {kind}"
    elif kind == "odd":
        problem = "which DVC does not read as text; put text in quotes"
    elif kind in ("null", "bool"):
        return None if kind == "null" else text.lower() == "true"
    elif kind == "int" and len(text) <= MAX_DIGITS:
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    elif kind == "float" and (not text[-1].isdigit() or abs(float(text)) < math.inf):
        return float(re.sub(r"\.(?=[in])", "", text.lower()))
    raise _problem(f"found {text[:50]!r}, {problem}", node.start_mark)


for _kind, _pattern in SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(TAG + _kind, re.compile(f"(?:{_pattern})$"), None)
    if _kind != "merge":
        _Loader.add_constructor(TAG + _kind, _scalar)


def _problem(text: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, text, mark)
