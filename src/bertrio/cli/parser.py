"""Parsing of arguments: paths relative to where the user stands, examples in help, and suggestions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from bertrio.core.errors import did_you_mean

EXAMPLES = {  # arguments by command, for its help
    "compare": "HEAD my-experiment --rows", "report": "my-experiment --baseline HEAD --out page.html",
    "show": "smart-concat --budget quick", "run": "smart-concat --budget quick --seeds 3", "table": "smart",
    "stepwise": "--candidates adj-layers mul-finetune --budget quick", "sweep": "finetune.lr --metric all",
    "search": "finetune.lr=log:1e-5:1e-4 tasks.sst.dropout=0.1,0.3 --trials 10", "runs": "--sort minutes",
    "predict": "--task sst --in reviews.csv --columns text=review --out out.csv", "mine": "sentences.txt --top 20",
    "export": "--format classifier --task sst --to exported", "init": "my-project",
    "completion": "bash > ~/.bertrio-completion", "factorial": "future-factorial",
    "metrics": "--all", "check": "--params params.yaml", "preset": "smoke", "claims": "--budget quick --out claims.md",
    "serve": "--model models/members/base --port 8080",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose arguments called FILE or FOLDER are paths, and whose errors suggest the nearest choice."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument. The default of a path is relative to the root of the repository, unlike a given path."""
        if options.get("metavar") in ("FILE", "FOLDER"):
            default = options.get("default")
            options |= {"type": user_path, "default": default and Path(default)}  # argparse parses defaults of type str
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """End with a message."""
        if choice := re.search(r"invalid choice: '(.+)' \(choose from (.+)\)", message):
            message += did_you_mean(choice[1], re.findall(r"[\w.-]+", choice[2]))
        super().error(message)


class Commands(argparse._SubParsersAction):
    """Subcommands whose own help has a description and an example."""

    def add_parser(self, name: str, run: Callable[[argparse.Namespace], Any]) -> Any:  # type: ignore[override]
        """Add a subcommand that calls `run`, whose docstring is its help."""
        text = run.__doc__ or ""
        summary = text[:1].lower() + text[1:].removesuffix(".")
        example = f"example:\n  {self._prog_prefix} {name} {EXAMPLES.get(name, '')}".rstrip()
        layout = argparse.RawDescriptionHelpFormatter  # keeps the example on its line
        parser = super().add_parser(name, help=summary, description=text, epilog=example, formatter_class=layout)
        parser.set_defaults(run=run)
        return parser


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 1 on")
    return int(text)


def user_path(text: str) -> Path:
    """Parse a path that is relative to where the user stands; commands work at the root of the repository."""
    return Path(text) if find_root() in (None, Path.cwd()) else Path(text).absolute()


def find_root() -> Path | None:
    """Return the root of the repository around the working directory, if there is one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "dvc.yaml").exists()), None)
