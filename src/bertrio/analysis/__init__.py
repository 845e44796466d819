"""Error analysis of trained models: worst rows, suspect labels, slices, robustness, model card and report."""
