"""A trained model behind HTTP: JSON for programs, a page for people, health and metrics for those who run it.

A request goes edge (headers, counts, unexpected errors) -> app (routes) -> requests (what may come in) -> batching (one
thread that predicts) -> schemas (what goes out). Nothing here imports torch: the model comes in as a `Predictor`.
"""
