"""Commands that apply a trained model to files: predict and mine."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertrio.cli.options import add_model, need_packages, positive
from bertrio.core.errors import UserError

FORMATS = ("tsv", "csv", "jsonl")
NAMED = "ours=theirs, as in text_a=sentence1: the file's names of columns text, or text_a and text_b"
MAX_PAIRS = 1_000_000  # that mine holds in memory, some 300 bytes each
BROKEN_PIPE = 141  # exit code after SIGPIPE, as in shells


def add_predict_commands(commands: Any) -> None:
    """Add the commands to the parser's `commands`."""
    _add_predict(commands)
    _add_mine(commands)


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser("predict", help="predict the rows of a file with the last run's ensemble")
    predict.add_argument("--task", required=True, help="the task to predict, such as sts")
    _add_files(predict, "rows to predict, with a header that names columns text, or text_a and text_b")
    kind = "of what is read and written (default: as the ending of --in says, else tsv)"
    predict.add_argument("--format", choices=FORMATS, help=kind)
    predict.add_argument(
        "--columns", metavar="NAME=NAME", nargs="+", action="extend", type=_pair, default=[], help=NAMED
    )
    predict.add_argument("--strict", action="store_true", help="stop at the first row that can't be used")
    _add_model(predict)
    predict.set_defaults(run=_predict)


def _add_mine(commands: Any) -> None:
    mine = commands.add_parser("mine", help="find the most similar pairs of sentences in a file")
    mine.add_argument("file", metavar="FILE", nargs="?", help="a sentence a line (default: standard input)")
    mine.add_argument("--task", help="the pair task to compare by; it must have encoding: bi")
    top = f"pairs to find, {MAX_PAIRS:,} at most (default: %(default)s)"
    mine.add_argument("--top", type=_pairs, default=100, metavar="N", help=top)
    mine.add_argument("--out", metavar="FILE", help="where the pairs go, as TSV (default: standard output)")
    _add_model(mine)
    mine.set_defaults(run=_mine)


def _add_files(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--in", dest="source", metavar="FILE", help=f"{what} (default: standard input)")
    out = "where they go with their predictions (default: standard output); written whole or not at all"
    parser.add_argument("--out", metavar="FILE", help=out)


def _add_model(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    size = "rows that go through the model at once (default: %(default)s)"
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help=size)


def _pairs(text: str) -> int:
    count = positive(text)
    if count > MAX_PAIRS:
        raise argparse.ArgumentTypeError(f"found {text}, expected {MAX_PAIRS:,} at most")
    return count


def _pair(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals or not ours or not theirs:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {NAMED}")
    return ours, theirs


def _predict(args: argparse.Namespace) -> int:
    kind = args.format or _kind_of(args.source)

    def work(source: BinaryIO, name: str, target: BinaryIO) -> None:
        from bertrio.core.console import say
        from bertrio.inference.batch_predict import predict_file

        predictor, columns = _load(args), dict(args.columns)
        predicted, lost = predict_file(predictor, args.task, kind, source, target, columns, name, args.strict)
        say(f"predict: {predicted:,} rows predicted{f', {lost:,} left out' if lost else ''}")

    return _between(args.source, args.out, work)


def _mine(args: argparse.Namespace) -> int:
    need_packages("mine", ["sentence_transformers"], "mining")

    def work(source: BinaryIO, name: str, target: BinaryIO) -> None:
        from bertrio.inference.mining import mine_file

        mine_file(_load(args), args.task, args.top, source, target, name)

    return _between(args.file, args.out, work)


def _kind_of(path: str | None) -> str:
    ending = Path(path or "").suffix.lower().removeprefix(".")
    kind = {"ndjson": "jsonl"}.get(ending, ending)
    return kind if kind in FORMATS else "tsv"


def _load(args: argparse.Namespace) -> Any:
    from bertrio.inference.predictor import Predictor

    return Predictor.load(args.model, args.device, args.precision, args.batch_size)


def _between(source: str | None, target: str | None, work: Callable[[BinaryIO, str, BinaryIO], None]) -> int:
    """Open the source and the target, run `work` on them, and return the exit code."""
    from bertrio.core.stage import explained

    try:
        with _opened(source) as (file, name), _created(target) as out:
            work(file, name, out)
    except BrokenPipeError:
        with open(os.devnull, "wb") as nowhere:  # Python writes out what is left at its end, and would fail again
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        raise UserError(explained(error)) from error
    return 0


@contextmanager
def _opened(path: str | None) -> Iterator[tuple[BinaryIO, str]]:
    if path is None:
        yield sys.stdin.buffer, "standard input"
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error
    with file:
        yield file, path


@contextmanager
def _created(path: str | None) -> Iterator[BinaryIO]:
    from bertrio.core.files import whole_file

    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe or a device stays what it is
        with open(path, "wb") as file:
            yield file
    else:
        with whole_file(path) as temporary, open(temporary, "wb") as file:
            yield file
