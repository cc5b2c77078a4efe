"""Analyzing an ONNX file: what it is made of, by module, category and evidence."""

from __future__ import annotations

from hieronnx._analyze.analysis import Analysis
from hieronnx._analyze.counting import analyze

__all__ = ["Analysis", "analyze"]
