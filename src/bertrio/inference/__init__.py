"""Prediction, export and serving with a finished model."""
