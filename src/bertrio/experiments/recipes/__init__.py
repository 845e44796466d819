"""Recipes: rows of the papers' result tables. Run them, measure them, and compare them with what the papers report."""
