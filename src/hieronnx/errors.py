"""The errors that hieronnx raises on purpose, all addressed to the user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ExportError", "HieronnxError", "InputError", "MissingExtraError", "TargetError", "writing"]


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


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says of a file that cannot be written into one of our errors."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"cannot write '{os.fspath(path)}': {error.strerror or error}") from error
