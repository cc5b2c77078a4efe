"""Opening models and their hierarchies: `_hierarchy.json` beside a model, else the metadata inside it, else torch's.

The sidecar holds everything; the embedded form holds what is needed to know every node's call, and survives where the
sidecar gets lost. What torch itself writes on nodes is less, and better than nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.boundary import reads_files
from hieronnx.files.claims import Claim, Finding, check_claim
from hieronnx.files.document import read_document
from hieronnx.files.external import check_data
from hieronnx.files.metadata import CALLS_KEY, CARRY, explain_dropped, read_metadata
from hieronnx.files.torch_scopes import read_torch_scopes
from hieronnx.files.wire import read_skeleton, read_wiring
from hieronnx.graph.soundness import find_faults
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import find_readers
from hieronnx.graph.wiring import Wiring, read_ir_wiring
from hieronnx.hierarchy.hierarchy import Hierarchy, add_consumers

_NO_NUMBER = "invalid literal for int() with base 10: "
_REMEDY = "'hieronnx export' makes a file that has one; 'hieronnx annotate' gives this one that of its PyTorch model"


def sidecar_path(model: Path) -> Path:
    """Return where the sidecar of a model file belongs: `model.onnx` has `model_hierarchy.json`."""
    return model.with_name(f"{model.stem}_hierarchy.json")


def find_beside(model: Path) -> Path:
    """Return where the sidecar of a model file is: beside it, or, of a link that has none, beside what it links to."""
    beside = sidecar_path(model)
    return sidecar_path(model.resolve()) if model.is_symlink() and not os.path.lexists(beside) else beside


@reads_files
def load(path: str | Path) -> Hierarchy:
    """Read the hierarchy of an ONNX file: from its sidecar if that is of this file, else from the metadata inside.

    A file that torch alone wrote with its dynamo exporter has torch's own record of modules: `strategy` is
    `torch_scopes` then, the evidence `name`, and the runs of a module that torch does not tell apart are one call.

    Raises:
        HieronnxError: If there is no such file, or it has no hierarchy.

    Example:
        >>> hieronnx.load("model.onnx").tags["/BertModel/BertPooler"]
        'pooler'
    """
    model = require_file(Path(path))
    beside = _find_sidecar(model, lambda: read_wiring(model))
    if beside is not None:
        return beside
    structure = read_structure(model)
    return require_hierarchy(_read_inside(structure, str(model)), model, structure)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model that a tool works on: its structure, and its hierarchy if it has one."""

    name: str
    """The file's path as it was given; `model` for a model in memory."""
    path: Path | None
    model: ir.Model
    """Of a file: without the contents of all but its smallest initializers."""
    hierarchy: Hierarchy | None


def open_model(model: ModelLike) -> OpenedModel:
    """Open a model and its hierarchy, if it has one; of a file no weights are read.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model, or its hierarchy cannot be read.
    """
    opened = open_structure(model)
    path, loaded = opened.path, opened.model
    if path is None:
        return replace(opened, hierarchy=_read_inside(loaded, "the model"))
    hierarchy = _find_sidecar(path, lambda: read_ir_wiring(loaded))
    return replace(opened, hierarchy=hierarchy or _read_inside(loaded, str(path)))


def open_structure(model: ModelLike) -> OpenedModel:
    """Open a model alone, for one that is to get a hierarchy: what it has, or what is left of that, is not read.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model.
    """
    if not isinstance(model, str | os.PathLike):
        return OpenedModel("model", None, load_ir_model(model), None)
    path = Path(model)
    return OpenedModel(str(path), path, read_structure(path), None)


def find_exporter(model: ModelLike) -> str | None:
    """Return what exported a file, as the sidecar beside it says; None where that is not known."""
    if not isinstance(model, str | os.PathLike):
        return None
    try:
        beside = _find_sidecar(Path(model), lambda: read_wiring(model))
    except HieronnxError:  # it is damaged: then it says nothing
        return None
    return None if beside is None else beside.model.get("exporter")


def require_hierarchy(hierarchy: Hierarchy | None, path: Path | None, model: ir.Model | None = None) -> Hierarchy:
    """Return the hierarchy of a model, if it has one.

    Raises:
        HieronnxError: If it has none.
    """
    if hierarchy is not None:
        return hierarchy
    dropped = explain_dropped(model) if model is not None else None
    inside = f"{dropped}; {CARRY}" if dropped else f"no metadata inside; {_REMEDY}"
    if path is None:
        raise HieronnxError(f"the model has no hierarchy: {inside}")
    sidecar = find_beside(path)
    other = " (that file tells of another model: its nodes are others, or wired otherwise)" * sidecar.is_file()
    raise HieronnxError(f"'{path}' has no hierarchy: no {sidecar.name} beside it{other} and {inside}")


def load_ir_model(model: ModelLike) -> ir.Model:
    """Return the model as onnx-ir, with weights in external files left where they are.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model, or its data must not be opened.
    """
    if isinstance(model, ir.Model):
        return model
    if not isinstance(model, str | os.PathLike):
        if not hasattr(model, "graph"):
            raise InputError(f"the model is a {type(model).__name__}; give a path, a ModelProto or an ir.Model")
        return deserialize(model, "the model")
    path = require_file(Path(model))
    _check_sound(read_skeleton(path), f"'{path}'")
    check_data(path, needed=False)
    try:
        with reading_graph(f"'{path}'"):
            loaded = ir.load(path)
    except HieronnxError:
        raise
    except Exception as error:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: {error}") from error
    if not loaded.graph.opset_imports:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: it names no opset")
    return loaded


@contextmanager
def reading_graph(name: str) -> Iterator[None]:
    """Turn what onnx-ir says of a graph that it cannot read into one of our errors, with the innermost cause."""
    try:
        yield
    except HieronnxError:
        raise
    except (ir.serde.SerdeError, NotImplementedError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise HieronnxError(f"hieronnx cannot read {name}: {_innermost_reason(error)}") from error


def _innermost_reason(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:  # onnx-ir may fail while it tells of a failure
        error = inner
    reason = " ".join(str(error).split())
    if reason.startswith(_NO_NUMBER):
        return f"it has {reason.removeprefix(_NO_NUMBER)} where a number should be"
    # onnx-ir only asserts that contents and type of a tensor fit.
    return reason or "a tensor holds what its type does not"


def require_file(path: Path) -> Path:
    """Return the path of a file that is there.

    Raises:
        HieronnxError: If none is.
    """
    if not path.is_file():
        raise HieronnxError(f"no ONNX file at '{path}'")
    return path


def read_structure(path: Path) -> ir.Model:
    """Read a model without the contents of all but its smallest initializers.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model.
    """
    return deserialize(read_skeleton(require_file(path)), f"'{path}'")


def deserialize(model: onnx.ModelProto, name: str) -> ir.Model:
    """Make of a message the model that it is; the name is for errors.

    Raises:
        HieronnxError: If it is not sound.
    """
    _check_sound(model, name)
    with reading_graph(name):
        return ir.serde.deserialize_model(model)


def _check_sound(model: onnx.ModelProto, name: str) -> None:
    fault = next(find_faults(model), None)
    if fault is not None:
        raise HieronnxError(f"{name} is not a sound model: {fault.place}: {fault.message}; fix it with what made it")


def _find_sidecar(model: Path, read: Callable[[], Wiring]) -> Hierarchy | None:
    """Read the sidecar beside a model that is wired so; None if there is none, or it is of another file."""
    sidecar = find_beside(model)
    if not sidecar.is_file():
        return None
    wiring, hierarchy = read(), read_sidecar(sidecar)
    belongs = {node.key for node in hierarchy.nodes} == wiring.keys
    # A sidecar before version 1.4 does not say how its file is wired.
    return hierarchy if belongs and hierarchy.model.get("wiring") in (None, wiring.digest) else None


def read_sidecar(path: Path) -> Hierarchy:
    """Read a `_hierarchy.json`, whatever file it is of.

    Raises:
        HieronnxError: If it is not a hierarchy that this version reads.
    """
    try:
        content = read_beside(path)
    except OSError as error:
        raise HieronnxError(f"cannot read '{path}': {error.strerror or error}") from error
    return _require_sound(*read_document(content, path.name), f"'{path}'")


def read_beside(path: Path) -> bytes:
    """Read a file that is where a sidecar should be.

    Raises:
        OSError: If it cannot be read, or is no regular file: a pipe or a device need not end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is no regular file")
    return path.read_bytes()


def read_embedded(model: ir.Model, file: str) -> Hierarchy | None:
    """Read the hierarchy from inside a model; None if there is none, or a tool dropped half of it.

    Raises:
        HieronnxError: If what is there is not a hierarchy that this version reads.
    """
    if CALLS_KEY not in model.metadata_props or explain_dropped(model):
        return None
    hierarchy = _require_sound(*read_metadata(model), f"the metadata in '{file}'")
    return add_consumers(hierarchy, find_readers(model))


def _read_inside(model: ir.Model, file: str) -> Hierarchy | None:
    """Read the hierarchy from inside a model: ours; where nothing of ours is there, torch's own record of modules."""
    return read_embedded(model, file) or (None if explain_dropped(model) else read_torch_scopes(model))


def _require_sound(claim: Claim | None, findings: list[Finding], what: str) -> Hierarchy:
    """Return the hierarchy that a reader found, if nothing in it is wrong."""
    hierarchy, wrong = (None, []) if claim is None else check_claim(claim)
    for finding in (*findings, *wrong):
        if finding.severity == "error":
            place = finding.place.removeprefix("sidecar: ").removeprefix("metadata: ")
            where = "" if place in what else f"{place}: "
            raise HieronnxError(
                f"{what} is not a hierarchy that this version reads: {where}{finding.message}; {finding.remedy}"
            )
    assert hierarchy is not None  # or something was found
    return hierarchy
