"""Arguments shared by several commands."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bertrio.core.errors import writing_to

BUDGET = "paper, quick or curves, see recipes/budgets.yaml (default: %(default)s)"
SET = "set a param on top, as in -S finetune.lr=2e-5; * is any one key; can be repeated"


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 1 on")
    return int(text)


def add_set(parser: argparse.ArgumentParser, text: str = SET) -> None:
    """Add the repeatable argument `-S KEY=VALUE`, which `overrides` reads."""
    parser.add_argument("-S", dest="set", metavar="KEY=VALUE", action="append", default=[], help=text)


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `-S` by dotted param; raise a UserError for an argument that is not KEY=VALUE."""
    from bertrio.experiments.recipes.params import parse_settings

    return parse_settings(args.set)


def need_folder(out: str) -> None:
    """Create the folder of `--out`.

    Raises:
        UserError: if it is not a folder, or not writable.
    """
    with writing_to(f"--out {out}"):
        Path(out).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
