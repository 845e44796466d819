"""The model: encoder, pooling, a head a task."""
