"""What all tools need: a place to work, a file to read, and an error that says which tool failed and why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import ExportError, HieronnxError, writing
from hieronnx.files.staging import staging
from hieronnx.files.wire import read_locations
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike

_LARGE = 3 << 29  # tools need room: the most that one file can have is 2 GB


@contextmanager
def reporting_failures(tool: str) -> Iterator[None]:
    """Turn whatever a tool raises into one of our errors."""
    try:
        yield
    except (HieronnxError, MemoryError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
        raise ExportError(
            f"{tool} could not transform the model ({type(error).__name__}: {lines[0]}); "
            "--debug shows all that it said; another tool or another opset may work"
        ) from error


@contextmanager
def working_folder(model: ModelLike, output: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the model as a file, and the path where a tool is to write; both folders are gone afterwards."""
    with staging(output) as staged:
        folders = staged.with_name("source"), staged.with_name("made")
        for folder in folders:
            folder.mkdir()
        if isinstance(model, str | os.PathLike):
            source = Path(model)
        else:
            source = folders[0] / "model.onnx"
            with writing(source):
                proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
                onnx.save(proto, source)
        # A name that no other file has: onnx looks for data of the same name in the current folder, and gives up.
        yield source, folders[1] / f"{staged.parent.name.strip('.')}.onnx"


def has_external_data(source: Path) -> bool:
    """Say whether what is made of a model should have its weights in a file of their own: as it has, or as it must."""
    return source.stat().st_size > _LARGE or bool(read_locations(source))


def data_name(path: Path) -> str:
    """Return the name of the file for a model's weights."""
    return f"{path.name}.data"


def save_model(model: onnx.ModelProto, path: Path, *, external: bool) -> None:
    """Save what a tool made."""
    onnx.save(
        model,
        path,
        save_as_external_data=external,
        location=data_name(path) if external else None,
        size_threshold=SMALL_TENSOR_BYTES,
    )
    data = path.with_name(data_name(path))
    if data.exists():
        shutil.copymode(path, data)  # onnx makes it for its owner alone
