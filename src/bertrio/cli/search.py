"""Command that searches for better params: search."""

from __future__ import annotations

import argparse
from typing import Any

from bertrio.cli.options import BUDGET, add_set, need_folder, overrides, positive
from bertrio.core.errors import need_packages

SPACE = "a param and its values: log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, or values with commas between them"
PRUNE = "pruner of unpromising runs: median, hyperband or none (default: %(default)s)"


def add_search_commands(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    search = commands.add_parser("search", _search)
    search.add_argument("space", metavar="PARAM=VALUES", nargs="+", help=SPACE)
    search.add_argument("--trials", type=positive, default=20, metavar="N", help="how many (default: %(default)s)")
    search.add_argument("--base", metavar="ROW", help="the row to start from (default: params.yaml as it is)")
    search.add_argument("--budget", default="paper", help=BUDGET)
    add_set(search)
    search.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the sampler (default: %(default)s)")
    search.add_argument("--prune", choices=("median", "hyperband", "none"), default="median", help=PRUNE)
    metric = "dev score to maximize: overall_normalized, overall_mean or a task (default: %(default)s)"
    search.add_argument("--metric", default="overall_normalized", help=metric)
    folder = "folder for the trials: Markdown, CSV, Optuna's journal (default: %(default)s)"
    search.add_argument("--out", metavar="FOLDER", default="recipes/search", help=folder)


def _search(args: argparse.Namespace) -> None:
    """Search for better params with Optuna; unpromising runs stop early."""
    need_packages("search", ["optuna"], "search")
    from bertrio.experiments.search import search

    need_folder(args.out)  # fail before hours of work
    search(
        args.space, args.trials, args.base, args.budget, overrides(args), args.seed, args.prune, args.metric, args.out
    )
