"""Fold: module calls become calls of ONNX functions, one function for all that compute the same."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError, check_known
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_model
from hieronnx.files.weights import find_inner_weights, find_weights
from hieronnx.files.wire import read_skeleton
from hieronnx.files.writing import ModelPieces, assemble, check_output, list_own_files, write
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.source import prepare
from hieronnx.tools.fold.building import Folded, build
from hieronnx.tools.fold.classes import find_equals
from hieronnx.tools.fold.hierarchy import describe
from hieronnx.tools.fold.naming import name_functions
from hieronnx.tools.fold.record import RECORD_KEY, encode_record
from hieronnx.tools.fold.regions import plan_functions
from hieronnx.tools.fold.result import FoldedFunction, FoldResult, InlineCall, count_nodes
from hieronnx.tools.fold.scopes import RelativeScopes
from hieronnx.tools.fold.sparse import copy_sparse


@reads_files
def fold(
    model: ModelLike,
    *patterns: str,
    output: str | os.PathLike[str] | None = None,
    depth: int | None = None,
    classes: Iterable[str] = (),
    take_in: bool = False,
) -> FoldResult:
    """Make modules functions: one for all calls that compute the same, with weights as arguments.

    What is computed does not change, and `unfold` gives the graph back. A call whose nodes cannot be one node stays as
    it is and is listed, with the reason; no weight is read.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        *patterns: Which calls: tags, modules' paths, globs, or selections, each with all calls below; all by default.
        output: Where to write the folded model; its sidecar goes beside it. None: the result holds it.
        depth: How deep in the tree of calls the last functions are; 1: what the model itself calls.
        classes: Which classes of modules become functions; all by default.
        take_in: Whether a function may have nodes of other calls where data leaves its call and comes back.

    Raises:
        HieronnxError: If there is no such call or class, the model is folded already, or a file is missing or in the
            way. Nothing is written then.

    Example:
        >>> hieronnx.fold("bert.onnx", output="folded.onnx", classes=["BertLayer"])
        FoldResult(12 calls to 1 function, 430 nodes to 61, 0 inline)
    """
    opened = open_model(model)
    if RECORD_KEY in opened.model.metadata_props:
        raise HieronnxError(f"'{opened.name}' is folded already; unfold it first, or fold the file that it is made of")
    source = prepare(opened)
    wanted = _select(source.hierarchy, patterns, depth, classes)
    files = list_own_files(opened.path or opened.model)
    if output is not None:
        check_output(Path(output), files)
    plan = plan_functions(source, wanted, take_in=take_in)
    scopes = RelativeScopes(source.hierarchy.tree)
    folded = build(source, plan, name_functions(source, find_equals(source, plan, scopes)), scopes)
    copy_sparse(model, opened.name, folded.structure)
    hierarchy, record = describe(folded)
    if folded.functions:
        folded.structure.metadata_props.add(key=RECORD_KEY, value=encode_record(record))
    weights = find_weights(opened, opened.model.graph.initializers.values(), source.located, {})
    pieces = ModelPieces(folded.structure, weights, find_inner_weights(opened, folded.structure), frozenset(files))
    if output is None:
        return _report(folded, hierarchy, assemble(pieces, hierarchy))
    described = write(pieces, hierarchy, output, exporter=source.hierarchy.model.get("exporter", ""))
    return _report(folded, described, Path(output))


def _select(hierarchy: Hierarchy, patterns: Iterable[str], depth: int | None, classes: Iterable[str]) -> set[CallId]:
    """Select the calls that are to become functions.

    Raises:
        InputError: If nothing is selected by a pattern, a class is none of the model's, or the depth is none.
    """
    if depth is not None and depth < 1:
        raise InputError(f"a depth of {depth} leaves no call; 1 are those that the model itself makes")
    tree, modules = hierarchy.tree, hierarchy.modules
    chosen = {below for p in patterns for call in hierarchy.select_calls(p) for below in tree.below(call)}
    names = {modules[call.id.module].class_name for call in hierarchy.calls}
    names |= {modules[call.id.module].qualified_class for call in hierarchy.calls}
    kept = set(classes)
    for name in sorted(kept):
        check_known("class", name, names)

    def is_wanted(call: CallId) -> bool:
        module = modules[call.module]
        of_class = not kept or not kept.isdisjoint((module.class_name, module.qualified_class))
        return of_class and (depth is None or tree.depth(call) <= depth) and (not chosen or call in chosen)

    return {call.id for call in hierarchy.calls if call.parent is not None and is_wanted(call.id)}


def _report(folded: Folded, hierarchy: Hierarchy, model: onnx.ModelProto | Path) -> FoldResult:
    """Return the record of what was done."""
    source, protos = folded.source, folded.structure.functions
    calls = source.hierarchy.call_by_id
    return FoldResult(
        functions=tuple(
            FoldedFunction(
                item.domain,
                item.name,
                item.inputs,
                tuple(proto.output),
                tuple(proto.attribute),
                len(proto.node),
                tuple(instance.call for instance in item.equals.instances),
            )
            for item, proto in zip(folded.functions, protos, strict=False)
        ),
        inline=tuple(InlineCall(call, folded.plan.inline[call]) for call in calls if call in folded.plan.inline),
        taken_in=tuple(source.attributions[n] for nodes in folded.plan.taken_in.values() for n in nodes),
        nodes_before=len(source.view.nodes),
        nodes_after=count_nodes(folded.structure),
        bytes_before=_measure(source.opened.path or source.opened.model),
        bytes_after=_measure(model),
        hierarchy=hierarchy,
        model=model,
    )


def _measure(model: onnx.ModelProto | ir.Model | Path) -> int:
    """Return the size of a model without its initializers."""
    if isinstance(model, Path):
        model = read_skeleton(model)
    proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    return int(proto.ByteSize() - sum(tensor.ByteSize() for tensor in proto.graph.initializer))
