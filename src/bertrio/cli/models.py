"""Commands that use a trained model: predict, mine, export and serve."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from bertrio.cli.parser import positive
from bertrio.core.errors import UserError, need_packages

STDIN = "standard input"  # name in messages
FORMATS = ("tsv", "csv", "jsonl", "parquet")
EXPORTS = {
    "encoder": "for transformers' AutoModel",
    "classifier": "a task, for AutoModelForSequenceClassification",
    "cross-encoder": "a task, for sentence-transformers' CrossEncoder",
    "sentence-transformer": "the vectors of a task with encoding bi, for SentenceTransformer",
    "onnx": "a task, for any ONNX runtime",
}
EXPORT_PACKAGES = {  # by format: the extra of bertrio, and the packages that it installs
    "cross-encoder": ("sentence-transformers", ["sentence_transformers"]),
    "sentence-transformer": ("sentence-transformers", ["sentence_transformers"]),
    "onnx": ("onnx", ["onnx", "onnxruntime", "onnxscript"]),
}
NAMED = "ours=theirs, as in text_a=sentence1: the file's names of columns text, or text_a and text_b"


def add_model_commands(commands: Any) -> None:
    """Add the commands to the parser's `commands`."""
    _add_predict_and_mine(commands)
    _add_export(commands)
    _add_serve(commands)


def _add_predict_and_mine(commands: Any) -> None:
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
    for parser in (predict, mine):
        size = "rows per batch (default: %(default)s)"
        parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help=size)


def _add_export(commands: Any) -> None:
    export = commands.add_parser("export", _export)
    model = "a member's folder, or models/ensemble of a soup (default: %(default)s)"
    export.add_argument("--model", metavar="FOLDER", default="models/members/base", help=model)
    export.add_argument("--to", metavar="FOLDER", required=True, help="the folder to write")
    kinds = "; ".join(f"{name}: {text}" for name, text in EXPORTS.items())
    export.add_argument("--format", choices=EXPORTS, required=True, help=kinds)
    export.add_argument("--task", metavar="NAME", help="task to export, if the model has several")
    export.add_argument("--int8", action="store_true", help="onnx: 8-bit weights: smaller and faster, less accurate")
    push = "upload it to this repository of the Hugging Face hub, such as me/sst; needs a token (hf auth login)"
    export.add_argument("--push-to-hub", metavar="REPO_ID", help=push)
    export.add_argument("--private", action="store_true", help="with --push-to-hub: create it as a private one")


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", _serve)
    _add_model(serve)
    host = "address to listen on (default: %(default)s, local only; 0.0.0.0 listens on all interfaces)"
    serve.add_argument("--host", default="127.0.0.1", help=host)
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    for name, default, text in (
        ("--max-batch", 64, "rows that are predicted together"),
        ("--max-rows", 256, "rows of one request"),
        ("--max-bytes", 2_000_000, "bytes of one request's body"),
        ("--queue", 1024, "rows in the queue; beyond it, requests get status 503"),
    ):
        serve.add_argument(name, type=positive, default=default, metavar="N", help=f"{text} (default: %(default)s)")
    wait = "milliseconds that a row waits for others to join it (default: %(default)s)"
    serve.add_argument("--max-wait-ms", type=milliseconds, default=5.0, metavar="MS", help=wait)
    name = "also answer requests that call the server by this name, such as a proxy's; can be repeated"
    serve.add_argument("--allow-host", metavar="NAME", type=str.lower, action="append", default=[], help=name)


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `Predictor.load`: the model, its device and precision."""
    folder = "a run's models folder, or one model's, such as models/members/base (default: %(default)s)"
    parser.add_argument("--model", metavar="FOLDER", default="models", help=folder)
    parser.add_argument("--device", default="auto", help="auto, cpu, mps, cuda or cuda:N (default: %(default)s)")
    kinds = ("auto", "float32", "bf16")
    parser.add_argument("--precision", choices=kinds, default="auto", help="(default: %(default)s)")


def milliseconds(text: str) -> float:
    """Parse a finite number of milliseconds, at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected milliseconds, 0 or more")
    return value


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


def _export(args: argparse.Namespace) -> None:
    """Export a trained model to the format of another library."""
    extra, packages = EXPORT_PACKAGES.get(args.format, ("", []))
    need_packages(f"--format {args.format}", packages, extra)
    from bertrio.core.interruption import stoppable
    from bertrio.inference.export.export import export_model
    from bertrio.inference.export.hub import push

    with stoppable():
        difference = export_model(args.model, args.to, args.format, args.task, args.int8, args.push_to_hub)
    print(f"wrote {args.to}; largest difference from {args.model}: {difference:.1e}")
    if args.push_to_hub:
        print(f"uploaded it to {push(args.to, args.push_to_hub, args.private)}")


def _serve(args: argparse.Namespace) -> None:
    """Serve predictions over HTTP, with a page to try the model."""
    need_packages("serve", ["fastapi", "uvicorn", "prometheus_client"], "serve")
    from bertrio.inference.serve.limits import Limits
    from bertrio.inference.serve.server import serve

    hosts = tuple(args.allow_host)
    limits = Limits(args.max_batch, args.max_wait_ms / 1000, args.max_rows, args.max_bytes, args.queue, hosts)
    serve(args.model, args.host, args.port, args.device, args.precision, limits)
