"""Exports of every format and pooling, loaded by the libraries of several environments.

    python benchmarks/exports.py --python .venv/bin/python /elsewhere/bin/python

A table shows the largest difference from the model, relative to the largest value if that is above 1. An environment
needs neither bertrio nor all of the libraries: `-` stands for one that it lacks. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ["a good film", "bad", "why is this the question ? the film is good", "a bad question " * 20]
PAIRS = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1]))
POOLINGS = ("cls", "mean", "pooler")
LIBRARIES = {"encoder": "transformers", "classifier": "transformers", "cross-encoder": "sentence-transformers",
             "sentence-transformer": "sentence-transformers", "onnx": "onnxruntime",
             "optimum": "optimum-onnx"}  # fmt: skip
BI = {"encoding": "bi", "head": "cosine", "head_options": {"projection": True, "activation": "tanh"}, "loss": "cosent"}
CROSS = {"encoding": "cross", "head": "linear", "head_options": {}}
TASKS = {"qqp": CROSS, "sts": CROSS | {"loss": "mse"}}  # one with yes and no, one with scores


def make(work: Path, encoder: str | None) -> Iterator[str]:
    """Write models and exports; yield the name of each export's folder, which holds expected.json as well."""
    sys.path.insert(0, str(ROOT / "src"))
    import pandas as pd
    import torch

    from bertrio.config import merged, read_yaml
    from bertrio.config.loading import validate_params
    from bertrio.core.files import write_json
    from bertrio.core.runtime import Runtime, set_up
    from bertrio.inference.export.export import FORMATS, export_model
    from bertrio.inference.trained_model import TrainedModel
    from bertrio.model.config import ModelConfig
    from bertrio.model.encoder import initial_transformer
    from bertrio.model.multitask import build_model, save_model
    from bertrio.model.tokenizer import build_tokenizer

    small = {"max_length": 24, "name": encoder or "tiny", "tiny": {"vocab_size": 200}}
    runtime = Runtime(torch.device("cpu"), torch.float32)
    for pooling in POOLINGS:
        for kind, tasks in (("cross", TASKS), ("bi", {"sts": BI})):
            overrides = {"encoder": small | {"pooling": pooling}, "tasks": tasks}
            params = validate_params(merged(read_yaml(ROOT / "params.yaml"), overrides), "params.yaml")
            set_up(1, "cpu", "float32")
            folder = work / f"models/{pooling}-{kind}"
            tokenizer = build_tokenizer(params.encoder, TEXTS, folder / "tokenizer")
            initial_transformer(params.encoder, len(tokenizer)).save_pretrained(folder / "start")
            model = build_model(params, folder / "start", runtime)
            save_model(model, folder / "base", ModelConfig.from_params(params), folder / "tokenizer")
            trained = TrainedModel.load(folder / "base", runtime)
            pairs, single = pd.DataFrame(PAIRS, columns=["text_a", "text_b"]), pd.DataFrame({"text": TEXTS})
            wanted = (
                ("encoder", "classifier", "cross-encoder", "onnx") if kind == "cross" else ("sentence-transformer",)
            )
            for format in wanted:
                for task in [None] if format == "encoder" else tasks:
                    name = f"{format}-{pooling}-{task}"
                    export_model(folder / "base", work / name, format, task)
                    texts = pairs if task else single
                    expected = FORMATS[format].compare(trained, trained.tasks.get(task), work / name, texts)[1]
                    logits = trained.outputs(task, pairs).tolist() if format == "onnx" else None
                    about = {"pooling": pooling, "expected": expected.tolist(), "logits": logits}
                    write_json(work / name / "expected.json", about, digits=None)
                    yield name


def load(folder: Path, library: str, about: dict[str, Any]) -> tuple[Any, Any]:
    """Return what the export answers by a library, and what is expected."""
    import torch

    path, format, expected = str(folder), about["format"], torch.tensor(about["expected"])
    if format == "encoder" or library in ("onnxruntime", "optimum-onnx") or format == "classifier":
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path)
        texts = [TEXTS] if format == "encoder" else [list(side) for side in zip(*PAIRS)]
        tokens = tokenizer(*texts, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        if format == "encoder":
            from transformers import AutoModel

            output, mask = AutoModel.from_pretrained(path)(**tokens), tokens["attention_mask"].unsqueeze(-1)
            states = output.last_hidden_state
            mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
            return {"cls": states[:, 0], "mean": mean, "pooler": output.pooler_output}[about["pooling"]], expected
        if format == "classifier":
            from transformers import AutoModelForSequenceClassification

            return AutoModelForSequenceClassification.from_pretrained(path)(**tokens).logits, expected
        if format == "cross-encoder":
            from sentence_transformers import CrossEncoder

            scores = CrossEncoder(path, device="cpu").predict(PAIRS, convert_to_tensor=True)
            return scores.reshape(len(PAIRS), -1), expected
        if format == "sentence-transformer":
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(path, device="cpu")
            return model.encode([a for a, _ in PAIRS], convert_to_tensor=True), expected
        if library == "onnxruntime":
            import onnxruntime

            session = onnxruntime.InferenceSession(f"{path}/model.onnx", providers=["CPUExecutionProvider"])
            return torch.from_numpy(
                session.run(None, {key: value.numpy() for key, value in tokens.items()})[0]
            ), expected
        from optimum.onnxruntime import ORTModelForSequenceClassification

        logits = torch.tensor(about["logits"])
        if logits.shape[1] == 1 and about.get("classes"):
            logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
        return ORTModelForSequenceClassification.from_pretrained(path)(**tokens).logits, logits


def check(work: Path, names: list[str]) -> None:
    """Print a JSON object: the versions of this environment's libraries, and the differences by format."""
    versions, differences = {}, {}
    for format, library in LIBRARIES.items():
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
        for name in names:
            about = {
                **json.loads((work / name / "export.json").read_text()),
                **json.loads((work / name / "expected.json").read_text()),
            }
            if about["format"] == format.replace("optimum", "onnx"):
                found, expected = load(work / name, library, about)
                apart = (found - expected).abs().max() / max(1.0, expected.abs().max())
                same = found.shape == expected.shape and bool(found.isfinite().all())
                differences[format] = max(differences.get(format, 0.0), float(apart) if same else float("inf"))
    print(json.dumps({"versions": versions, "differences": differences}))


def main(argv: list[str] | None = None) -> None:
    """Make the exports, load them in every environment, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="the Python of each environment")
    parser.add_argument("--encoder", help="a folder; without it, a small BERT")
    parser.add_argument("--check", nargs="+", help=argparse.SUPPRESS)  # of an environment: the folder and the exports
    args = parser.parse_args(argv)
    if args.check:
        return check(Path(args.check[0]), args.check[1:])
    print("| libraries |", " | ".join(LIBRARIES), "|\n|---|" + "---|" * len(LIBRARIES))
    with tempfile.TemporaryDirectory(prefix="bertrio-exports-") as folder:
        names = list(make(Path(folder), args.encoder))
        for python in args.python:
            command = [python, __file__, "--check", folder, *names]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{python} failed:\n{done.stderr[-3000:]}")
            found = json.loads(done.stdout.splitlines()[-1])
            cells = [
                f"{found['differences'][format]:.1e}" if format in found["differences"] else "-" for format in LIBRARIES
            ]
            libraries = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
            print(f"| {libraries} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
