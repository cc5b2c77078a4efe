"""The folder of a pipeline: the stages of a model and `pipeline.json`, which says what goes from one to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hieronnx._version import __version__
from hieronnx.errors import ExportError, HieronnxError, check_folder, writing
from hieronnx.files.staging import staging, swap_folders

DOCUMENT = "pipeline.json"
FORMAT_VERSION = "1.0"


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor: its name, its element type as ONNX names it, its sizes, with names where they are dynamic."""

    name: str
    dtype: str | None
    shape: list[int | str | None] | None


class StageEntry(msgspec.Struct, frozen=True):
    """A stage: its file, what it takes and gives, the calls that it has nodes of, its nodes and weights."""

    file: str
    inputs: list[str]
    outputs: list[str]
    calls: list[str]
    nodes: int
    repeated: list[str]
    """The nodes of earlier stages that it has, too: constants and sizes, by their first outputs."""
    weights: list[str]
    weight_bytes: int
    cost: float | None
    """In the unit that the stages were balanced by; None where the cuts were given."""


class CrossingEntry(msgspec.Struct, frozen=True):
    """A tensor that crosses a cut: which stage makes it (None: it is an input of the model), and which read it."""

    name: str
    dtype: str | None
    shape: list[int | str | None] | None
    made_by: int | None
    read_by: list[int]
    bytes: int | None


class CutEntry(msgspec.Struct, frozen=True):
    """What crosses from one stage to those after it; `before` is the call that the next stage begins with."""

    before: str
    tensors: list[CrossingEntry]
    bytes: int | None


class PipelineDocument(msgspec.Struct, frozen=True):
    """The whole of `pipeline.json`."""

    format_version: str
    generator: str
    model: str
    balance: str | None
    inputs: list[TensorEntry]
    outputs: list[TensorEntry]
    stages: list[StageEntry]
    cuts: list[CutEntry]
    shared_weights: dict[str, list[int]]
    """The weights that several stages have, each with these stages."""


def read_pipeline(folder: Path) -> PipelineDocument:
    """Read the `pipeline.json` of a folder.

    Raises:
        HieronnxError: If there is none, or it is not one that this version reads.
    """
    path = folder / DOCUMENT
    try:
        document = msgspec.json.decode(path.read_bytes(), type=PipelineDocument)
    except OSError as error:
        raise HieronnxError(f"'{folder}' is no pipeline: no {DOCUMENT} in it; 'hieronnx split' makes one") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HieronnxError(f"'{path}' is not a pipeline that this version reads: {error}; split again") from error
    if document.format_version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise HieronnxError(f"'{path}' has format {document.format_version}, this version reads {FORMAT_VERSION}")
    for stage in document.stages:
        if Path(stage.file).name != stage.file or not (folder / stage.file).is_file():
            raise HieronnxError(f"'{path}' names the stage '{stage.file}', which is not a file of the folder")
    return document


def generator() -> str:
    """Return what a document says of who wrote it."""
    return f"hieronnx {__version__}"


@contextmanager
def writing_folder(folder: Path, marker: str) -> Iterator[Path]:
    """Yield a folder to write into, which takes the place of another one when all is done.

    Args:
        folder: Where it is to be; nothing, an empty folder, or one that was written so before.
        marker: The file that tells such a folder.

    Raises:
        ExportError: If something else is there, or it cannot be written.
    """
    if not folder.is_dir():
        check_folder(folder)
    elif any(folder.iterdir()) and not (folder / marker).is_file():
        raise ExportError(f"'{folder}' has other files in it; give a new folder, or an empty one")
    place = folder.resolve()
    with staging(place.with_name(f"{place.name}.folder")) as staged, writing(folder):
        new = staged.with_name("new")
        new.mkdir()
        yield new
        if place.exists():
            swap_folders(new, place)
        else:
            os.rename(new, place)
