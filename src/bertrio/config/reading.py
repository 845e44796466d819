"""YAML as DVC reads it: version 1.2, where `no` is text and `2e-05` a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from bertrio.core.errors import UserError

NUMBER = re.compile(  # in version 1.2 (YAML 1.2.2, section 10.3.2), not always in 1.1
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|0o[0-7]+$"
)


def read_yaml(path: str | Path, content: bytes | None = None) -> dict[str, Any]:
    """Read a YAML file that holds one mapping.

    If `content` is given, it is read instead, and messages call it `path`.

    Raises:
        UserError: if the file is missing, not UTF-8, not YAML or not a mapping; messages about syntax name the line.
    """
    try:
        content = Path(path).read_bytes() if content is None else content
        raw = YAML(typ="safe", pure=True).load(content.decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); run this in the repository") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: is not valid YAML: line {line} is not UTF-8; save the file as UTF-8") from error
    except (YAMLError, ValueError, LookupError, RecursionError) as error:  # ruamel.yaml raises all four
        if isinstance(error, MarkedYAMLError):
            error.note = None  # how to allow duplicate keys
        lines = [line.replace('in "<unicode string>", ', "at ") for line in str(error).splitlines()]
        raise UserError("\n".join([f"{path}: is not valid YAML:", *lines])) from error
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else type(raw).__name__
        raise UserError(f"{path}: found {found}, expected groups of params such as 'runtime:'")
    return raw


def yaml_text(value: Any) -> str:
    """Return a value as YAML that versions 1.1 and 1.2 read alike: text that looks like another type is quoted."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper for version 1.1, which quotes text that is a number in 1.2, too."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, None)
