"""Overrides of params.yaml for most tests: linear heads and cross-encoded pairs."""

LINEAR_HEADS = {"tasks": {name: {"encoding": "cross", "head": "linear", "dropout": 0.1} for name in ("qqp", "sts")}}
