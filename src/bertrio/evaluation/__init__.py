"""From prediction tables to metrics, submission files and the table of the result. No model is needed here."""
