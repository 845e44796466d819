"""Reads YAML that people write: safely, and with mistakes told in place of what PyYAML makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bertrio.core.errors import UserError

DEEPEST = 50  # blocks inside of blocks; params.yaml has 4
MOST_VALUES = 100_000  # in a file, aliases written out; params.yaml has 300
MOST_BITS = 1024  # of a whole number; beyond, it is no float either
MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Reads a YAML file that holds one mapping.

    Raises:
        UserError: if it is missing, not UTF-8, not YAML, or not a mapping.
    """
    try:
        content = Path(path).read_bytes()
        raw = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise UserError(
            f"{path}: can't be read ({error.strerror}); run this from the folder that holds params.yaml"
        ) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}: is not valid YAML: line {line} holds the byte {error.object[error.start]:#04x}, which is no "
            "UTF-8; save the file as UTF-8"
        ) from error
    except yaml.reader.ReaderError as error:
        line = content.decode("utf-8-sig")[: error.position].count("\n") + 1
        raise UserError(
            f"{path}: is not valid YAML: line {line} holds the character {error.character:#04x}, which no text "
            "has; take it out"
        ) from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise UserError(f"{path}: is not valid YAML: {printable(reason)}") from error
    if raw is None:
        raise UserError(f"{path}: is empty, expected groups of params such as 'runtime:'")
    if not isinstance(raw, dict):
        raise UserError(f"{path}: found {type(raw).__name__}, expected groups of params such as 'runtime:'")
    return raw


def printable(text: str) -> str:
    """`text` for a terminal, which takes no half of a surrogate pair, as an escape in a YAML file can make one."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Loader(yaml.SafeLoader):
    """A safe loader with four more errors: a key given twice; an alias inside of what it stands for; more depth or,
    aliases written out, more values than a person writes; a value that is not what its tag says.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open: list[int] = []  # values so far in each node that is being read, outermost first
        self._values: dict[yaml.Node | None, int] = {}  # and in those that are finished

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        if len(self._open) == DEEPEST:
            raise _problem(f"blocks stand in blocks more than {DEEPEST} deep", mark)
        self._open.append(1)
        node = super().compose_node(parent, index)
        count = self._open.pop()
        if is_alias and node not in self._values:
            raise _problem("an alias stands inside of what it stands for", mark)
        self._values[node] = count = self._values[node] if is_alias else count
        if self._open:
            self._open[-1] += count
        if count > MOST_VALUES or (self._open and self._open[-1] > MOST_VALUES):
            raise _problem(f"there are more than {MOST_VALUES} values, aliases written out", mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            tag = node.tag.removeprefix("tag:yaml.org,2002:")
            raise _problem(f"found {str(node.value)[:50]!r}, which is no {tag}", node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise _problem("found a number that is too large", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            return super().construct_mapping(node, deep)  # which says so
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = None if key_node.tag == MERGE else self.construct_object(key_node, deep=True)
            if isinstance(key, str):
                if key in seen:
                    raise _problem(f"key {key!r} is given twice", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


def _problem(text: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, text, mark)
