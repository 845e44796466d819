"""Row tables: sources, splits, tokens, batches and data statistics."""
