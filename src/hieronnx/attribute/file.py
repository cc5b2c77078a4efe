"""Attributing the nodes of a file that exists, from its model in PyTorch: by value, or by its parameters alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hieronnx.attribute.by_usage import attribute_usage_based
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.attribute.projected import Projected
from hieronnx.capture.modules import describe_modules, parameter_names
from hieronnx.errors import check_known
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
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
    """The hierarchy of a file, and how far the file and the model agree.

    Attributes:
        hierarchy: The hierarchy.
        agreement: Of `htp`, the share of the file's telling tensors whose values the model computed too; of
            `usage_based`, the share of the file's weights that the model has.
        unmatched: The calls of which nothing is in the file.
        missing: Of `htp`, those of them that work on what the file gives, and of whose parameters it has none either.
        foreign: Of `htp`, how many weights of the file are not the model's, and lead to nothing that it computes.
        contradictions: The nodes of which two kinds of evidence say different things.
        input_sets: On how many sets of inputs file and model were compared; 0 where nothing was run.
    """

    hierarchy: Hierarchy
    agreement: float
    unmatched: tuple[CallId, ...]
    missing: tuple[CallId, ...]
    foreign: int
    contradictions: tuple[Disagreement, ...]
    input_sets: int


def attribute_file(
    opened: OpenedModel,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    strategy: str,
    policy: TagPolicy,
) -> AttributedFile:
    """Attribute every node of a file by one of the strategies.

    Raises:
        HieronnxError: If the file or the model cannot be run, or weights cannot be read.
    """
    check_known("strategy", strategy, STRATEGIES)
    view = view_model(opened.model)
    if strategy == "usage_based":
        projected = attribute_usage_based(opened, model, view=view)
    else:
        from hieronnx.attribute.by_value.htp import attribute_htp  # it needs ONNX Runtime, which the other does not

        projected = attribute_htp(opened, model, args, kwargs, view=view)
    hierarchy = _make_hierarchy(projected, view, model, policy)
    nodes = {(node.graph, node.output): node for node in hierarchy.nodes}
    return AttributedFile(
        hierarchy=hierarchy,
        agreement=projected.agreement,
        unmatched=projected.unmatched,
        missing=projected.missing,
        foreign=projected.foreign,
        contradictions=tuple(Disagreement(nodes[view.node_key(c.node)], c.says) for c in projected.contradictions),
        input_sets=projected.input_sets,
    )


def _make_hierarchy(projected: Projected, view: View, model: nn.Module, policy: TagPolicy) -> Hierarchy:
    modules = describe_modules(model)
    parameters = parameter_names(model)
    tree = CallTree({site.id: site.parent for site in projected.sites})
    filled = fill_gaps(view, projected.nodes, tree, parameters)
    return Hierarchy(
        modules=modules,
        calls=build_calls(projected.sites, {path: m.qualified_class for path, m in modules.items()}, policy),
        nodes=make_nodes(view, filled),
        initializers=tuple(_make_initializers(projected, view, parameters)),
    )


def _make_initializers(projected: Projected, view: View, parameters: Mapping[str, str]) -> Iterator[Initializer]:
    for tensor in view.constants:
        held = projected.initializers.get(tensor)
        # A part of a parameter, or several in one, is not the parameter.
        whole = held is not None and held.how != "fused"
        names = {parameters[name] for name in held.parameters} if held is not None and whole else set()
        yield Initializer(view.names[tensor], names.pop() if len(names) == 1 else None, ())
