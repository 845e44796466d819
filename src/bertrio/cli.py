"""The command line: `bertrio ...`. Modules that take long to import are imported by the commands that need them."""

from __future__ import annotations

import argparse
import sys

from bertrio import __version__
from bertrio.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, or 2 for a message to the user."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertrio",
        description="Fine-tunes one BERT encoder on several sentence tasks. The pipeline itself runs with `dvc repro`.",
    )
    parser.add_argument("--version", action="version", version=f"bertrio {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    metrics = commands.add_parser("metrics", help="print the last run's result as a table")
    metrics.add_argument("--file", default="metrics/evaluation.json", help="the metrics file (default: %(default)s)")
    metrics.set_defaults(run=_metrics)

    check = commands.add_parser("check", help="check params.yaml and the files that it names")
    check.add_argument("--params", default="params.yaml", help="the file to check (default: %(default)s)")
    check.set_defaults(run=_check)
    return parser


def _metrics(args: argparse.Namespace) -> None:
    from bertrio.evaluation.evaluate import show_metrics

    show_metrics(args.file)


def _check(args: argparse.Namespace) -> None:
    import tempfile

    from bertrio.data.inputs import check_inputs

    with tempfile.TemporaryDirectory() as folder:
        check_inputs(args.params, folder)
    print(f"{args.params}: all params are valid, and all files that they name are there")


if __name__ == "__main__":
    sys.exit(main())
