"""What every other package builds on: tasks, errors, files, the terminal, and how stages run."""
