"""The order of two small parts of graphs: what a node of B cannot stand for, given what others of B stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hieronnx.graph.view import View


class Order:
    """Keeps claims of nodes of B on nodes of A in order: work that came first in A does not come later in B.

    A set of nodes of A is a number with a bit for each of their places in the region.
    """

    def __init__(self, a: View, region: Iterable[int], b: View, members: Iterable[int]) -> None:
        self._members, nodes = sorted(members), sorted(region)
        self._places = {node: place for place, node in enumerate(nodes)}
        edges = _find_edges(a, nodes)
        own = [1 << place for place in range(len(nodes))]
        self._before = _pass_on(edges, own)
        self._after = _pass_on(_reverse(edges), own)
        self._edges = _find_edges(b, self._members)
        self._forbidden: dict[int, int] = {}

    def note(self, claims: Mapping[int, Iterable[int]]) -> None:
        """Take the claims that there are as given."""
        before = [self._join(self._before, claims.get(member, ())) for member in self._members]
        after = [self._join(self._after, claims.get(member, ())) for member in self._members]
        upstream, downstream = _pass_on(self._edges, before), _pass_on(_reverse(self._edges), after)
        self._forbidden = {m: upstream[place] | downstream[place] for place, m in enumerate(self._members)}

    def keep_allowed(self, member: int, nodes: Iterable[int]) -> list[int]:
        """Keep the nodes of A that a node of B can stand for."""
        forbidden = self._forbidden.get(member, 0)
        return [node for node in nodes if not forbidden >> self._places[node] & 1]

    def _join(self, sets: Sequence[int], nodes: Iterable[int]) -> int:
        joined = 0
        for node in nodes:
            joined |= sets[self._places[node]]
        return joined


def _find_edges(view: View, nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Return which of the nodes, given in order, feed which: pairs of their places, in the order of the graph."""
    places: dict[int | None, int] = {node: place for place, node in enumerate(nodes)}
    made = ((view.producers[tensor], place) for place, node in enumerate(nodes) for tensor in view.nodes[node].reads)
    return [(places[producer], place) for producer, place in made if producer in places]


def _reverse(edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(after, before) for before, after in sorted(edges, reverse=True)]


def _pass_on(edges: Iterable[tuple[int, int]], own: Sequence[int]) -> list[int]:
    """Return for each place the union of what those have that come before it."""
    received = [0] * len(own)
    for giver, taker in edges:
        received[taker] |= received[giver] | own[giver]
    return received
