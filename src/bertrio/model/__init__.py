"""The model: encoder, pooling and one head for each task."""
