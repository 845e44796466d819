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

TEXTS = ["a good film", "bad", "why is this the question ? the film is good", "a bad question " * 20]
PAIRS = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1]))
LIBRARIES = {  # by loader
    **{"encoder": "transformers", "classifier": "transformers", "cross-encoder": "sentence-transformers"},
    **{"sentence-transformer": "sentence-transformers", "onnx": "onnxruntime", "optimum": "optimum-onnx"},
}
BI = {"encoding": "bi", "head": "cosine", "head_options": {"projection": True, "activation": "tanh"}, "loss": "cosent"}
CROSS = {"encoding": "cross", "head": "linear", "head_options": {}}
KINDS = {  # by encoding: tasks, one with classes and one with scores, and formats
    "cross": ({"qqp": CROSS, "sts": CROSS | {"loss": "mse"}}, ("encoder", "classifier", "cross-encoder", "onnx")),
    "bi": ({"sts": BI}, ("sentence-transformer",)),
}


def write_exports(work: Path, encoder: str | None) -> Iterator[str]:
    """Write models and exports; yield the name of each export's folder, which holds expected.json as well."""
    import pandas as pd
    import torch
    from common import ROOT

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

    encoder_params = {"max_length": 24, "name": encoder or "tiny", "tiny": {"vocab_size": 200}}
    runtime = Runtime(torch.device("cpu"), torch.float32)
    pairs, single = pd.DataFrame(PAIRS, columns=["text_a", "text_b"]), pd.DataFrame({"text": TEXTS})
    for pooling in ("cls", "mean", "pooler"):
        for kind, (tasks, formats) in KINDS.items():
            overrides = {"encoder": encoder_params | {"pooling": pooling}, "tasks": tasks}
            params = validate_params(merged(read_yaml(ROOT / "params.yaml"), overrides), "params.yaml")
            set_up(1, "cpu", "float32")
            folder = work / f"models/{pooling}-{kind}"
            tokenizer = build_tokenizer(params.encoder, TEXTS, folder / "tokenizer")
            initial_transformer(params.encoder, len(tokenizer)).save_pretrained(folder / "start")
            model = build_model(params, folder / "start", runtime)
            save_model(model, folder / "base", ModelConfig.from_params(params), folder / "tokenizer")
            trained = TrainedModel.load(folder / "base", runtime)
            for format in formats:
                for task in [None] if format == "encoder" else tasks:
                    name = f"{format}-{pooling}-{task}"
                    export_model(folder / "base", work / name, format, task)
                    texts = pairs if task else single
                    expected = FORMATS[format].compare(trained, trained.tasks.get(task), work / name, texts)[1]
                    logits = trained.outputs(task, pairs).tolist() if format == "onnx" else None
                    facts = {"pooling": pooling, "expected": expected.tolist(), "logits": logits}
                    write_json(work / name / "expected.json", facts, digits=None)
                    yield name


def outputs_of(path: str, loader: str, facts: dict[str, Any]) -> tuple[Any, Any]:
    """Return the outputs of an export by a loader of LIBRARIES, and the expected ones."""
    import torch

    expected = torch.tensor(facts["expected"])
    if loader == "cross-encoder":
        from sentence_transformers import CrossEncoder

        scores = CrossEncoder(path, device="cpu").predict(PAIRS, convert_to_tensor=True)
        return scores.reshape(len(PAIRS), -1), expected
    if loader == "sentence-transformer":
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(path, device="cpu").encode([a for a, _ in PAIRS], convert_to_tensor=True), expected
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    texts = [TEXTS] if loader == "encoder" else [list(side) for side in zip(*PAIRS)]
    tokens = AutoTokenizer.from_pretrained(path)(*texts, truncation=True, padding=True, return_tensors="pt")
    if loader == "encoder":
        output, mask = AutoModel.from_pretrained(path)(**tokens), tokens["attention_mask"].unsqueeze(-1)
        states = output.last_hidden_state
        mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
        return {"cls": states[:, 0], "mean": mean, "pooler": output.pooler_output}[facts["pooling"]], expected
    if loader == "classifier":
        return AutoModelForSequenceClassification.from_pretrained(path)(**tokens).logits, expected
    if loader == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(f"{path}/model.onnx", providers=["CPUExecutionProvider"])
        outputs = session.run(None, {key: value.numpy() for key, value in tokens.items()})
        return torch.from_numpy(outputs[0]), expected
    from optimum.onnxruntime import ORTModelForSequenceClassification

    logits = torch.tensor(facts["logits"])
    if logits.shape[1] == 1 and facts.get("classes"):
        logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
    return ORTModelForSequenceClassification.from_pretrained(path)(**tokens).logits, logits


def check(work: Path, names: list[str]) -> None:
    """Print a JSON object: the versions of this environment's libraries, and the differences by loader."""
    import torch

    versions, differences = {}, {}
    for loader, library in LIBRARIES.items():
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
        for name in names:
            facts = {
                key: value
                for file in ("export.json", "expected.json")
                for key, value in json.loads((work / name / file).read_text()).items()
            }
            if facts["format"] == loader.replace("optimum", "onnx"):
                with torch.inference_mode():
                    outputs, expected = outputs_of(str(work / name), loader, facts)
                difference = (outputs - expected).abs().max() / max(1.0, expected.abs().max())
                valid = outputs.shape == expected.shape and bool(outputs.isfinite().all())
                differences[loader] = max(differences.get(loader, 0.0), float(difference) if valid else float("inf"))
    print(json.dumps({"versions": versions, "differences": differences}))


def main() -> None:
    """Write the exports, load them in every environment, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="the Python of each environment")
    parser.add_argument("--encoder", help="folder of the encoder; default: a small BERT")
    parser.add_argument("--check", nargs="+", help=argparse.SUPPRESS)  # of an environment: the folder and the exports
    args = parser.parse_args()
    if args.check:
        return check(Path(args.check[0]), args.check[1:])
    print("| libraries |", " | ".join(LIBRARIES), "|\n|---|" + "---|" * len(LIBRARIES))
    with tempfile.TemporaryDirectory(prefix="bertrio-exports-") as folder:
        names = list(write_exports(Path(folder), args.encoder))
        for python in args.python:
            command = [python, __file__, "--check", folder, *names]
            process = subprocess.run(command, capture_output=True, text=True)
            if process.returncode:
                sys.exit(f"{python} failed:\n{process.stderr[-3000:]}")
            result = json.loads(process.stdout.splitlines()[-1])
            differences = result["differences"]
            cells = [f"{differences[loader]:.1e}" if loader in differences else "-" for loader in LIBRARIES]
            libraries = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
            print(f"| {libraries} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
