"""Profiling an ONNX file: which module is slow, on the graph that ONNX Runtime really runs."""
