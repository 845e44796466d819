"""Metrics, plots and submission files of prediction tables. Works without a model."""
