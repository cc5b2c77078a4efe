"""Comparing two ONNX files: are they the same computation, and if not, what was done to the one to get the other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from hieronnx.attribute.carried import carry_scopes, read_scopes
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, load_ir_model, open_model
from hieronnx.graph.values import Interner
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.match.align.alignment import Alignment, Preference
from hieronnx.match.align.numbering import Side
from hieronnx.match.align.places import find_places
from hieronnx.match.align.signatures import make_side
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.differences import find_differences
from hieronnx.tools.compare.result import CompareResult, NodeChange
from hieronnx.tools.compare.weights import measure_weights
from hieronnx.tools.fold.unfolding import unfold_opened

_Key: TypeAlias = tuple[str, str]
_Source: TypeAlias = tuple[View, Hierarchy | None]

# Each gives an alignment, and the smallest edit is the answer; among equally small ones names are the better guide.
_PREFERENCES = (
    Preference(),
    Preference(from_below=True),
    Preference(initializer_names=True),
    Preference(initializer_names=True, output_names=True),
)


@reads_files
def compare(a: ModelLike, b: ModelLike, *, names: bool = False, values: bool = False) -> CompareResult:
    """Compare two ONNX models.

    What counts: operators and their versions, attributes, how nodes are connected, inputs and outputs with their
    types, shapes and dynamic axes, types and shapes of initializers; bodies and functions too. The order of
    independent nodes does not count, and an attribute that is left out is its default.

    Args:
        a: The first model: a path, a ModelProto or an ir.Model.
        b: The second.
        names: Whether the names of nodes, tensors and dynamic axes count.
        values: Whether the contents of initializers count; only then are weights read. The result says by how much
            they differ, for each (`values[].amount`) and by module (`weights`).

    Raises:
        HieronnxError: If a file cannot be read.

    Example:
        >>> hieronnx.compare("model.onnx", "optimized.onnx").describe()
        'different: 24 nodes removed, 12 nodes added; 70 nodes the same'
    """
    opened_a, opened_b = unfold_opened(open_model(a)), unfold_opened(open_model(b))
    interner = Interner()
    side_a = _open_side(a, opened_a, interner, values)
    side_b = _open_side(b, opened_b, interner, values)
    best: tuple[CompareResult, Wiring] | None = None
    a_tree, b_tree = opened_a.hierarchy, opened_b.hierarchy
    places = None if a_tree is None or b_tree is None else find_places(side_a.view, a_tree, side_b.view, b_tree)
    # Whether two files are the same does not depend on what is said of their nodes.
    alike = Counter(side_a.signatures) == Counter(side_b.signatures)
    ways = product((None, places) if alike and places is not None else (places,), _PREFERENCES)
    no_names = set(side_a.view.names).isdisjoint(filter(None, side_b.view.names))
    for where, preference in ways:
        if no_names and preference.initializer_names:
            continue
        wiring = Wiring(Alignment(side_a, side_b, preference, where).run())
        result = find_differences(wiring, opened_a, opened_b, names=names, values=values)
        if best is None or result.size <= best[0].size:
            best = result, wiring
        if not result.size:
            break
    assert best is not None
    by_a, by_b = (None if tree is None else tree.strategy for tree in (opened_a.hierarchy, opened_b.hierarchy))
    result = measure_weights(_locate_changes(*best, a_tree, b_tree), best[1], a_tree, b_tree)
    return replace(result, strategies=(by_a, by_b))


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
        call, told, tag = calls[node.graph, node.output]
        return replace(change, scope=call.scope, tag=tag, origins=call.origins, calls=told)

    return replace(result, nodes=tuple(map(locate, result.nodes)))


def _find_calls(
    keys: Set[_Key], own: _Source, other: _Source, tensors: Mapping[int, int]
) -> dict[_Key, tuple[Attribution, tuple[CallId, ...], str]]:
    """Find the calls of nodes, the calls to tell of them at, and the tag of these.

    They are found in the nodes' own hierarchy, or carried over from the other file, with the tensors that were aligned
    as fixed points. Where a node's own call is only a fallback to the root, the other file may tell more.
    """
    calls: dict[_Key, tuple[Attribution, tuple[CallId, ...], str]] = {}
    for view, hierarchy in (own, other):
        if hierarchy is None or calls.keys() >= keys:
            continue
        attributions = read_scopes(view, hierarchy)
        if view is not own[0]:
            attributions = carry_scopes(view, attributions, own[0], hierarchy.tree, tensors).nodes
        for index, attribution in enumerate(attributions):
            key = own[0].node_key(index)
            if attribution is not None and key in keys and key not in calls:
                told = _find_common_calls(hierarchy, attribution)
                calls[key] = attribution, told, hierarchy.tag_of(told[0])
    return calls


def _find_common_calls(hierarchy: Hierarchy, attribution: Attribution) -> tuple[CallId, ...]:
    """Find the calls of the lowest module that all origins of a node ran in; mostly that is its scope alone."""
    origins = attribution.origins
    if len(origins) < 2 or attribution.scope in origins:
        return (attribution.scope,)
    ways = [list(hierarchy.tree.ancestors(origin)) for origin in origins]
    common = set.intersection(*({call.module for call in way} for way in ways))
    lowest = [next(call for call in way if call.module in common) for way in ways]
    one_module = len({call.module for call in lowest}) == 1
    return tuple(dict.fromkeys(lowest)) if one_module else (attribution.scope,)
