"""bertrio: one BERT encoder fine-tuned on several sentence tasks, as a declarative pipeline."""

import os
from typing import Any

__version__ = "0.1.0"

# How long threads spin while they wait for each other. OpenMP's own choice makes a run fifty times slower as soon as
# another process wants one of its cores. Read once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> Any:
    """Import `Predictor` and `Prediction` lazily, since they need torch."""
    if name in ("Predictor", "Prediction"):
        from bertrio.inference import predictor

        return getattr(predictor, name)
    raise AttributeError(f"module 'bertrio' has no attribute {name!r}")
