"""Fine-tuning techniques, one method a file."""
