"""Command that writes a model in the format of another library: export."""

from __future__ import annotations

import argparse
from typing import Any

from bertrio.core.errors import need_packages

FORMATS = {
    "encoder": "for transformers' AutoModel",
    "classifier": "a task, for AutoModelForSequenceClassification",
    "cross-encoder": "a task, for sentence-transformers' CrossEncoder",
    "sentence-transformer": "the vectors of a task with encoding bi, for SentenceTransformer",
    "onnx": "a task, for any ONNX runtime",
}
PACKAGES = {  # by format: the extra of bertrio, and the packages that it installs
    "cross-encoder": ("sentence-transformers", ["sentence_transformers"]),
    "sentence-transformer": ("sentence-transformers", ["sentence_transformers"]),
    "onnx": ("onnx", ["onnx", "onnxruntime", "onnxscript"]),
}


def add_export_commands(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    export = commands.add_parser("export", _export)
    model = "a member's folder, or models/ensemble of a soup (default: %(default)s)"
    export.add_argument("--model", metavar="FOLDER", default="models/members/base", help=model)
    export.add_argument("--to", metavar="FOLDER", required=True, help="the folder to write")
    kinds = "; ".join(f"{name}: {text}" for name, text in FORMATS.items())
    export.add_argument("--format", choices=FORMATS, required=True, help=kinds)
    export.add_argument("--task", metavar="NAME", help="task to export, if the model has several")
    export.add_argument("--int8", action="store_true", help="onnx: 8-bit weights: smaller and faster, less accurate")
    push = "upload it to this repository of the Hugging Face hub, such as me/sst; needs a token (hf auth login)"
    export.add_argument("--push-to-hub", metavar="REPO_ID", help=push)
    export.add_argument("--private", action="store_true", help="with --push-to-hub: create it as a private one")


def _export(args: argparse.Namespace) -> None:
    """Export a trained model to the format of another library."""
    extra, packages = PACKAGES.get(args.format, ("", []))
    need_packages(f"--format {args.format}", packages, extra)
    from bertrio.core.interruption import stoppable
    from bertrio.inference.export.export import export_model
    from bertrio.inference.export.hub import push

    with stoppable():
        difference = export_model(args.model, args.to, args.format, args.task, args.int8, args.push_to_hub)
    print(f"wrote {args.to}; largest difference from {args.model}: {difference:.1e}")
    if args.push_to_hub:
        print(f"uploaded it to {push(args.to, args.push_to_hub, args.private)}")
