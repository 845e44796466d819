"""The commands that have to do with the papers' rows: recipes, table, claims, stepwise and sweep."""

from __future__ import annotations

import argparse
from typing import Any

from bertrio.cli.options import BUDGET, add_set, need_folder, positive
from bertrio.core.errors import writing_to


def add_recipe_commands(commands: Any) -> None:
    """Adds the commands to the parser's `commands`."""
    _add_recipes(commands)
    _add_table(commands)
    _add_claims(commands)
    _add_stepwise(commands)
    _add_sweep(commands)


def _add_recipes(commands: Any) -> None:
    recipes = commands.add_parser("recipes", help="list, show and run rows of result tables, the papers' and our own")
    recipes.set_defaults(run=_list)
    actions = recipes.add_subparsers(metavar="ACTION", title="without one, all rows and sweeps are listed")

    show = actions.add_parser("show", help="print a row's params, and how they differ from params.yaml")
    show.add_argument("row", metavar="ROW", help="such as smart-concat; bertrio recipes lists them")
    show.add_argument("--budget", default="paper", help=BUDGET)
    add_set(show)
    show.add_argument(
        "--brief", action="store_true", help="leave the params out, and print the rest on standard output"
    )
    show.set_defaults(run=_show)

    run = actions.add_parser("run", help="make a DVC experiment of each row, and keep what it measures")
    run.add_argument("rows", metavar="ROW", nargs="+", help="rows, tables (smart-table2), papers (smart) or sweeps")
    run.add_argument("--budget", default="paper", help=BUDGET)
    run.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs of each, with seeds 1 to N (1)")
    run.add_argument("--queue", action="store_true", help="only add them to DVC's queue; dvc queue start runs them")
    run.add_argument("--missing", action="store_true", help="leave out what recipes/measured has already")
    add_set(run)
    run.set_defaults(run=_run)

    collect = actions.add_parser("collect", help="keep what finished experiments measured, such as those of the queue")
    collect.set_defaults(run=_collect)


def _add_table(commands: Any) -> None:
    table = commands.add_parser("table", help="print and write a paper's result tables, reported beside measured")
    table.add_argument("paper", metavar="PAPER", help="its short name, such as smart")
    _add_setting(table)
    against = "the row that all are compared with (default: the first of each table that can be run)"
    table.add_argument("--against", metavar="ROW", help=against)
    folder = "folder for Markdown, CSV and pictures (default: %(default)s)"
    table.add_argument("--out", metavar="FOLDER", default="recipes/tables", help=folder)
    table.add_argument("--plots", action="store_true", help="draw bars and learning curves as well")
    table.set_defaults(run=_table)


def _add_claims(commands: Any) -> None:
    claims = commands.add_parser("claims", help="hold what the papers claim against the measured runs")
    _add_setting(claims)
    claims.add_argument("--out", metavar="FILE", help="write it as Markdown, too")
    claims.set_defaults(run=_claims)


def _add_stepwise(commands: Any) -> None:
    stepwise = commands.add_parser("stepwise", help="add one technique after another, as long as the next one helps")
    names = "extensions of recipes/extensions.yaml to try"
    stepwise.add_argument("--candidates", metavar="NAME", nargs="+", required=True, help=names)
    stepwise.add_argument("--base", metavar="ROW", help="the row to start from (default: params.yaml as it is)")
    stepwise.add_argument("--beam", type=positive, default=1, metavar="N", help="go on from the N best sets (1)")
    stepwise.add_argument("--budget", default="paper", help=BUDGET)
    stepwise.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs of each set (1)")
    add_set(stepwise)
    unproven = "keep what scores higher even where the test says that it may be luck"
    stepwise.add_argument("--unproven", action="store_true", help=unproven)
    folder = "folder for the ladder: Markdown, CSV and a picture (default: %(default)s)"
    stepwise.add_argument("--out", metavar="FOLDER", default="recipes/stepwise", help=folder)
    stepwise.set_defaults(run=_stepwise)


def _add_sweep(commands: Any) -> None:
    sweep = commands.add_parser("sweep", help="plot score against a param, from the runs that differ in it alone")
    names = "such as smart.lambda; several, or one with a *, as in 'tasks.*.dropout', that move together"
    sweep.add_argument("params", metavar="PARAM", nargs="+", help=names)
    metric = "overall_normalized, overall_mean, a task, or all (default: %(default)s)"
    sweep.add_argument("--metric", default="overall_normalized", help=metric)
    folder = "folder for CSV and pictures (default: %(default)s)"
    sweep.add_argument("--out", metavar="FOLDER", default="recipes/sweeps", help=folder)
    kept = "take the runs of recipes/measured, in place of the experiments of this repository"
    sweep.add_argument("--measured", action="store_true", help=kept)
    sweep.set_defaults(run=_sweep)


def _add_setting(parser: argparse.ArgumentParser) -> None:
    """What tells runs of one row apart; a table never mixes them."""
    for name in ("budget", "source", "encoder"):
        parser.add_argument(f"--{name}", help="of the measured runs (default: what there is, if it is one)")
    add_set(parser, "runs made with these overrides and no others (default: runs with none)")


def _list(args: argparse.Namespace) -> None:
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.show import show_recipes

    show_recipes(load_recipes())


def _show(args: argparse.Namespace) -> None:
    from bertrio.experiments.recipes.params import parse_settings
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.show import show_row

    show_row(load_recipes(), args.row, args.budget, parse_settings(args.set), args.brief)


def _run(args: argparse.Namespace) -> None:
    from bertrio.experiments.recipes.params import parse_settings
    from bertrio.experiments.recipes.running import run_rows

    run_rows(args.rows, args.budget, args.seeds, parse_settings(args.set), args.queue, args.missing)


def _collect(args: argparse.Namespace) -> None:
    from bertrio.experiments.recipes.running import collect

    print(f"wrote {len(collect())} files to recipes/measured")


def _setting(args: argparse.Namespace) -> Any:
    from bertrio.experiments.recipes.params import parse_settings
    from bertrio.experiments.runs import Setting

    return Setting(args.budget, args.source, args.encoder, parse_settings(args.set))


def _table(args: argparse.Namespace) -> None:
    from bertrio.experiments.recipes.measured import load_measured
    from bertrio.experiments.recipes.rows import load_recipes
    from bertrio.experiments.recipes.table_text import show, table_document, write_tables
    from bertrio.experiments.recipes.tables import paper_tables

    tables = paper_tables(load_recipes(), load_measured(), args.paper, _setting(args), args.against)
    show(table_document(tables))
    with writing_to(f"--out {args.out}"):
        written = write_tables(tables, args.out, args.plots)
    for path in written:
        print(f"wrote {path}")


def _claims(args: argparse.Namespace) -> None:
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


def _stepwise(args: argparse.Namespace) -> None:
    from bertrio.experiments.recipes.params import parse_settings
    from bertrio.experiments.stepwise import stepwise

    overrides = parse_settings(args.set)
    need_folder(args.out)  # now, not after hours
    stepwise(args.candidates, args.base, args.beam, args.budget, args.seeds, overrides, args.unproven, args.out)


def _sweep(args: argparse.Namespace) -> None:
    from bertrio.experiments.sweeps import sweep

    sweep(*args.params, metric=args.metric, out=args.out, measured=args.measured)
