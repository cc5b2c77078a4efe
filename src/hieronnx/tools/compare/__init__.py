"""Compare: whether two ONNX files are the same computation, and if not, which nodes and values differ."""

from __future__ import annotations

from hieronnx.tools.compare.comparing import compare
from hieronnx.tools.compare.result import (
    ChangeGroup,
    ComparedNode,
    CompareResult,
    Difference,
    Kind,
    NodeChange,
    ValueChange,
)

__all__ = ["ChangeGroup", "CompareResult", "ComparedNode", "Difference", "Kind", "NodeChange", "ValueChange", "compare"]
