"""Compare: whether two ONNX files are the same computation, and if not, which nodes and values differ."""

from hieronnx.tools.compare.comparing import compare
from hieronnx.tools.compare.result import CompareResult

__all__ = ["CompareResult", "compare"]
