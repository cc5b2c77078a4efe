"""Analyzing an ONNX file: what it is made of, by module, category and evidence."""

from __future__ import annotations

from hieronnx.tools.analyze.counting import analyze
from hieronnx.tools.analyze.result import AnalysisResult

__all__ = ["AnalysisResult", "analyze"]
