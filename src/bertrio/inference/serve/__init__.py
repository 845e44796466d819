"""HTTP server for a trained model: JSON for programs, a page for people, health and metrics for operators.

A request passes limits (connections, hosts, the size of the body), app (routes), schemas (validation) and batching
(one thread that predicts).
"""
