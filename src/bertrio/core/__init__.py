"""Shared foundations: tasks, errors, files, terminal output, and running stages."""
