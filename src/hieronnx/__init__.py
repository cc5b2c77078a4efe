"""hieronnx: the PyTorch module hierarchy as a coordinate system for ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hieronnx._version import __version__

if TYPE_CHECKING:
    from hieronnx.errors import HieronnxError
    from hieronnx.files.findings import Finding
    from hieronnx.files.opening import load
    from hieronnx.hierarchy.hierarchy import Hierarchy
    from hieronnx.hierarchy.records import Call, CallId, Initializer, Module, Node
    from hieronnx.tools.analyze import AnalysisResult, analyze
    from hieronnx.tools.annotate import AnnotateResult, annotate
    from hieronnx.tools.carry import CarryResult, carry
    from hieronnx.tools.compare import CompareResult, compare
    from hieronnx.tools.export import ExportResult, HierarchyExporter, export
    from hieronnx.tools.extract.extracting import extract
    from hieronnx.tools.extract.result import ExtractResult
    from hieronnx.tools.optimize import optimize
    from hieronnx.tools.quantize import quantize
    from hieronnx.tools.validate.result import ValidateResult
    from hieronnx.tools.validate.validating import validate

__all__ = [
    "AnalysisResult",
    "AnnotateResult",
    "Call",
    "CallId",
    "CarryResult",
    "CompareResult",
    "ExportResult",
    "ExtractResult",
    "Finding",
    "Hierarchy",
    "HierarchyExporter",
    "HieronnxError",
    "Initializer",
    "Module",
    "Node",
    "ValidateResult",
    "__version__",
    "analyze",
    "annotate",
    "carry",
    "compare",
    "export",
    "extract",
    "load",
    "optimize",
    "quantize",
    "validate",
]

_HOMES = {
    "AnalysisResult": "tools.analyze",
    "analyze": "tools.analyze",
    "AnnotateResult": "tools.annotate",
    "annotate": "tools.annotate",
    "CarryResult": "tools.carry",
    "carry": "tools.carry",
    "CompareResult": "tools.compare",
    "compare": "tools.compare",
    "HieronnxError": "errors",
    "ExportResult": "tools.export",
    "HierarchyExporter": "tools.export",
    "export": "tools.export",
    "ExtractResult": "tools.extract.result",
    "extract": "tools.extract.extracting",
    "optimize": "tools.optimize",
    "quantize": "tools.quantize",
    "Finding": "tools.validate.validating",
    "ValidateResult": "tools.validate.validating",
    "validate": "tools.validate.validating",
    "Call": "hierarchy.records",
    "CallId": "hierarchy.records",
    "Hierarchy": "hierarchy.hierarchy",
    "Initializer": "hierarchy.records",
    "Module": "hierarchy.records",
    "Node": "hierarchy.records",
    "load": "files.opening",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import hieronnx` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hieronnx' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"hieronnx.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
