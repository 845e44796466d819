"""Overrides of params.yaml that most tests start from: linear heads, and both sentences of a pair in one sequence."""

LINEAR_HEADS = {"tasks": {name: {"encoding": "cross", "head": "linear", "dropout": 0.1} for name in ("qqp", "sts")}}
