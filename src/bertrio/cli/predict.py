"""Commands that apply a trained model to files: predict and mine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from bertrio.cli.options import add_model, positive
from bertrio.core.errors import UserError, need_packages

STDIN = "standard input"  # name in messages
FORMATS = ("tsv", "csv", "jsonl", "parquet")
NAMED = "ours=theirs, as in text_a=sentence1: the file's names of columns text, or text_a and text_b"


def add_predict_commands(commands: Any) -> None:
    """Add the commands to the parser's `commands`."""
    predict = commands.add_parser("predict", _predict)
    predict.add_argument("--task", required=True, help="the task to predict, such as sts")
    rows = "rows to predict, with a header that names columns text, or text_a and text_b (default: standard input)"
    predict.add_argument("--in", dest="source", metavar="FILE", help=rows)
    out = "output file (default: standard output), written atomically"
    predict.add_argument("--out", metavar="FILE", help=out)
    kind = "format of input and output (default: by the extension of --in, else tsv)"
    predict.add_argument("--format", choices=FORMATS, help=kind)
    predict.add_argument("--columns", metavar="A=B", nargs="+", action="extend", type=_pair, default=[], help=NAMED)
    predict.add_argument("--strict", action="store_true", help="stop at the first row that can't be used")
    _add_model(predict)

    mine = commands.add_parser("mine", _mine)
    mine.add_argument("source", metavar="FILE", nargs="?", help="one sentence per line (default: standard input)")
    mine.add_argument("--task", help="the pair task to compare by; it must have encoding: bi")
    mine.add_argument("--top", type=positive, default=100, metavar="N", help="pairs to find (default: %(default)s)")
    mine.add_argument("--out", metavar="FILE", help="output file, TSV (default: standard output)")
    _add_model(mine)


def _add_model(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    size = "rows per batch (default: %(default)s)"
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help=size)


def _pair(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals or not ours or not theirs:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {NAMED}")
    return ours, theirs


def _predict(args: argparse.Namespace) -> None:
    """Predict the rows of a file with the last run's ensemble."""
    from bertrio.core.console import say
    from bertrio.inference.batch_predict import predict_file

    read, written = _format(args.source), _format(args.out)
    kind = args.format or read or "tsv"
    if not args.format and written not in (kind, None):
        raise UserError(f"--out {args.out}: rows are written as they are read, in {kind}; name the file .{kind}")
    with _opened(args.source) as source, _created(args.out) as target:
        predicted, left_out = predict_file(
            _load(args), args.task, kind, source, target, dict(args.columns), str(args.source or STDIN), args.strict
        )
    say(f"predict: {predicted:,} rows predicted{f', {left_out:,} left out' if left_out else ''}")


def _format(path: Path | None) -> str | None:
    """Return the format that the extension of a file names."""
    extension = Path(path or "").suffix.lower().removeprefix(".").replace("ndjson", "jsonl")
    return extension if extension in FORMATS else None


def _mine(args: argparse.Namespace) -> None:
    """Find the most similar pairs of sentences in a file."""
    need_packages("mine", ["sentence_transformers"], "mining")
    from bertrio.inference.mining import mine_file

    with _opened(args.source) as source, _created(args.out) as target:
        mine_file(_load(args), args.task, args.top, source, target, str(args.source or STDIN))


def _load(args: argparse.Namespace) -> Any:
    from bertrio.inference.predictor import Predictor

    return Predictor.load(args.model, args.device, args.precision, args.batch_size)


def _opened(path: Path | None) -> Any:
    if path is not None and not path.exists():
        raise UserError(f"{path}: there is no such file")
    return nullcontext(sys.stdin.buffer) if path is None else open(path, "rb")


@contextmanager
def _created(path: Path | None) -> Iterator[BinaryIO]:
    from bertrio.core.files import whole_file
    from bertrio.core.interruption import stoppable

    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif path.exists() and not path.is_file():  # pipes and devices are not replaced
        with open(path, "wb") as file:
            yield file
    else:
        path = Path(os.path.realpath(path))  # a link stays one
        with stoppable(), whole_file(path) as temporary, open(temporary, "wb") as file:
            if path.exists():
                shutil.copymode(path, temporary)
            yield file
