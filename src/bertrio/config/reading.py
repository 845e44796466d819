"""Safe reading of YAML files, with errors that name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bertrio.core.errors import UserError

MAX_DEPTH = 50  # of nested blocks; params.yaml has 4
MAX_VALUES = 100_000  # in a file with aliases expanded; params.yaml has 300
MAX_BITS = 1024  # of an integer; a float cannot hold more
MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping.

    Raises:
        UserError: if the file is missing, not UTF-8, not YAML or not a mapping.
    """
    try:
        content = Path(path).read_bytes()
        raw = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); run this in the repository") from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: is not valid YAML: line {line} is not UTF-8; save the file as UTF-8") from error
    except yaml.YAMLError as error:
        lines = [line.replace('in "<unicode string>", ', "at ") for line in str(error).splitlines()]
        raise UserError(printable("\n".join([f"{path}: is not valid YAML:", *lines]))) from error
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else type(raw).__name__
        raise UserError(f"{path}: found {found}, expected groups of params such as 'runtime:'")
    return raw


def printable(text: str) -> str:
    """Return `text` with unpaired surrogates escaped: YAML can hold them, terminals cannot print them."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Loader(yaml.SafeLoader):
    """Safe loader that also rejects duplicate keys, recursive aliases, files that are too deep or too large with
    aliases expanded, and values that do not match their tag.
    """

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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            tag = node.tag.removeprefix("tag:yaml.org,2002:")
            raise _problem(f"found {str(node.value)[:50]!r}, which is no {tag}", node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _problem("found a number that is too large", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # else SafeLoader raises
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in seen:
                    raise _problem(f"key {key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _problem(text: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, text, mark)
