"""bertrio: one BERT encoder fine-tuned on several sentence tasks, as a declarative pipeline."""

__version__ = "0.1.0"
