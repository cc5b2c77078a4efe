"""The record of a model: modules, calls, nodes, tags, and how to select them. No onnx, no torch."""
