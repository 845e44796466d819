"""Rows: where they come from, how they are split, and what is known about them."""
