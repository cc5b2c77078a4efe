"""hieronnx: the PyTorch module hierarchy as a coordinate system for ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hieronnx._analyze import Analysis, analyze
    from hieronnx._annotate import Annotated, annotate
    from hieronnx._carry import CarryResult, carry
    from hieronnx._compare import Comparison, compare
    from hieronnx._export import ExportResult, HierarchyExporter, export
    from hieronnx._extract import extract
    from hieronnx._extraction import Extraction
    from hieronnx._optimize import optimize
    from hieronnx._quantize import quantize
    from hieronnx._validate import Finding, Findings, validate
    from hieronnx.errors import HieronnxError
    from hieronnx.hierarchy import Call, CallId, Hierarchy, Initializer, Module, Node
    from hieronnx.sidecar import load

__all__ = [
    "Analysis",
    "Annotated",
    "Call",
    "CallId",
    "CarryResult",
    "Comparison",
    "ExportResult",
    "Extraction",
    "Finding",
    "Findings",
    "Hierarchy",
    "HierarchyExporter",
    "HieronnxError",
    "Initializer",
    "Module",
    "Node",
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
    "Analysis": "_analyze",
    "analyze": "_analyze",
    "Annotated": "_annotate",
    "annotate": "_annotate",
    "CarryResult": "_carry",
    "carry": "_carry",
    "Comparison": "_compare",
    "compare": "_compare",
    "HieronnxError": "errors",
    "ExportResult": "_export",
    "HierarchyExporter": "_export",
    "export": "_export",
    "Extraction": "_extraction",
    "extract": "_extract",
    "optimize": "_optimize",
    "quantize": "_quantize",
    "Finding": "_validate",
    "Findings": "_validate",
    "validate": "_validate",
    "Call": "hierarchy",
    "CallId": "hierarchy",
    "Hierarchy": "hierarchy",
    "Initializer": "hierarchy",
    "Module": "hierarchy",
    "Node": "hierarchy",
    "load": "sidecar",
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
