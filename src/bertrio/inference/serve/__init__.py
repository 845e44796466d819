"""HTTP server for a trained model: JSON for programs, a page for people, health and metrics for operators.

A request passes edge (headers, size of the body, counts), app (routes), schemas (validation) and batching (one thread
that predicts). Nothing here but `server` imports torch: the model comes in as a `Predictor`.
"""
