"""Training: the optimizer, the loop, and what the three training stages make of them."""
