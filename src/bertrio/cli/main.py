"""The command line `bertrio`. Commands import slow modules only when they run."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from bertrio import __version__
from bertrio.cli.init import add_init_commands
from bertrio.cli.models import add_model_commands
from bertrio.cli.parser import Commands, Parser, find_root, positive
from bertrio.cli.recipes import add_recipe_commands
from bertrio.core.errors import PACKAGES, PIPELINE, need_environment, need_packages
from bertrio.core.streams import standard_streams

STANDALONE = (None, "completion", "export", "init", "mine", "predict", "serve")  # without the extra pipeline
REVISION = "an experiment, commit, tag, branch or workspace; several with commas are seeds of one setting"


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 2 for a message to the user, 130 for Ctrl-C (143 for SIGTERM while a file is written), or 141
        if the reader of the output closes it.
    """
    try:
        with standard_streams():
            args = _parser().parse_args(argv)
            need_environment(PACKAGES)
            if args.command not in STANDALONE:
                need_packages(args.command, PIPELINE, "pipeline")
            os.chdir(find_root() or ".")
            return args.run(args) or 0
    except KeyboardInterrupt as stopped:
        return getattr(stopped, "code", 130)
    except BrokenPipeError:
        return 141
    except Exception as error:
        from bertrio.core.console import say
        from bertrio.core.stage import user_message

        message = user_message(error)
        if message is None:
            raise
        say(f"error: {message}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertrio",
        description="Fine-tunes one BERT encoder on several sentence tasks. The pipeline itself runs with `dvc repro`.",
    )
    parser.add_argument("--version", action="version", version=f"bertrio {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", action=Commands)

    metrics = commands.add_parser("metrics", _metrics)
    metrics.add_argument("--all", action="store_true", help="print all other metrics as well")
    metrics.add_argument("--file", metavar="FILE", default="metrics/evaluation.json", help="(default: %(default)s)")

    check = commands.add_parser("check", _check)
    check.add_argument("--params", metavar="FILE", default="params.yaml", help="(default: %(default)s)")

    runs = commands.add_parser("runs", _runs)
    runs.add_argument("names", metavar="NAME", nargs="*", help="those to list, such as 'smart-*' (default: all)")
    runs.add_argument("--sort", metavar="COLUMN", default="overall", help="overall, a task, minutes, name or state")
    runs.add_argument("--format", choices=("text", "md", "csv"), default="text", help="(default: %(default)s)")
    runs.add_argument("--html", metavar="FILE", help="write a page with charts, params that differ and curves instead")

    compare = commands.add_parser("compare", _compare)
    compare.add_argument("first", metavar="REV_A", help=f"what to compare with: {REVISION}")
    compare.add_argument("second", metavar="REV_B", help="the revision to evaluate")
    compare.add_argument("--split", default="dev", help="dev, test or selection (default: %(default)s)")
    compare.add_argument("--rows", type=positive, nargs="?", const=10, metavar="N", help="show N rows (10) that differ")
    compare.add_argument("--json", metavar="FILE", help="write all figures to FILE as well")

    report = commands.add_parser("report", _report)
    one = "an experiment, commit, tag or branch"
    report.add_argument("revision", metavar="REV", nargs="?", default="workspace", help=f"{one} (default: workspace)")
    report.add_argument("--baseline", metavar="REV", help="the revision to compare with")
    report.add_argument("--out", metavar="FILE", default="report.html", help="the page (default: %(default)s)")

    add_init_commands(commands)
    add_recipe_commands(commands)
    add_model_commands(commands)

    completion = commands.add_parser("completion", _completion)
    completion.add_argument("shell", choices=("bash", "zsh"), help="for zsh, the script is a file _bertrio in $fpath")
    return parser


def _completion(args: argparse.Namespace) -> None:
    """Print a script that completes commands and options in a shell."""
    import shtab

    print(shtab.complete(_parser(), args.shell))


def _metrics(args: argparse.Namespace) -> None:
    """Print the last run's scores beside simple baselines."""
    from bertrio.evaluation.evaluate import show_metrics

    show_metrics(args.file, args.all)


def _check(args: argparse.Namespace) -> None:
    """Check params.yaml and the files that it names."""
    import tempfile

    from bertrio.config.loading import listing_uncommitted
    from bertrio.data.inputs import check_inputs
    from bertrio.training.monitoring import need_all_trackers

    with tempfile.TemporaryDirectory() as folder, listing_uncommitted(args.params):
        need_all_trackers(check_inputs(args.params, folder))
    print(f"{args.params}: all params are valid, and all local files and packages that they name are there")


def _runs(args: argparse.Namespace) -> None:
    """List commits and experiments with scores, minutes and changed params."""
    from bertrio.experiments.runs import read_runs, show_runs, write_page

    runs = read_runs(args.names)
    if args.html:
        write_page(runs, args.sort, args.html)
        print(f"wrote {args.html}")
    else:
        show_runs(runs, args.sort, args.format)


def _compare(args: argparse.Namespace) -> None:
    """Test whether one experiment is better than another."""
    from bertrio.core.files import write_json
    from bertrio.experiments.compare import compare, open_side
    from bertrio.experiments.show import show_comparison

    result = compare(open_side(args.first), open_side(args.second), args.split, args.rows)
    show_comparison(result)
    if args.json:
        write_json(args.json, result, digits=10)  # p-values can be small


def _report(args: argparse.Namespace) -> None:
    """Write an HTML report of an experiment."""
    from bertrio.experiments.report import write_report

    write_report(args.revision, args.baseline, args.out)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    sys.exit(main())
