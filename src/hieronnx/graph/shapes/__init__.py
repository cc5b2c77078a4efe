"""The types of a model's tensors, inferred by onnx without any weights."""

from __future__ import annotations

from hieronnx.graph.shapes.inferring import infer_types

__all__ = ["infer_types"]
