"""Which tensor of B is which tensor of A, once their nodes are paired; and which new connections follow from others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from hieronnx.graph.view import NO_TENSOR
from hieronnx.match.align.alignment import Alignment, pair_ends
from hieronnx.match.align.numbering import NO_MATCH, Side


class _LoneRegions:
    """The nodes of one side that have no mate, joined where one feeds the other."""

    def __init__(self, side: Side, mates: Sequence[int]) -> None:
        self._above: dict[int, int] = {index: index for index, mate in enumerate(mates) if mate == NO_MATCH}
        self._side = side
        for index in self._above:
            for tensor in side.view.nodes[index].reads:
                producer = side.view.producers[tensor]
                if producer in self._above:
                    self._above[self.find(producer)] = self.find(index)
        self.reads: dict[int, set[int]] = defaultdict(set)
        """What each region reads."""
        for index in self._above:
            self.reads[self.find(index)].update(side.view.nodes[index].reads)

    def find(self, node: int) -> int:
        """Return the region of a lone node."""
        while self._above[node] != node:
            self._above[node] = self._above[self._above[node]]
            node = self._above[node]
        return node

    def behind(self, tensor: int) -> int | None:
        """Return the region that makes a tensor, if one does."""
        producer = None if tensor == NO_TENSOR else self._side.view.producers[tensor]
        return self.find(producer) if producer is not None and producer in self._above else None


class Wiring:
    """Pairs of tensors, found from the pairs of nodes."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.a, self.b = alignment.a, alignment.b
        self._lone_a = _LoneRegions(self.a, alignment.match_in_b)
        self._lone_b = _LoneRegions(self.b, alignment.match_in_a)
        self.mates: dict[int, int] = {}
        """For each tensor of A the tensor of B."""
        self.mates_back: dict[int, int] = {}
        for of_a, of_b in self._computed():
            self._pair(of_a, of_b)
        self.initializers = list(self._pair_initializers())

    def node_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of nodes."""
        return ((a, b) for a, b in enumerate(self.alignment.match_in_b) if b != NO_MATCH)

    def output_pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the pairs of outputs of graphs, each with its graph in B."""
        for graph_b, graph_a in sorted(self.alignment.graphs.items()):
            outputs_a, outputs_b = self.a.view.graphs[graph_a].outputs, self.b.view.graphs[graph_b].outputs
            yield from ((graph_b, *pair) for pair in pair_ends(self.a, outputs_a, self.b, outputs_b))

    def _computed(self) -> Iterator[tuple[int, int]]:
        for graph_b, graph_a in self.alignment.graphs.items():
            yield from pair_ends(self.a, self.a.inputs(graph_a), self.b, self.b.inputs(graph_b))
        undefined = {self.b.view.names[t]: t for t in self.b.undefined()}
        for tensor in self.a.undefined():
            if (mate := undefined.get(self.a.view.names[tensor])) is not None:
                yield tensor, mate
        for a, b in self.node_pairs():
            made = zip(self.a.view.nodes[a].outputs, self.b.view.nodes[b].outputs, strict=False)
            yield from ((of_a, of_b) for of_a, of_b in made if NO_TENSOR not in (of_a, of_b))

    def _pair(self, of_a: int, of_b: int) -> None:
        self.mates[of_a] = of_b
        self.mates_back[of_b] = of_a

    # Initializers ----------------------------------------------------------------------------------------

    def _pair_initializers(self) -> Iterator[tuple[int, int]]:
        """Pair initializers: by how many nodes read the one where they read the other, then by name and type."""
        for of_a, of_b in chain(self._by_use(), self._by_name(alike=True), self._unused(), self._by_name(alike=False)):
            if of_a not in self.mates and of_b not in self.mates_back:
                self._pair(of_a, of_b)
                yield of_a, of_b

    def _by_use(self) -> list[tuple[int, int]]:
        votes: Counter[tuple[int, int]] = Counter()
        for a, b in self.node_pairs():
            read = zip(self.a.view.nodes[a].inputs, self.b.view.nodes[b].inputs, strict=False)
            votes.update(pair for pair in read if pair[0] in self.a.held and pair[1] in self.b.held)
        votes.update((t, u) for _, t, u in self.output_pairs() if t in self.a.held and u in self.b.held)
        return sorted(votes, key=lambda pair: (-votes[pair], not self._same_kind(*pair), not self._same_name(*pair)))

    def _same_kind(self, of_a: int, of_b: int) -> bool:
        return self.a.held[of_a] == self.b.held[of_b]

    def _same_name(self, of_a: int, of_b: int) -> bool:
        return self.a.view.names[of_a] == self.b.view.names[of_b]

    def _by_name(self, *, alike: bool) -> list[tuple[int, int]]:
        keys = {(self.alignment.graphs.get(self.b.view.tensor_graphs[t]), self.b.view.names[t]): t for t in self.b.held}
        found = [(t, keys.get((self.a.view.tensor_graphs[t], self.a.view.names[t]))) for t in self.a.held]
        return [(t, mate) for t, mate in found if mate is not None and (not alike or self._same_kind(t, mate))]

    def _unused(self) -> Iterator[tuple[int, int]]:
        """Yield initializers that nobody reads, in pairs of one type, after those that others paired are known."""
        waiting: dict[object, list[int]] = defaultdict(list)
        for tensor in _unread(self.b):
            if tensor not in self.mates_back:
                waiting[self.b.held[tensor]].append(tensor)
        for tensor in _unread(self.a):
            if tensor not in self.mates and waiting.get(self.a.held[tensor]):
                yield tensor, waiting[self.a.held[tensor]].pop(0)

    # Connections -----------------------------------------------------------------------------------------

    def same(self, of_a: int, of_b: int) -> bool:
        """Say whether two tensors are each other's mates, or both absent."""
        return of_a == of_b if NO_TENSOR in (of_a, of_b) else self.mates.get(of_a) == of_b

    def follows(self, of_a: int, of_b: int) -> bool:
        """Say whether reading one instead of the other follows from nodes that were added or removed.

        A node that was put between two others changes what the second reads; that is no change of the second.
        """
        if NO_TENSOR in (of_a, of_b):
            return False
        gone, new = of_a not in self.mates, of_b not in self.mates_back
        region_a, region_b = self._lone_a.behind(of_a), self._lone_b.behind(of_b)
        if gone and new:  # replaced by something else; but not one initializer by another
            return region_a is not None or region_b is not None
        if new:
            return region_b is not None and self.mates[of_a] in self._lone_b.reads[region_b]
        return gone and region_a is not None and self.mates_back[of_b] in self._lone_a.reads[region_a]


def _unread(side: Side) -> list[int]:
    read = {tensor for node in side.view.nodes for tensor in node.inputs}
    read.update(tensor for graph in side.view.graphs for tensor in graph.outputs)
    return [tensor for tensor in side.held if tensor not in read]
