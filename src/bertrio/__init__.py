"""bertrio: one BERT encoder, fine-tuned on several sentence tasks by a declarative pipeline."""

import os
from typing import Any

__version__ = "0.1.0"

# Spin count of waiting OpenMP threads. The default makes a run up to fifty times slower when another process uses one
# of its cores. OpenMP reads it once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> Any:
    """Import `Predictor` and `Prediction` lazily, since they need torch."""
    if name in ("Predictor", "Prediction"):
        from bertrio.inference import predictor

        return getattr(predictor, name)
    raise AttributeError(f"module 'bertrio' has no attribute {name!r}")
