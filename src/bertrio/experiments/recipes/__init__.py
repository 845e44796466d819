"""Rows of result tables as recipes: run, measured, and put beside what the papers report and claim."""
