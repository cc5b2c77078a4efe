"""From the nodes whose calls are known to those between them, by dataflow alone.

Each node hears from those that feed it and from those that read it; one that knows nothing itself passes on what it
hears from its far side. The node goes to the deepest call that has more than half of all that it hears, and some from
each side: so a residual goes to the layer that it closes, and what lies between two siblings goes to their parent,
never to either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId

_ROUNDS = 3
"""How often what was found is passed on; more find little more."""


def propagate(
    view: View, known: Sequence[Attribution | None], parents: Mapping[CallId, CallId | None]
) -> list[Attribution]:
    """Return the attributions with every gap filled from its neighbours; with the root where they say nothing."""
    neighbours = _Neighbours(_find_feeders(view), _find_readers(view))
    constant = [all(view.flow.constant[t] for t in node.makes) for node in view.nodes]
    found = list(known)
    for _ in range(_ROUNDS):
        before = found.count(None)
        found = _fill_computed(view, found, neighbours, constant, parents)
        if found.count(None) == before:
            break
    _fill_constant(view, found, neighbours, constant, CallTree(parents))
    return [Attribution(ROOT, (ROOT,), "root", "root") if item is None else item for item in found]


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """For each node those that feed it and those that read it; None for what is around its graph."""

    feeders: Sequence[Sequence[int | None]]
    readers: Sequence[Sequence[int | None]]


def _fill_computed(
    view: View,
    known: Sequence[Attribution | None],
    neighbours: _Neighbours,
    constant: Sequence[bool],
    parents: Mapping[CallId, CallId | None],
) -> list[Attribution | None]:
    """Fill the nodes that compute with what the graph is given, once."""
    tree = CallTree(parents)
    scopes = [None if found is None else found.scope for found in known]
    around = _find_around(view, scopes)
    before = _pass_on(range(len(scopes)), scopes, around, neighbours.feeders, tree)
    after = _pass_on(range(len(scopes) - 1, -1, -1), scopes, around, neighbours.readers, tree)
    filled = list(known)
    for index, feeders in enumerate(neighbours.feeders):
        if filled[index] is None and not constant[index]:
            made = _hear(feeders, scopes, before, around[index])
            read = _hear(neighbours.readers[index], scopes, after, around[index])
            filled[index] = _choose(made, read, around[index], parents)
    return filled


def _fill_constant(
    view: View,
    found: list[Attribution | None],
    neighbours: _Neighbours,
    constant: Sequence[bool],
    tree: CallTree,
) -> None:
    """Give nodes that read constants and shapes alone to those that they serve: the lowest call above them all."""
    around = _find_around(view, [None if item is None else item.scope for item in found])
    for index in range(len(found) - 1, -1, -1):
        if found[index] is None and constant[index] and neighbours.readers[index]:
            served = [around[index] if n is None else found[n] for n in neighbours.readers[index]]
            calls = [item.scope if isinstance(item, Attribution) else item or ROOT for item in served]
            scope = tree.lowest_above(calls)
            if scope != ROOT:
                found[index] = Attribution(scope, (scope,), "dataflow", "consumers")


def _choose(
    made: Sequence[CallId], read: Sequence[CallId], around: CallId, parents: Mapping[CallId, CallId | None]
) -> Attribution | None:
    """Choose the deepest call with more than half of what was heard, and some of each side; None for the root."""
    sides = [set(_ancestors(side, parents)) for side in (made, read) if side]
    heard = Counter(_ancestors((*made, *read), parents))
    most = {call for call, votes in heard.items() if 2 * votes > len(made) + len(read)}.intersection(*sides)
    # Two calls that both have more than half are one above the other; the deeper one is the farther from the root.
    scope = max(most, key=lambda call: sum(1 for _ in _ancestors([call], parents)), default=ROOT)
    if scope in _ancestors([around], parents):  # what is in a body ran in the call of the node that has it
        scope = around
    if scope == ROOT:  # that it ran somewhere in the model is no news
        return None
    return Attribution(scope, (scope,), "dataflow", "between")


def _ancestors(calls: Iterable[CallId], parents: Mapping[CallId, CallId | None]) -> Iterator[CallId]:
    """Yield calls and all above them, each from itself up to the root."""
    for call in calls:
        above: CallId | None = call
        while above is not None:
            yield above
            above = parents[above]


def _hear(
    neighbours: Sequence[int | None], scopes: Sequence[CallId | None], beyond: Sequence[CallId | None], around: CallId
) -> list[CallId]:
    heard = (around if n is None else scopes[n] or beyond[n] for n in neighbours)
    return [call for call in heard if call is not None]


def _pass_on(
    order: Iterable[int],
    scopes: Sequence[CallId | None],
    around: Sequence[CallId],
    neighbours: Sequence[Sequence[int | None]],
    tree: CallTree,
) -> list[CallId | None]:
    """Return for each node what is beyond its neighbours on one side: the lowest call above all of it."""
    beyond: list[CallId | None] = [None] * len(scopes)
    for index in order:
        if scopes[index] is None:
            heard = _hear(neighbours[index], scopes, beyond, around[index])
            beyond[index] = tree.lowest_above(heard) if heard else None
    return beyond


# -- neighbours -------------------------------------------------------------------------------------------


def _find_feeders(view: View) -> list[list[int | None]]:
    """Return for each node those that feed it values; None where it reads what its graph is given."""
    given = {tensor for graph in view.graphs for tensor in graph.inputs} - set(view.constants)
    return [
        [view.producers[t] for t in dict.fromkeys(node.reads_values) if view.producers[t] is not None or t in given]
        for node in view.nodes
    ]


def _find_readers(view: View) -> list[list[int | None]]:
    """Return for each node those that read it; None where its graph returns what it makes."""
    returned = {tensor for graph in view.graphs for tensor in graph.outputs}
    readers: list[list[int | None]] = [[] for _ in view.nodes]
    for index, node in enumerate(view.nodes):
        for tensor in {t for t in (*node.inputs, *node.captures) if t != NO_TENSOR}:
            producer = view.producers[tensor]
            if producer is not None:
                readers[producer].append(index)
    for index, node in enumerate(view.nodes):
        if any(tensor in returned for tensor in node.outputs):
            readers[index].append(None)
    return readers


def _find_around(view: View, scopes: Sequence[CallId | None]) -> list[CallId]:
    """Return for each node the call of the nearest node around its graph that has one; else the root."""
    by_graph: list[CallId] = [ROOT] * len(view.graphs)
    # An outer graph comes before the bodies in it.
    for number, graph in enumerate(view.graphs):
        if graph.owner is not None:
            by_graph[number] = scopes[graph.owner] or by_graph[view.nodes[graph.owner].graph]
    return [by_graph[node.graph] for node in view.nodes]
