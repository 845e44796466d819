"""bertrio: one BERT encoder, fine-tuned on several sentence tasks by a declarative pipeline."""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Spin count of waiting OpenMP threads. The default makes a run up to fifty times slower when another process uses one
# of its cores. OpenMP reads it once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


_PUBLIC = {"Predictor": "inference.predictor", "Prediction": "inference.predictor", "train": "pipeline"}


def __getattr__(name: str) -> Any:
    """Import what is public lazily, since it needs torch."""
    if name == "train":
        from bertrio.core.errors import PIPELINE, need_packages

        need_packages("bertrio.train", PIPELINE, "pipeline")
    if name in _PUBLIC:
        return getattr(import_module(f"bertrio.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'bertrio' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_PUBLIC, "__version__"]
