"""The strategy `captured`: what the exporter itself recorded, call by call, carried through its optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from hieronnx._embedded import embed_in_nodes, embedded_model_metadata
from hieronnx.attribute.fill import fill_gaps
from hieronnx.capture.captured import Captured, Embedding
from hieronnx.capture.modules import describe_modules, parameter_names
from hieronnx.carry import Folded
from hieronnx.graph import View
from hieronnx.hierarchy import Attribution, CallTree, Hierarchy, Initializer, Node
from hieronnx.tags import TagPolicy, build_calls

__all__ = ["attribute_captured", "embed"]


def attribute_captured(captured: Captured, model: nn.Module, policy: TagPolicy) -> Hierarchy:
    """Build the hierarchy of an export from what its route captured."""
    modules = describe_modules(model)
    classes = {path: module.qualified_class for path, module in modules.items()}
    tree = CallTree({site.id: site.parent for site in captured.sites})
    parameters = parameter_names(model)
    filled = fill_gaps(captured.view, captured.carried.nodes, tree, parameters)
    return Hierarchy(
        modules=modules,
        calls=build_calls(captured.sites, classes, policy),
        nodes=tuple(_make_node(captured.view, index, filled[index]) for index in captured.view.file_order()),
        initializers=tuple(_make_initializers(captured, parameters)),
    )


def _make_node(view: View, index: int, attribution: Attribution) -> Node:
    node = view.nodes[index]
    graph, output = view.node_key(index)
    domain, _, op_type = node.op.rpartition("::")
    return Node(
        graph=graph,
        name=node.name,
        op_type=op_type,
        domain=domain,
        output=output,
        scope=attribution.scope,
        origins=attribution.origins,
        evidence=attribution.evidence,
        rule=attribution.rule,
    )


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
