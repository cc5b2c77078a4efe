"""The rules for nodes that the exporter left without a scope, each named and with its own evidence.

consumers   the node serves those who read it: the lowest call above them all
producers   nobody with a scope reads it: the lowest call above those that feed it
enclosing   neither says anything, and it is in a control-flow body: the scope of the node that has the body
root        nothing is known; an honest fallback that never counts as covered
"""

from __future__ import annotations

from collections.abc import Sequence

from hieronnx.carry import Attribution, CallTree
from hieronnx.graph import NO_TENSOR, View
from hieronnx.hierarchy import ROOT, CallId

__all__ = ["fill_gaps"]


def fill_gaps(view: View, scopes: Sequence[Attribution | None], tree: CallTree) -> list[Attribution]:
    """Return the attributions with every gap filled by the first rule that applies."""
    filled = list(scopes)
    consumers = view.consumers()
    for index in reversed(range(len(filled))):
        if filled[index] is None:
            outputs = [t for t in view.nodes[index].outputs if t != NO_TENSOR]
            readers = [filled[reader] for tensor in outputs for reader in consumers[tensor]]
            filled[index] = _join([found for found in readers if found], tree, "consumers")
    for index, found in enumerate(filled):
        if found is None:
            producers = [view.producers[t] for t in view.reads(index)]
            feeding = [filled[p] for p in producers if p is not None]
            filled[index] = _join([found for found in feeding if found], tree, "producers")
    return [_fill_last(view, index, filled) for index in range(len(filled))]


def _join(found: Sequence[Attribution], tree: CallTree, rule: str) -> Attribution | None:
    if not found:
        return None
    scope = tree.lowest_above(item.scope for item in found)
    return Attribution(scope, (scope,), "dataflow", rule)


def _fill_last(view: View, index: int, filled: list[Attribution | None]) -> Attribution:
    found = filled[index]
    if found is None:
        owner = view.graphs[view.nodes[index].graph].owner
        around = _fill_last(view, owner, filled) if owner is not None else None
        found = _enclosed(around.scope) if around is not None else Attribution(ROOT, (ROOT,), "root", "root")
        filled[index] = found
    return found


def _enclosed(scope: CallId) -> Attribution:
    return Attribution(scope, (scope,), "dataflow", "enclosing")
