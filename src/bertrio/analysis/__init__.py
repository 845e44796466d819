"""Where a trained model fails: worst rows, suspect labels, slices, robustness, and the card that says so."""
