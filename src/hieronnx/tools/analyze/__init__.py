"""Analyzing an ONNX file: what it is made of, by module, category and evidence."""
