"""Commands that make experiments or compare them: recipes, table, claims, factorial, stepwise, sweep and search."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bertrio.cli.parser import Commands, positive
from bertrio.core.errors import need_packages, writing_to

FOLDER = "output folder (default: %(default)s)"
BUDGET = "paper, quick or curves, see recipes/budgets.yaml (default: %(default)s)"
SET = "set a param on top, as in -S finetune.lr=2e-5; * is any one key; can be repeated"
BASE = "the row to start from (default: params.yaml as it is)"
SPACE = "a param and its values: log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, or values with commas between them"
PRUNE = "pruner of unpromising runs: median, hyperband or none (default: %(default)s)"


def add_recipe_commands(commands: Any) -> None:
    """Add the commands to the parser's `commands`."""
    recipes = commands.add_parser("recipes", _recipes)
    actions = recipes.add_subparsers(metavar="ACTION", action=Commands)
    actions.add_parser("list", _list)

    show = actions.add_parser("show", _show)
    show.add_argument("row", metavar="ROW", help="such as smart-concat; bertrio recipes lists them")
    show.add_argument("--budget", default="paper", help=BUDGET)
    _add_set(show)
    show.add_argument("--brief", action="store_true", help="print all but the params, on standard output")

    run = actions.add_parser("run", _run)
    run.add_argument("rows", metavar="ROW", nargs="+", help="rows, tables (smart-table2), papers (smart) or sweeps")
    _add_runs(run)
    run.add_argument("--queue", action="store_true", help="only add them to DVC's queue; dvc queue start runs them")

    actions.add_parser("collect", _collect)

    preset = commands.add_parser("preset", _preset)
    preset.add_argument("name", metavar="NAME", nargs="?", help="one of recipes/presets.yaml (default: list them)")

    table = commands.add_parser("table", _table)
    table.add_argument("paper", metavar="PAPER", help="its short name, such as smart")
    _add_setting(table)
    table.add_argument("--against", metavar="ROW", help="to compare with (default: the first that can be run)")
    table.add_argument("--out", metavar="FOLDER", default="recipes/tables", help=FOLDER)
    table.add_argument("--plots", action="store_true", help="draw bars and learning curves as well")

    claims = commands.add_parser("claims", _claims)
    _add_setting(claims)
    claims.add_argument("--out", metavar="FILE", help="write it as Markdown, too")

    factorial = commands.add_parser("factorial", _factorial)
    factorial.add_argument("name", metavar="NAME", help="a design of recipes/, such as future-factorial")
    _add_setting(factorial)
    factorial.add_argument("--out", metavar="FOLDER", default="recipes/factorials", help=FOLDER)

    stepwise = commands.add_parser("stepwise", _stepwise)
    names = "extensions of recipes/extensions.yaml to try"
    stepwise.add_argument("--candidates", metavar="NAME", nargs="+", required=True, help=names)
    stepwise.add_argument("--base", metavar="ROW", help=BASE)
    stepwise.add_argument("--beam", type=positive, default=1, metavar="N", help="keep the N best sets at each step (1)")
    _add_runs(stepwise)
    stepwise.add_argument("--unproven", action="store_true", help="keep any higher score, significant or not")
    stepwise.add_argument("--out", metavar="FOLDER", default="recipes/stepwise", help=FOLDER)

    sweep = commands.add_parser("sweep", _sweep)
    names = "such as smart.lambda; several, or one with a *, as in 'tasks.*.dropout', that move together"
    sweep.add_argument("params", metavar="PARAM", nargs="+", help=names)
    metric = "overall_normalized, overall_mean, a task, or all (default: %(default)s)"
    sweep.add_argument("--metric", default="overall_normalized", help=metric)
    sweep.add_argument("--out", metavar="FOLDER", default="recipes/sweeps", help=FOLDER)
    sweep.add_argument("--measured", action="store_true", help="take the runs of recipes/measured, not experiments")

    search = commands.add_parser("search", _search)
    search.add_argument("space", metavar="PARAM=VALUES", nargs="+", help=SPACE)
    search.add_argument("--trials", type=positive, default=20, metavar="N", help="how many (default: %(default)s)")
    search.add_argument("--base", metavar="ROW", help=BASE)
    search.add_argument("--budget", default="paper", help=BUDGET)
    _add_set(search)
    search.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the sampler (default: %(default)s)")
    search.add_argument("--prune", choices=("median", "hyperband", "none"), default="median", help=PRUNE)
    metric = "dev score to maximize: overall_normalized, overall_mean or a task (default: %(default)s)"
    search.add_argument("--metric", default="overall_normalized", help=metric)
    folder = "folder for the trials: Markdown, CSV, Optuna's journal (default: %(default)s)"
    search.add_argument("--out", metavar="FOLDER", default="recipes/search", help=folder)


def _add_set(parser: argparse.ArgumentParser, text: str = SET) -> None:
    """Add the repeatable argument `-S KEY=VALUE`, which `_overrides` reads."""
    parser.add_argument("-S", dest="set", metavar="KEY=VALUE", action="append", default=[], help=text)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of runs: budget, seeds and overrides."""
    parser.add_argument("--budget", default="paper", help=BUDGET)
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs of each, with seeds 1 to N (1)")
    _add_set(parser)


def _add_setting(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select runs of one setting; a table never mixes settings."""
    for name in ("budget", "source", "encoder"):
        parser.add_argument(f"--{name}", help=f"{name} of the measured runs (default: that of most runs)")
    _add_set(parser, "runs made with these overrides and no others (default: those of the setting with most runs)")


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `-S` by dotted param; raise a UserError for an argument that is not KEY=VALUE."""
    from bertrio.experiments.recipes.params import parse_settings

    return parse_settings(args.set)


def _need_folder(out: str) -> None:
    """Create the folder of `--out`.

    Raises:
        UserError: if it is not a folder, or not writable.
    """
    with writing_to(f"--out {out}"):
        Path(out).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass


def _recipes(args: argparse.Namespace) -> None:
    """List, show and run rows of result tables, the papers' and our own."""
    _list(args)


def _list(args: argparse.Namespace) -> None:
    """List all rows and sweeps, as without an action."""
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.show import show_recipes

    show_recipes(load_recipes())


def _show(args: argparse.Namespace) -> None:
    """Print a row's params, and how they differ from params.yaml."""
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.show import show_row

    show_row(load_recipes(), args.row, args.budget, _overrides(args), args.brief)


def _run(args: argparse.Namespace) -> None:
    """Make a DVC experiment of each row, and keep what it measures."""
    from bertrio.experiments.recipes.running import run_rows

    run_rows(args.rows, args.budget, args.seeds, _overrides(args), args.queue)


def _collect(args: argparse.Namespace) -> None:
    """Keep what finished experiments measured, such as those of the queue."""
    from bertrio.experiments.recipes.running import collect

    print(f"wrote {len(collect())} files to recipes/measured")


def _preset(args: argparse.Namespace) -> None:
    """Print a preset as -S options: dvc exp run $(bertrio preset smoke)."""
    from bertrio.experiments.recipes.params import preset_options
    from bertrio.experiments.recipes.rows import find, load_presets

    presets = load_presets()
    if args.name is None:
        print(*[f"{name}: {preset.title}" for name, preset in presets.items()], sep="\n")
    else:
        print(*preset_options(find(args.name, presets, "recipes/presets.yaml").overrides))


def _setting(args: argparse.Namespace) -> Any:
    from bertrio.experiments.machine_paths import is_override, without_folder
    from bertrio.experiments.recipes.comparable import Setting

    changed = _overrides(args)
    source = args.source or changed.get("data.source")
    encoder = args.encoder or without_folder("encoder.name", changed.get("encoder.name"))
    return Setting(args.budget, source, encoder, {name: value for name, value in changed.items() if is_override(name)})


def _table(args: argparse.Namespace) -> None:
    """Print and write a paper's result tables, reported beside measured."""
    from bertrio.experiments.recipes.measured import load_measured
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.table_text import show, table_document, write_tables
    from bertrio.experiments.recipes.tables import paper_tables

    tables = paper_tables(load_recipes(), load_measured(), args.paper, _setting(args), args.against)
    show(table_document(tables))
    with writing_to(f"--out {args.out}"):
        written = write_tables(tables, args.out, args.plots)
    print(*[f"wrote {path}" for path in written], sep="\n")


def _claims(args: argparse.Namespace) -> None:
    """Test the papers' claims on the measured runs."""
    from bertrio.core.files import write_text
    from bertrio.experiments.recipes.claims import claim_document, judge, load_claims
    from bertrio.experiments.recipes.measured import load_measured
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.table_text import show, to_markdown

    document = list(claim_document(judge(load_recipes(), load_measured(), load_claims(), _setting(args))))
    show(document)
    if args.out:
        with writing_to(f"--out {args.out}"):
            write_text(args.out, to_markdown(document))
        print(f"wrote {args.out}")


def _factorial(args: argparse.Namespace) -> None:
    """Estimate main effects and interactions of techniques from measured runs."""
    from bertrio.experiments.factorial import factorial

    factorial(args.name, _setting(args), args.out)


def _stepwise(args: argparse.Namespace) -> None:
    """Select techniques by forward stepwise selection."""
    from bertrio.experiments.stepwise import stepwise

    _need_folder(args.out)  # fail before hours of work
    stepwise(args.candidates, args.base, args.beam, args.budget, args.seeds, _overrides(args), args.unproven, args.out)


def _sweep(args: argparse.Namespace) -> None:
    """Plot score against a param, from the runs that differ in it alone."""
    from bertrio.experiments.sweeps import sweep

    sweep(*args.params, metric=args.metric, out=args.out, measured=args.measured)


def _search(args: argparse.Namespace) -> None:
    """Search for better params with Optuna; unpromising runs stop early."""
    need_packages("search", ["optuna"], "search")
    from bertrio.experiments.search import search

    _need_folder(args.out)  # fail before hours of work
    search(
        args.space, args.trials, args.base, args.budget, _overrides(args), args.seed, args.prune, args.metric, args.out
    )
