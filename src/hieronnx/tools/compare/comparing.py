"""Comparing two ONNX files: are they the same computation, and if not, what was done to the one to get the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TypeAlias

from hieronnx.attribute.carried import carry_scopes, read_scopes
from hieronnx.files.opening import OpenedModel, load_ir_model, open_model
from hieronnx.graph.values import Interner
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Attribution
from hieronnx.match.align.alignment import Alignment, Preference
from hieronnx.match.align.numbering import Side
from hieronnx.match.align.signatures import make_side
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.differences import find_differences
from hieronnx.tools.compare.result import CompareResult, NodeChange

_Key: TypeAlias = tuple[str, str]
_Source: TypeAlias = tuple[View, Hierarchy | None]

# Each gives an alignment, and the smallest edit is the answer; among equally small ones names are the better guide.
_PREFERENCES = (
    Preference(),
    Preference(from_below=True),
    Preference(initializer_names=True),
    Preference(initializer_names=True, output_names=True),
)


def compare(a: ModelLike, b: ModelLike, *, names: bool = False, values: bool = False) -> CompareResult:
    """Compare two ONNX models.

    What counts: operators and their versions, attributes, how nodes are connected, inputs and outputs with their
    types, shapes and dynamic axes, types and shapes of initializers; bodies and functions too. The order of
    independent nodes does not count, and an attribute that is left out is its default.

    Args:
        a: The first model: a path, a ModelProto or an ir.Model.
        b: The second.
        names: Whether the names of nodes, tensors and dynamic axes count.
        values: Whether the contents of initializers count; only then are weights read.

    Raises:
        HieronnxError: If a file cannot be read.

    Example:
        >>> hieronnx.compare("model.onnx", "optimized.onnx").describe()
        'different: 24 nodes removed, 12 nodes added; 70 nodes the same'
    """
    opened_a, opened_b = open_model(a), open_model(b)
    interner = Interner()
    side_a = _open_side(a, opened_a, interner, values)
    side_b = _open_side(b, opened_b, interner, values)
    best: tuple[CompareResult, Wiring] | None = None
    no_names = set(side_a.view.names).isdisjoint(filter(None, side_b.view.names))
    for preference in _PREFERENCES:
        if no_names and preference.initializer_names:
            break
        wiring = Wiring(Alignment(side_a, side_b, preference).run())
        result = find_differences(wiring, opened_a, opened_b, names=names, values=values)
        if best is None or result.size <= best[0].size:
            best = result, wiring
        if not result.size:
            break
    assert best is not None
    hierarchies = opened_a.hierarchy, opened_b.hierarchy
    by_a, by_b = (None if hierarchy is None else hierarchy.strategy for hierarchy in hierarchies)
    return replace(_locate_changes(*best, *hierarchies), strategies=(by_a, by_b))


def _open_side(model: ModelLike, opened: OpenedModel, interner: Interner, values: bool) -> Side:
    with_weights = values and isinstance(model, str | os.PathLike)
    return make_side(load_ir_model(model) if with_weights else opened.model, interner, values=values)


# -- in the module hierarchy ------------------------------------------------------------------------------


def _locate_changes(result: CompareResult, wiring: Wiring, a: Hierarchy | None, b: Hierarchy | None) -> CompareResult:
    """Return the comparison with the call of each changed node, also where only one of the files has a hierarchy."""
    in_a = {(change.before.graph, change.before.output) for change in result.nodes if change.before is not None}
    in_b = {(change.node.graph, change.node.output) for change in result.nodes if change.before is None}
    calls_a = _find_calls(in_a, (wiring.a.view, a), (wiring.b.view, b), wiring.tensor_in_b)
    calls_b = _find_calls(in_b, (wiring.b.view, b), (wiring.a.view, a), wiring.tensor_in_a)

    def locate(change: NodeChange) -> NodeChange:
        calls, node = (calls_a, change.before) if change.before is not None else (calls_b, change.node)
        if (node.graph, node.output) not in calls:
            return change
        call, tag = calls[node.graph, node.output]
        return replace(change, scope=call.scope, tag=tag, origins=call.origins)

    return replace(result, nodes=tuple(map(locate, result.nodes)))


def _find_calls(
    keys: Set[_Key], own: _Source, other: _Source, tensors: Mapping[int, int]
) -> dict[_Key, tuple[Attribution, str]]:
    """Find the calls of nodes, and their tags: in their own hierarchy, or carried over from the other file.

    The tensors that were aligned are the fixed points of carry. Where a node's own call is only a fallback to the root,
    the other file may tell more.
    """
    calls: dict[_Key, tuple[Attribution, str]] = {}
    for view, hierarchy in (own, other):
        if hierarchy is None or calls.keys() >= keys:
            continue
        attributions = read_scopes(view, hierarchy)
        if view is not own[0]:
            attributions = carry_scopes(view, attributions, own[0], hierarchy.tree, tensors).nodes
        for index, attribution in enumerate(attributions):
            key = own[0].node_key(index)
            if attribution is not None and key in keys and key not in calls:
                calls[key] = attribution, hierarchy.tag_of(attribution.scope)
    return calls
