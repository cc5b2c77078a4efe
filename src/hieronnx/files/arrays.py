"""Writing arrays and small texts beside models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hieronnx.errors import writing


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is in.

    Raises:
        ExportError: If it cannot be made.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays by name as a `.npz` file.

    Raises:
        ExportError: If it cannot be written.
    """
    with writing(path), path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # mypy takes a name for an option of numpy's


def write_text(path: Path, text: str) -> None:
    """Write a text.

    Raises:
        ExportError: If it cannot be written.
    """
    with writing(path):
        path.write_text(text, encoding="utf-8", newline="\n")
