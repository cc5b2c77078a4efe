"""The errors that hieronnx raises on purpose, all addressed to the user."""

from __future__ import annotations

__all__ = ["ExportError", "HieronnxError", "InputError", "MissingExtraError", "TargetError"]


class HieronnxError(Exception):
    """Something that the user can mend; its message says what, and what to do next."""


class TargetError(HieronnxError):
    """The model that was named cannot be found or built."""


class InputError(HieronnxError):
    """An input, a shape, a dtype or an option does not fit the model."""


class ExportError(HieronnxError):
    """torch could not export the model, or the files could not be written."""


class MissingExtraError(HieronnxError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed; run: pip install 'hieronnx[{extra}]'")
