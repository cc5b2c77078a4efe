"""What an export left on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hieronnx._export import ExportResult
    from hieronnx.report.summary import WrittenFile

__all__ = ["list_files"]


def list_files(result: ExportResult) -> list[WrittenFile]:
    """List the model, the files that its weights are in, and the sidecar, as they are on the disk."""
    from hieronnx.report.summary import WrittenFile

    paths = [result.path, *_weight_files(result.path)]
    if result.sidecar is not None:
        paths.append(result.sidecar)
    return [WrittenFile(path, path.stat().st_size) for path in paths]


def _weight_files(model: Path) -> list[Path]:
    from hieronnx.wire import read_skeleton

    entries = (entry for tensor in read_skeleton(model).graph.initializer for entry in tensor.external_data)
    locations = {entry.value for entry in entries if entry.key == "location"}
    return [model.parent / location for location in sorted(locations)]
