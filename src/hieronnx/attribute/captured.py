"""The strategy `captured`: what the exporter itself recorded, call by call, carried through its optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import nn

from hieronnx.attribute.carried import Folded
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.capture.captured import Captured, Embedding
from hieronnx.capture.modules import describe_modules, parameter_names
from hieronnx.capture.passing import Places
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
from hieronnx.hierarchy.records import BoundTensor, Call, Initializer
from hieronnx.hierarchy.tags import TagPolicy, build_calls


def attribute_captured(captured: Captured, model: nn.Module, policy: TagPolicy) -> Hierarchy:
    """Build the hierarchy of an export from what its route captured."""
    modules = describe_modules(model)
    classes = {path: module.qualified_class for path, module in modules.items()}
    tree = CallTree({site.id: site.parent for site in captured.sites})
    parameters = parameter_names(model)
    filled = fill_gaps(captured.view, captured.carried.nodes, tree, parameters)
    return Hierarchy(
        modules=modules,
        calls=tuple(_add_passed(captured, call) for call in build_calls(captured.sites, classes, policy)),
        nodes=make_nodes(captured.view, filled),
        initializers=tuple(_make_initializers(captured, parameters)),
    )


def _add_passed(captured: Captured, call: Call) -> Call:
    """Add to a call what it received and returned."""
    exchange = captured.passed.get(call.id)
    if exchange is None:
        return call
    view = captured.view
    return replace(
        call, received=_name_tensors(view, exchange.received), returned=_name_tensors(view, exchange.returned)
    )


def _name_tensors(view: View, places: Places | None) -> tuple[BoundTensor, ...] | None:
    if places is None:
        return None
    return tuple(
        BoundTensor(name, None) if tensor is None else _name_tensor(view, name, tensor) for name, tensor in places
    )


def _name_tensor(view: View, name: str, tensor: int) -> BoundTensor:
    return BoundTensor(name, view.names[tensor], view.graphs[view.tensor_graphs[tensor]].key)


def _make_initializers(captured: Captured, parameters: Mapping[str, str]) -> Iterable[Initializer]:
    view = captured.view
    for tensor in view.constants:
        name = view.names[tensor]
        folded = captured.carried.initializers.get(tensor, Folded((), ()))
        held = [parameters[source] for source in (name, *folded.sources) if source in parameters]
        yield Initializer(name, held[0] if len(set(held)) == 1 else None, folded.origins)


def embed(hierarchy: Hierarchy) -> Embedding:
    """Return the hierarchy as metadata for the nodes and the model, torch's own form of a namespace included."""
    return Embedding(embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
