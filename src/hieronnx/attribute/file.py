"""Attributing the nodes of a file that exists, from its model in PyTorch: by value, or by its parameters alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hieronnx.attribute.binding import add_tensors
from hieronnx.attribute.by_usage import attribute_usage_based
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.attribute.request import Projected, Request
from hieronnx.capture.modules import describe_modules, parameter_names
from hieronnx.errors import check_known
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy, add_consumers
from hieronnx.hierarchy.records import CallId, Initializer, Node
from hieronnx.hierarchy.tags import TagPolicy, build_calls

STRATEGIES = ("htp", "usage_based")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A node of which two kinds of evidence say different things.

    Attributes:
        node: The node, with the call that it was given.
        says: Each evidence and the call that it names; the first one won.
    """

    node: Node
    says: tuple[tuple[str, CallId], ...]


@dataclass(frozen=True, slots=True)
class AttributedFile:
    """The hierarchy of a file, the projection that it was made of, and where evidence disagrees."""

    hierarchy: Hierarchy
    projected: Projected
    contradictions: tuple[Disagreement, ...]


def attribute_file(request: Request, *, strategy: str, policy: TagPolicy) -> AttributedFile:
    """Attribute every node of a file by one of the strategies.

    Raises:
        HieronnxError: If the file or the model cannot be run, or weights cannot be read.
    """
    check_known("strategy", strategy, STRATEGIES)
    if strategy == "usage_based":
        projected = attribute_usage_based(request)
    else:
        from hieronnx.attribute.by_value.htp import attribute_htp  # it needs ONNX Runtime, which the other does not

        projected = attribute_htp(request)
    view, modules, parameters = request.view, describe_modules(request.model, policy), parameter_names(request.model)
    tree = CallTree({site.id: site.parent for site in projected.sites})
    calls = build_calls(projected.sites, {path: m.qualified_class for path, m in modules.items()}, policy)
    hierarchy = Hierarchy(
        modules=modules,
        calls=tuple(add_tensors(call, projected.passed.get(call.id), view) for call in calls),
        nodes=make_nodes(view, fill_gaps(view, projected.nodes, tree, parameters)),
        initializers=tuple(_make_initializers(projected, view, parameters)),
        policy=policy,
        strategy=strategy,
    )
    hierarchy = add_consumers(hierarchy, view.find_readers())
    nodes = hierarchy.node_by_key
    contradictions = (Disagreement(nodes[view.node_key(node)], says) for node, says in projected.contradictions)
    return AttributedFile(hierarchy, projected, tuple(contradictions))


def _make_initializers(projected: Projected, view: View, parameters: Mapping[str, str]) -> Iterator[Initializer]:
    for tensor in view.constants:
        held = projected.initializers.get(tensor)
        # A part of a parameter, or several in one, is not the parameter.
        names = {parameters[name] for name in held.parameters} if held is not None and held.how != "fused" else set()
        yield Initializer(view.names[tensor], names.pop() if len(names) == 1 else None, ())
