"""Experiments side by side: what a revision of the repository holds, and whether one is better than another."""
