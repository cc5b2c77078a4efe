"""Where in the module hierarchy a change is, also where only one of the two files has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from hieronnx.attribute.carried import carry_scopes
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.result import CompareResult, NodeChange

_Key: TypeAlias = tuple[str, str]
_Place: TypeAlias = tuple[CallId, str, tuple[CallId, ...]]


def place_changes(comparison: CompareResult, wiring: Wiring, a: Hierarchy | None, b: Hierarchy | None) -> CompareResult:
    """Return the comparison with the call of each changed node.

    A node of a file with a hierarchy has its own; to one without, or where its own is only a fallback, that of the
    other file is carried over.
    """
    if (a is None and b is None) or not comparison.nodes:
        return comparison
    own_a, own_b = _find_scopes(wiring.a.view, a), _find_scopes(wiring.b.view, b)
    from_a = _carry(wiring.a.view, own_a, wiring.b.view, wiring.mates_back, a)
    from_b = _carry(wiring.b.view, own_b, wiring.a.view, wiring.mates, b)
    before = {**_by_key(wiring.a.view, from_b, b), **_by_key(wiring.a.view, own_a, a)}
    after = {**_by_key(wiring.b.view, from_a, a), **_by_key(wiring.b.view, own_b, b)}
    return replace(comparison, nodes=tuple(_place(change, before, after) for change in comparison.nodes))


def _place(change: NodeChange, before: Mapping[_Key, _Place], after: Mapping[_Key, _Place]) -> NodeChange:
    scopes, node = (before, change.before) if change.before is not None else (after, change.after)
    assert node is not None
    place = scopes.get((node.graph, node.output))
    if place is None:
        return change
    scope, tag, origins = place
    return replace(change, scope=scope, tag=tag, origins=origins)


def _by_key(view: View, scopes: Mapping[int, Attribution], hierarchy: Hierarchy | None) -> dict[_Key, _Place]:
    """Return the call and the tag of each node, by its graph's key and its first output."""
    if hierarchy is None:
        return {}
    return {
        view.node_key(node): (found.scope, hierarchy.tag_of(found.scope), found.origins)
        for node, found in scopes.items()
    }


def _find_scopes(view: View, hierarchy: Hierarchy | None) -> Mapping[int, Attribution]:
    """Return what the hierarchy of a file knows of its nodes; where it has only a fallback, the other may know more."""
    if hierarchy is None:
        return {}
    known = {
        (node.graph, node.output): Attribution(node.scope, node.origins, node.evidence)
        for node in hierarchy.nodes
        if node.evidence != "root"
    }
    keys = ((index, view.node_key(index)) for index in range(len(view.nodes)))
    return {index: known[key] for index, key in keys if key in known}


def _rename_mates(known: View, other: View, mates: Mapping[int, int]) -> View:
    """Return the other view with the names of the known one where a tensor has a mate, and these nowhere else."""
    taken = {known.names[mate] for mate in mates.values()}
    names = [
        known.names[mates[tensor]] if tensor in mates else "" if name in taken else name
        for tensor, name in enumerate(other.names)
    ]
    return replace(other, names=names)


def _carry(
    known: View, scopes: Mapping[int, Attribution], other: View, mates: Mapping[int, int], hierarchy: Hierarchy | None
) -> Mapping[int, Attribution]:
    """Carry the scopes of one side over to the nodes of the other."""
    if hierarchy is None or not scopes:
        return {}
    attributions = [scopes.get(index) for index in range(len(known.nodes))]
    carried = carry_scopes(known, attributions, _rename_mates(known, other, mates), hierarchy.tree)
    return {index: found for index, found in enumerate(carried.nodes) if found is not None}
