"""Unfold: functions written out, each node with the name, the place and the scope that it had before folding."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, list_some
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, deserialize, load, open_model, open_structure, require_hierarchy
from hieronnx.files.weights import find_inner_weights, find_weights
from hieronnx.files.wire import locate_initializers
from hieronnx.files.writing import ModelPieces, assemble, check_output, list_own_files, write
from hieronnx.graph.operators import name_domain
from hieronnx.graph.soundness import find_faults
from hieronnx.graph.versions import find_other_versions, find_versions
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import function_key, walk_bodies, walk_protos
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import BoundTensor, Call
from hieronnx.tools.extract.model import find_names
from hieronnx.tools.fold.expanding import Expanded, Expander, Frame, strip_scopes
from hieronnx.tools.fold.function_names import STRATEGY, read_function_names
from hieronnx.tools.fold.record import RECORD_KEY, FoldRecord, decode_record
from hieronnx.tools.fold.result import UnfoldResult, count_nodes
from hieronnx.tools.fold.sparse import copy_sparse
from hieronnx.tools.fold.types import UnfoldedTypes

FOLDED_NOTE = "the file is folded: the nodes of its functions count in every call"
"""What is said of a folded file where it is seen as the flat one that it stands for."""


@reads_files
def unfold(model: ModelLike, *, output: str | os.PathLike[str] | None = None) -> UnfoldResult:
    """Write out the functions of a model: of one that `fold` made, with all names, scopes and the order as they were.

    Of any other model all functions are written out whose operators the model has in the same version; where it has no
    hierarchy, it gets one from their names, evidence `name`. No weight is read.

    Args:
        model: The model: a file, a ModelProto or an ir.Model.
        output: Where to write the new model; its sidecar goes beside it. None: the result holds it.

    Raises:
        HieronnxError: If the model has no functions and no hierarchy, or a file is missing or in the way. Nothing is
            written then.

    Example:
        >>> hieronnx.unfold("folded.onnx", output="flat.onnx")
        UnfoldResult(15 functions, 97 nodes to 430)
    """
    opened = open_model(model)
    record = _read_record(opened)
    files = list_own_files(opened.path or opened.model)
    if output is not None:
        check_output(Path(output), files)
    if not opened.model.functions:
        require_hierarchy(opened.hierarchy, opened.path, opened.model)
    structure = ir.serde.serialize_model(opened.model)
    copy_sparse(model, opened.name, structure)
    before = count_nodes(structure)
    hierarchy = opened.hierarchy or read_function_names(structure)
    expander, flat, notes = _write_out(structure, hierarchy, record, opened.name)
    located = {} if opened.path is None else locate_initializers(opened.path)
    weights = find_weights(opened, opened.model.graph.initializers.values(), located, {})
    pieces = ModelPieces(structure, weights, find_inner_weights(opened, structure), frozenset(files))
    exact = not expander.uses or (record is not None and not expander.inexact)
    about = (expander.uses, before, count_nodes(structure), exact, notes)
    if output is None:
        return UnfoldResult(*about, flat, assemble(pieces, flat))
    described = write(pieces, flat, output, exporter=hierarchy.model.get("exporter", ""))
    return UnfoldResult(*about, described, Path(output))


def unfold_file(path: Path, output: Path) -> Path:
    """Return the file of a model without the functions that folding made: its own, or what it is unfolded to."""
    if RECORD_KEY not in open_structure(path).model.metadata_props:
        return path
    unfold(path, output=output)
    return output


@contextmanager
def open_flat(model: ModelLike) -> Iterator[OpenedModel]:
    """Open a model to run it with the tensors of every call in sight: a folded one as it was before folding.

    Raises:
        HieronnxError: If it cannot be read.
    """
    opened = open_model(model)
    if RECORD_KEY not in opened.model.metadata_props:
        yield opened
        return
    with tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        unfold(model, output=Path(folder) / "flat.onnx")
        yield replace(open_model(Path(folder) / "flat.onnx"), name=opened.name)


def unfold_opened(opened: OpenedModel) -> OpenedModel:
    """Return a folded model as it was before folding, in memory; any other as it is.

    Raises:
        HieronnxError: If its record cannot be read.
    """
    record = _read_record(opened)
    if record is None or opened.hierarchy is None:
        return opened
    structure = ir.serde.serialize_model(opened.model)
    initializers = list(structure.graph.initializer)
    _, flat, _ = _write_out(structure, opened.hierarchy, record, opened.name)
    structure.graph.initializer.extend(initializers)
    # About the file nothing changed.
    return replace(
        opened, model=deserialize(structure, f"'{opened.name}'"), hierarchy=replace(flat, model=opened.hierarchy.model)
    )


def load_flat(path: Path) -> tuple[Hierarchy, bool]:
    """Read the hierarchy of a file, of a folded one as it was before folding; say whether it is one.

    Raises:
        HieronnxError: If there is no such file, it has no hierarchy, or its record cannot be read.
    """
    hierarchy = load(path)
    if not any("::" in node.graph for node in hierarchy.nodes):  # no function has a node
        return hierarchy, False
    opened = open_model(path)
    flat = unfold_opened(opened)
    return flat.hierarchy or hierarchy, flat is not opened


def _write_out(
    structure: onnx.ModelProto, hierarchy: Hierarchy, record: FoldRecord | None, name: str
) -> tuple[Expander, Hierarchy, tuple[str, ...]]:
    """Write out the functions of a model, in place; return how, its hierarchy then, and notes.

    Raises:
        HieronnxError: If no sound model comes of it.
    """
    parts = _part_functions(structure, record)
    by_name = hierarchy.strategy == STRATEGY
    relative = {*parts.written_out} if by_name else set() if record is None else set(record.functions)
    expander = Expander(hierarchy, parts.written_out.values(), record, relative, _list_names(structure))
    expanded = list(expander.expand(structure.graph.node, Frame("", "")))
    if record is not None and not expander.inexact:
        expanded = _put_in_order(expanded, record.order)
    inner = [node for node in hierarchy.nodes if any(_is_inside(node.graph, key) for key in parts.kept)]
    if by_name:  # it is not known which call a node of a function that stays is of
        inner = [replace(node, evidence="root") for node in inner]
    _rebuild(structure, [item.node for item in expanded], parts, record, expander.types)
    fault = next(find_faults(structure), None)
    if fault is not None:  # a record that someone else wrote may say anything
        raise HieronnxError(f"'{name}' cannot be unfolded: {fault.place}: {fault.message}; fold the model again")
    flat = replace(
        hierarchy,
        nodes=(*(node for item in expanded for node in item.attributions), *inner),
        calls=tuple(_rebind(hierarchy, expander, structure, None if expander.inexact else record)),
        model={},
    )
    return expander, flat, tuple(_explain(expander, record, parts.reasons))


def _list_names(structure: onnx.ModelProto) -> set[str]:
    made = {name for _, graph in walk_protos(structure) for node in graph.node for name in node.output}
    return made | find_names(structure)


def _read_record(opened: OpenedModel) -> FoldRecord | None:
    """Read what folding wrote down; None where the model was not folded.

    Raises:
        HieronnxError: If it cannot be read.
    """
    text = opened.model.metadata_props.get(RECORD_KEY)
    try:
        return None if text is None else decode_record(text)
    except ValueError as error:
        raise HieronnxError(
            f"'{opened.name}' was folded, and its record of that cannot be read: {error}; fold the model again"
        ) from error


@dataclass(frozen=True, slots=True)
class _Parts:
    """The functions of a model, by their keys.

    Attributes:
        written_out: those that are.
        kept: those that stay: what was there before folding, and what cannot be written out.
        reasons: why the latter cannot.
        versions: of the operator sets that the model has then.
    """

    written_out: dict[str, onnx.FunctionProto]
    kept: dict[str, onnx.FunctionProto]
    reasons: dict[str, str]
    versions: dict[str, int]


def _part_functions(structure: onnx.ModelProto, record: FoldRecord | None) -> _Parts:
    functions = {function_key(f.domain, f.name, f.overload): f for f in structure.functions}
    asked = {key: f for key, f in functions.items() if record is None or key in record.functions}
    versions = find_versions(structure, asked.values())
    reasons = find_other_versions(asked, versions)
    written_out = {key: f for key, f in asked.items() if key not in reasons}
    kept = {key: f for key, f in functions.items() if key not in written_out}
    return _Parts(written_out, kept, reasons, versions)


def _is_inside(graph: str, function: str) -> bool:
    return graph == function or graph.startswith(f"{function}/")


def _put_in_order(expanded: Sequence[Expanded], runs: Sequence[tuple[int, int]]) -> list[Expanded]:
    """Return nodes in the order that they had; as they are where there are others than there were."""
    if any(length < 1 for _, length in runs) or sum(length for _, length in runs) != len(expanded):
        return list(expanded)
    places = [place for first, length in runs for place in range(first, first + length)]
    if sorted(places) != list(range(len(expanded))):
        return list(expanded)
    return [item for _, item in sorted(zip(places, expanded, strict=True), key=lambda pair: pair[0])]


def _rebuild(
    structure: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    parts: _Parts,
    record: FoldRecord | None,
    types: UnfoldedTypes,
) -> None:
    """Put nodes in the place of those of a model, and take out of it what only functions needed."""
    functions = [onnx.FunctionProto.FromString(item.SerializeToString()) for item in parts.kept.values()]
    for node in (node for function in functions for _, graph in walk_bodies(function) for node in graph.node):
        strip_scopes(node)
    del structure.functions[:], structure.graph.node[:]
    structure.functions.extend(functions)
    structure.graph.node.extend(nodes)
    types.put_into(structure.graph, "")
    del structure.graph.initializer[:]
    _rebuild_imports(structure, set() if record is None else set(record.domains), parts.versions)
    if record is not None:
        structure.ir_version = record.ir_version or structure.ir_version
        made = {name for node in nodes for name in node.output}
        annotations = map(onnx.TensorAnnotation.FromString, record.annotations)
        structure.graph.quantization_annotation.extend(item for item in annotations if item.tensor_name in made)
    others = [entry for entry in structure.metadata_props if entry.key != RECORD_KEY]
    del structure.metadata_props[:]
    structure.metadata_props.extend(others)


def _rebuild_imports(structure: onnx.ModelProto, folded: Collection[str], versions: Mapping[str, int]) -> None:
    """Make a model import the operator sets that its nodes need, and no more those that only folding needed."""
    used = {name_domain(node.domain) for _, graph in walk_protos(structure) for node in graph.node}
    entries = [item for item in structure.opset_import if item.domain not in folded or item.domain in used]
    known = {name_domain(item.domain) for item in entries}
    entries += (
        onnx.OperatorSetIdProto(domain=domain, version=versions[domain])
        for domain in sorted(used - known)
        if domain in versions
    )
    del structure.opset_import[:]
    structure.opset_import.extend(entries)


def _rebind(
    hierarchy: Hierarchy, expander: Expander, structure: onnx.ModelProto, record: FoldRecord | None
) -> Iterator[Call]:
    """Yield the calls with what they received and returned under the names that it has now."""
    frames, graphs = expander.frames, dict[str, str]()
    for key, graph in walk_protos(structure):
        own = graph.input if isinstance(graph, onnx.FunctionProto) else [info.name for info in graph.input]
        for name in (*own, *(name for node in graph.node for name in node.output)):
            graphs.setdefault(name, key)
    deeper = {} if record is None else {(call, which, at): place for call, which, at, *place in record.bound}
    for call in hierarchy.calls:
        around = (frames[c] for c in hierarchy.tree.ancestors(call.id) if c != call.id and c in frames)
        frame, bound = next(around, None), []
        for which, items in enumerate((call.received, call.returned)):
            places = [deeper.get((str(call.id), which, at)) for at in range(len(items or ()))]
            bound.append(
                None
                if items is None
                else tuple(
                    _bind(item, frame, graphs) if place is None else replace(item, graph=place[0], tensor=place[1])
                    for item, place in zip(items, places, strict=True)
                )
            )
        yield replace(call, received=bound[0], returned=bound[1])


def _bind(item: BoundTensor, frame: Frame | None, graphs: Mapping[str, str]) -> BoundTensor:
    if frame is None or item.tensor is None or item.graph != frame.key:
        return item
    name = frame.names.get(item.tensor)
    return replace(item, tensor=name or None, graph=graphs.get(name or "", ""))


def _explain(expander: Expander, record: FoldRecord | None, reasons: Mapping[str, str]) -> Iterator[str]:
    yield from (f"function '{key}' stays as it is: {reason}" for key, reason in reasons.items())
    if expander.inexact and record is not None:
        calls = list_some([str(call) for call in expander.inexact], 3)
        yield f"something changed the folded file: the nodes of {calls} have new names, and the order may be another"
