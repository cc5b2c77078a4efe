"""What an export left on the disk, and reports that are written to files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hieronnx.report.summary import WrittenFile
    from hieronnx.tools.export import ExportResult


def list_files(result: ExportResult) -> list[WrittenFile]:
    """List the files of an export as they are on the disk."""
    return list_model_files(result.path, result.sidecar)


def list_model_files(model: Path, sidecar: Path | None) -> list[WrittenFile]:
    """List the model, the files that its weights are in, and the sidecar, as they are on the disk."""
    from hieronnx.report.summary import WrittenFile

    paths = [model, *_weight_files(model)]
    if sidecar is not None:
        paths.append(sidecar)
    return [WrittenFile(path, path.stat().st_size) for path in paths]


def _weight_files(model: Path) -> list[Path]:
    from hieronnx.files.wire import find_locations, read_skeleton

    return [model.parent / location for location in sorted(find_locations(read_skeleton(model)))]


def write_text(path: Path, text: str) -> None:
    """Write a report to a file, which appears whole or not at all.

    Raises:
        HieronnxError: If it cannot be written.
    """
    from hieronnx.errors import writing
    from hieronnx.files.staging import staging

    with staging(path) as staged, writing(path):
        staged.write_text(text, encoding="utf-8", newline="\n")
        os.replace(staged, path)
