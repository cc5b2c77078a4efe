"""Settling who is whose mate among nodes that are alike, by what their readers read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hieronnx.graph.view import NO_TENSOR
from hieronnx.match.align.numbering import NO_MATCH, NumberedGraph, Side
from hieronnx.match.align.sequences import exchange_partners, group, group_pairs


class TieBreaker:
    """Exchanges mates within one pair of graphs."""

    def __init__(
        self,
        a: NumberedGraph,
        b: NumberedGraph,
        match_in_b: list[int],
        match_in_a: list[int],
        ends: Sequence[tuple[int, int]],
    ) -> None:
        self._a, self._b, self._mates_a, self._mates_b = a, b, match_in_b, match_in_a
        self._ends = group_pairs(ends)

    def swap_equal_nodes(self) -> None:
        """Let nodes that compute the same exchange their mates, so that most of their readers' mates read the mate."""
        alike = group((n for n in self._b.order if self._mates_b[n] == NO_MATCH), self._b.up.__getitem__)
        for number, twins in group(self._a.order, self._a.up.__getitem__).items():
            lone = alike.get(number, ())
            if len(twins) + len(lone) > 1:
                self._settle(twins, lone)

    def move_upstream(self) -> None:
        """Where one of two alike in a row has a mate, let it be the first, if others read that as they read the mate.

        The readers of the second then read something that was put in between; those of the first could not.
        """
        self._move_upstream(self._a, self._mates_a, self._b.side, self._mates_b)
        self._move_upstream(self._b, self._mates_b, self._a.side, self._mates_a)

    def _move_upstream(self, graph: NumberedGraph, mates: list[int], other: Side, mates_back: list[int]) -> None:
        side = graph.side
        for node in [n for n in reversed(graph.order) if mates[n] == NO_MATCH]:
            readers = [use for t in side.view.nodes[node].outputs for use in graph.uses.get(t, ())]
            read = {self._find_feeder(other, mates[reader], position) for reader, position in readers}
            for follower, _ in readers:
                mate = mates[follower]
                if mate != NO_MATCH and mate in read and side.signatures[follower] == side.signatures[node]:
                    mates[node], mates[follower], mates_back[mate] = mate, NO_MATCH, node
                    break

    def _find_feeder(self, side: Side, reader: int, position: int) -> int | None:
        """Return the node that feeds a reader at a position."""
        inputs = () if reader == NO_MATCH else side.view.nodes[reader].inputs
        tensor = inputs[position] if 0 <= position < len(inputs) else NO_TENSOR
        return None if tensor == NO_TENSOR else side.view.producers[tensor]

    def _settle(self, twins: Sequence[int], lone: Sequence[int]) -> None:
        votes: dict[tuple[int | None, int | None], float] = defaultdict(float)
        for twin, mate, weight in self._votes(twins):
            votes[twin, mate] += weight
        pairs: list[tuple[int | None, int | None]] = [
            (twin, None if self._mates_a[twin] == NO_MATCH else self._mates_a[twin]) for twin in twins
        ]
        pairs += [(None, node) for node in lone]
        for a, b in exchange_partners(pairs, votes):
            if a is not None:
                self._mates_a[a] = NO_MATCH if b is None else b
            if b is not None:
                self._mates_b[b] = NO_MATCH if a is None else a

    def _votes(self, twins: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """Yield for each use of a twin's output the node of B that is used there, and what that says.

        A reader of several twins is one node that may have changed: all its votes together count as one.
        """
        nodes = self._a.side.view.nodes
        own = {tensor for twin in twins for tensor in nodes[twin].outputs}
        weights: dict[int, float] = {}
        for twin in twins:
            for place, tensor in enumerate(nodes[twin].outputs):
                for reader, position in self._a.uses.get(tensor, ()):
                    mate = self._mates_a[reader]
                    inputs = () if mate == NO_MATCH else self._b.side.view.nodes[mate].inputs
                    if 0 <= position < len(inputs):
                        if reader not in weights:
                            weights[reader] = 1 / sum(t in own for t in nodes[reader].inputs)
                        yield twin, self._maker(inputs[position], place), weights[reader]
                yield from ((twin, self._maker(of_b, place), 1) for of_b in self._ends.get(tensor, ()))

    def _maker(self, tensor: int, place: int) -> int:
        """Return the node of B that makes a tensor as its output at a place."""
        view = self._b.side.view
        maker = None if tensor == NO_TENSOR else view.producers[tensor]
        return maker if maker is not None and self._b.side.places[tensor] == place else NO_MATCH
