"""Comparing two ONNX files, one file per stage: sign, number, align, settle, wire, tell the differences."""

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
