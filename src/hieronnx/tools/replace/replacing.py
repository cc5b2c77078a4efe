"""Replace: a part in the place of a module call, or of several calls of one shape."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import onnx

from hieronnx.errors import HieronnxError
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, open_model
from hieronnx.files.weights import Weight, find_inner_weights
from hieronnx.files.writing import ModelPieces, assemble, check_output, list_own_files, write
from hieronnx.graph.building import view_model
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import first_name
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.extract.find import Part, explain_no_nodes
from hieronnx.tools.replace.attributions import describe
from hieronnx.tools.replace.interface import match_interface
from hieronnx.tools.replace.opsets import bring_together
from hieronnx.tools.replace.result import ReplaceResult
from hieronnx.tools.replace.work import Work


@reads_files
def replace(
    model: ModelLike, target: str, part: ModelLike, *, output: str | os.PathLike[str] | None = None
) -> ReplaceResult:
    """Replace a module call by a part: an optimized, quantized, distilled or corrected form of what `extract` gives.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        target: The call, as `extract` takes it. Where it names several, each is replaced, and keeps its own weights
            where the part has the same parameters.
        part: What goes in its place. Its inputs and outputs are those of the call: by name, argument, or position.
        output: Where to write the new model; its sidecar goes beside it. None: the result holds it.

    Raises:
        HieronnxError: If there is no such call, the part does not fit, or a file is missing or in the way. Nothing is
            written then.

    Example:
        >>> hieronnx.extract("model.onnx", "encoder.layer.3", output="layer.onnx")
        >>> hieronnx.optimize("layer.onnx", output="fast.onnx", tool="ort-extended")
        >>> hieronnx.replace("model.onnx", "encoder.layer.3", "fast.onnx", output="out.onnx")
    """
    extractor = Extractor(model)
    source = extractor.source
    calls = extractor.hierarchy.find_calls(target)
    replaced = [_find_replaced(extractor, call) for call in calls]
    given = open_model(part)
    _check_closed(given)
    opened = bring_together(given, source.opened.model.opset_imports)
    files = extractor.files | list_own_files(part)
    if output is not None:
        check_output(Path(output), files)
    interfaces = [match_interface(source, extractor.types, old, opened) for old in replaced]
    work = Work(extractor, replaced, opened, interfaces)
    work.choose_weights()
    work.graft()
    structure = work.build()
    hierarchy = describe(work, structure)
    weights = [*work.kept_weights(), *work.new_weights]
    inner = _find_inner(structure, source.opened, opened)
    pieces = ModelPieces(structure, weights, inner, frozenset(files))
    if output is None:
        return _report(work, hierarchy, assemble(pieces, hierarchy))
    described = write(pieces, hierarchy, output, exporter=extractor.hierarchy.model.get("exporter", ""))
    return _report(work, described, Path(output))


def _check_closed(part: OpenedModel) -> None:
    """Refuse a part that reads what it does not have: the model may have a tensor of that name."""
    view = view_model(part.model)
    known = {*view.constants, *(t for graph in view.graphs for t in graph.inputs)}
    for tensor in view.graphs[0].outputs:
        if tensor not in known and view.producers[tensor] is None:
            raise HieronnxError(
                f"the part's output '{view.names[tensor]}' is made by none of its nodes; write the part so that "
                "onnx.checker passes it"
            )
    for index, node in enumerate(view.nodes):
        for tensor in node.reads:
            made = view.producers[tensor]
            if tensor not in known and (made is None or made >= index):
                named = f"{node.op} '{node.name or view.node_key(index)[1]}'"
                raise HieronnxError(
                    f"the part's {named} reads '{view.names[tensor]}', which is none of its inputs, and nothing before "
                    "it makes; write the part so that onnx.checker passes it"
                )


def _find_replaced(extractor: Extractor, call: Call) -> Part:
    """Find the part that a call is now.

    Raises:
        HieronnxError: If the file has no nodes of it, or they are in a body.
    """
    part = extractor.find(call.id)
    if part is None:
        raise HieronnxError(explain_no_nodes(extractor.hierarchy, call.id).replace("; extract ", "; replace "))
    if part.graphs != {0}:
        raise HieronnxError(
            f"call '{call.id}' runs inside the body of a control-flow node, where nothing can be put in; replace the "
            "call that has that node"
        )
    return part


def _find_inner(structure: onnx.ModelProto, *models: OpenedModel) -> list[tuple[onnx.TensorProto, Weight]]:
    """Find the external data inside nodes, whichever model they are from."""
    found: dict[int, tuple[onnx.TensorProto, Weight]] = {}
    for opened in models:
        try:
            found |= {id(tensor): (tensor, weight) for tensor, weight in find_inner_weights(opened, structure)}
        except KeyError:  # a node of the other model
            continue
    return list(found.values())


def _report(work: Work, hierarchy: Hierarchy, model: onnx.ModelProto | Path) -> ReplaceResult:
    """Return the record of what was done."""
    names, changes = work.source.view.names, work.changes
    added = {n for item in changes for _, node in item.grafted.nodes for n in node.output}
    dead = [index for index in work.source.view.nodes_in[0] if index not in work.alive]
    pairs = [(old, new) for item in changes for old, new in item.grafted.tensors.items()]
    inner = {v.name for node in work.part.model.graph for v in node.outputs}
    return ReplaceResult(
        targets=tuple(item.old.call for item in changes),
        inputs=_group((name, names[t]) for item in changes for name, t in item.interface.inputs.items()),
        outputs=_group((name, names[t]) for item in changes for t, name in item.interface.outputs.items()),
        removed=tuple(work.source.attributions[index] for index in dead),
        added=tuple(node for node in hierarchy.nodes if not node.graph and node.output in added),
        merged=tuple(dict.fromkeys(first_name(work.nodes[n].output) for i in changes for n in i.grafted.merged)),
        removed_weights=tuple(work.removed_weights()),
        added_weights=tuple(weight.header.name for weight in work.new_weights),
        kept_weights=tuple(dict.fromkeys(work.own_weights)),
        renamed=_group((old, new) for old, new in pairs if old != new and old in inner and new in added),
        notes=tuple(work.notes),
        hierarchy=hierarchy,
        model=model,
    )


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for key, value in pairs:
        groups[key] = (*groups.get(key, ()), value)
    return groups
