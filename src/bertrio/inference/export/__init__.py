"""A trained model as other libraries load it: transformers, sentence-transformers, ONNX runtimes."""
