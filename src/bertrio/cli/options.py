"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertrio.core.errors import missing_package, writing_to

BUDGET = "paper or quick, see recipes/budgets.yaml (default: %(default)s)"
SET = "set a param on top, as in -S finetune.lr=2e-5; * is any one key; can be repeated"


def positive(text: str) -> int:
    """Parse a whole number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 1 on")
    return int(text)


def add_set(parser: argparse.ArgumentParser, text: str = SET) -> None:
    """Add `-S KEY=VALUE`, which can be repeated; `overrides` reads it."""
    parser.add_argument("-S", dest="set", metavar="KEY=VALUE", action="append", default=[], help=text)


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return what `-S` set, by dotted param; raises a UserError for what is no setting."""
    from bertrio.experiments.recipes.params import parse_settings

    return parse_settings(args.set)


def need_folder(out: str) -> None:
    """Create the folder that `--out` names.

    Raises:
        UserError: if it is not a folder, or not writable.
    """
    with writing_to(f"--out {out}"):
        Path(out).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass


def need_packages(command: str, packages: Sequence[str], extra: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        UserError: naming those that are missing, and the extra.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise missing_package(command, missing, extra)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `Predictor.load`: the model, its device and precision."""
    folder = "a run's models folder, or one model's, such as models/members/base (default: %(default)s)"
    parser.add_argument("--model", metavar="FOLDER", default="models", help=folder)
    parser.add_argument("--device", default="auto", help="auto, cpu, mps, cuda or cuda:N (default: %(default)s)")
    kinds = ("auto", "float32", "bf16")
    parser.add_argument("--precision", choices=kinds, default="auto", help="(default: %(default)s)")
