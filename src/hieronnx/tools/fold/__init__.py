"""Modules as ONNX functions, and back."""
