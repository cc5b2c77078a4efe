"""Running a tool of others on a model: a folder to work in, files to read and write, the hierarchy carried through."""

from __future__ import annotations

import glob
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import onnx

from hieronnx.errors import ExportError, describe_error, writing
from hieronnx.files.external import check_data, copy_data
from hieronnx.files.opening import open_model, read_structure, require_hierarchy
from hieronnx.files.staging import data_name, staging
from hieronnx.files.wire import read_locations, read_skeleton
from hieronnx.files.writing import check_output, list_own_files, serialize
from hieronnx.graph.shapes import infer_types
from hieronnx.graph.soundness import Fault, find_faults, find_unmade
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike
from hieronnx.graph.walks import first_name, walk_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.runtime.sessions import read_element_types
from hieronnx.tools.carry import CarryResult, carry_temporary
from hieronnx.tools.carry.carrying import Examine
from hieronnx.tools.fold.unfolding import unfold_file, unfold_opened

Run: TypeAlias = Callable[[Path, Path, Hierarchy], Iterable[str]]
"""Takes the file to read, the file to write and the model's hierarchy; returns notes for the user."""

_LARGE = 3 << 29  # tools need room: the most that one file can have is 2 GB


def run_tool(
    model: ModelLike,
    output: str | os.PathLike[str],
    tool: str,
    run: Run,
    *,
    embed: bool,
    sidecar: bool,
    progress: Callable[[str], None] | None,
    examine: Examine | None = None,
) -> CarryResult:
    """Run a tool, named for messages, on a model and write what it made, with the hierarchy carried onto it.

    Raises:
        HieronnxError: If the model has no hierarchy, the tool fails, or the output cannot be written.
    """
    destination, report = Path(output), progress or (lambda _stage: None)
    opened = unfold_opened(open_model(model))  # tools leave what is in functions as it is
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    check_output(destination, list_own_files(model))
    if opened.path is not None:
        check_data(opened.path)
    with _working_folder(model, destination) as (given, made):
        source = unfold_file(given, made.with_name("flat.onnx"))
        report(f"running {tool}")
        notes = tuple(run(source, made, hierarchy))
        _check_made(made, source, tool)
        report("carrying the hierarchy")
        result = carry_temporary(opened, made, destination, embed=embed, sidecar=sidecar, examine=examine)
    return replace(result, notes=(*result.notes, *notes))


@contextmanager
def calling(tool: str) -> Iterator[None]:
    """Turn whatever a tool raises into one of our errors; for the call of the tool alone."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ExportError(
            f"{tool} could not transform the model ({describe_error(error)}); "
            "--debug shows all that it said; another tool or another opset may work"
        ) from error


def _check_made(made: Path, source: Path, tool: str) -> None:
    """See that what a tool made can be a model: no runtime would load it otherwise.

    Raises:
        ExportError: If it cannot, though what the tool was given can.
    """
    fault = _find_fault(made)
    if fault is None:
        return
    if before := next(find_unmade(read_skeleton(source)), None):
        raise ExportError(f"the model is broken: {before.place}: {before.message}; fix it with what made it")
    raise ExportError(
        f"{tool} made a broken graph of the model: {fault.place}: {fault.message}; nothing is written; "
        "use another tool, or another version of this one"
    )


def _find_fault(path: Path) -> Fault | None:
    skeleton = read_skeleton(path)
    return next(chain(find_faults(skeleton), find_unmade(skeleton)), None)


@contextmanager
def _working_folder(model: ModelLike, output: Path) -> Iterator[tuple[Path, Path]]:
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
                source.write_bytes(serialize(model))
        # A name that no other file has: onnx looks for data of the same name in the current folder, and gives up.
        yield source, folders[1] / f"{staged.parent.name.strip('.')}.onnx"


# -- what tools read and write ----------------------------------------------------------------------------


def has_external_data(source: Path) -> bool:
    """Say whether what is made of a model should have its weights in a file of their own: as it has, or as it must."""
    return source.stat().st_size > _LARGE or bool(read_locations(source))


def save_model(model: onnx.ModelProto, path: Path, *, external: bool) -> None:
    """Save what a tool made."""
    location = data_name(path) if external else None
    onnx.save(model, path, save_as_external_data=external, location=location, size_threshold=SMALL_TENSOR_BYTES)
    copy_permissions(path)


def copy_permissions(path: Path) -> None:
    """Give a model's weights the permissions of the model: onnx makes their file for its owner alone."""
    for data in path.parent.glob(f"{glob.escape(path.name)}.*"):
        shutil.copymode(path, data)


def load_floats(source: Path, names: Collection[str]) -> dict[str, onnx.TensorProto]:
    """Load initializers with their contents."""
    tensors = {}
    for tensor in onnx.load(source, load_external_data=False).graph.initializer if names else ():
        if tensor.name in names:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(source.parent))
                tensor.ClearField("data_location")
                del tensor.external_data[:]
            tensors[tensor.name] = tensor
    return tensors


class Copy(NamedTuple):
    """A copy of a model, the names of chosen nodes in it, and how many nodes got a name of their own for that."""

    path: Path
    chosen: list[str]
    named: int


def copy_for_tool(source: Path, folder: Path, chosen: Collection[tuple[str, str]]) -> Copy:
    """Copy a model for a tool that selects nodes by name: where nodes were chosen, each gets a name of its own.

    Declared types of initializers are left out: they are in the initializers, and quantizers forget to change them.
    The model and its data go into a new folder; nodes are chosen by their graphs' keys and their first outputs.
    """
    model = onnx.load(source, load_external_data=False)
    folder.mkdir()
    copy_data(source, folder)
    initializers = {tensor.name for tensor in model.graph.initializer}
    declared = [value for value in model.graph.value_info if value.name not in initializers]
    del model.graph.value_info[:]
    model.graph.value_info.extend(declared)
    nodes = [(key, node) for key, graph in walk_bodies(model.graph) for node in graph.node]
    named = _name_apart([node for _, node in nodes]) if chosen else 0
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return Copy(path, [node.name for key, node in nodes if (key, first_name(node.output)) in chosen], named)


def look_through_copies(path: Path) -> None:
    """Let those who read a copy of an initializer in the main graph of a model read the initializer, without the copy.

    Exporters write what modules or calls share so, and quantizers take for a weight only what is an initializer.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    shown = {value.name for _, body in walk_bodies(graph) for value in body.output}
    copied: dict[str, str] = {}
    for node in graph.node:
        if (node.domain, node.op_type) == ("", "Identity") and node.output[0] not in shown:
            read = copied.get(node.input[0], node.input[0])
            if read in weights:
                copied[node.output[0]] = read
    if not copied:
        return
    for node in (node for _, body in walk_bodies(graph) for node in body.node):
        node.input[:] = [copied.get(name, name) for name in node.input]
    nodes = [node for node in graph.node if first_name(node.output) not in copied]
    declared = [value for value in graph.value_info if value.name not in copied]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.value_info.extend(declared)
    path.write_bytes(model.SerializeToString())


def declare_types(path: Path) -> None:
    """Declare the types of all tensors in the main graph of a model, for a tool that cannot infer them.

    Such a tool asks onnx, which knows no operators of others, nor the types of what is made of theirs.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    known = {value.name for value in (*graph.value_info, *graph.input, *graph.output)}
    made = [name for node in graph.node for name in node.output if name and name not in known]
    inferred = {value.name: info for value, info in infer_types(read_structure(path), {}).items()} if made else {}
    types = {name: inferred[name] for name in made if name in inferred and inferred[name].type.tensor_type.elem_type}
    left = [name for name in made if name not in types]
    for name, element in read_element_types(path, left).items() if left else ():
        types[name] = onnx.helper.make_tensor_value_info(name, element, None)
    if types:
        graph.value_info.extend(types.values())
        path.write_bytes(model.SerializeToString())


def _name_apart(nodes: list[onnx.NodeProto]) -> int:
    """Name the nodes that have no name, or one that others have, after what they make; return how many."""
    names = Counter(node.name for node in nodes)
    taken, unnamed = set(names), [node for node in nodes if not node.name or names[node.name] > 1]
    for node in unnamed:
        stem = first_name(node.output) or node.op_type
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        node.name = name
        taken.add(name)
    return len(unnamed)
