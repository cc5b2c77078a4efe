"""hieronnx: the PyTorch module hierarchy as a coordinate system for ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hieronnx._export import ExportResult, HierarchyExporter, export
    from hieronnx.errors import HieronnxError
    from hieronnx.hierarchy import Call, CallId, Hierarchy, Initializer, Module, Node
    from hieronnx.sidecar import load

__all__ = [
    "Call",
    "CallId",
    "ExportResult",
    "Hierarchy",
    "HierarchyExporter",
    "HieronnxError",
    "Initializer",
    "Module",
    "Node",
    "__version__",
    "export",
    "load",
]

_HOMES = {
    "HieronnxError": "errors",
    "ExportResult": "_export",
    "HierarchyExporter": "_export",
    "export": "_export",
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
