"""Pairing the tensors of two aligned models, and telling connections that were changed from those that follow.

    A: Relu ─ r ─ MatMul          B: Relu ─ r ─ Cast ─ c ─ MatMul

MatMul reads `c` instead of `r`; that follows from the Cast that was added, and is no change of MatMul.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from hieronnx.graph.view import NO_TENSOR
from hieronnx.match.align.alignment import Alignment
from hieronnx.match.align.numbering import NO_MATCH, Side, pair_ends
from hieronnx.match.align.sequences import group


def _find_reads(side: Side, matches: Sequence[int]) -> dict[int | None, set[int]]:
    """Return for each node without a match what its region reads: such nodes, joined where one feeds the other."""
    view = side.view
    unmatched = [n for n, match in enumerate(matches) if match == NO_MATCH]
    members: dict[int | None, list[int]] = {n: [n] for n in unmatched}
    reads: dict[int | None, set[int]] = {n: set(view.nodes[n].reads) for n in unmatched}
    for node in unmatched:
        for producer in {view.producers[t] for t in view.nodes[node].reads} & reads.keys():
            if members[producer] is not members[node]:
                small, large = sorted((node, producer), key=lambda n: len(members[n]))
                moved = members[small]
                members[large] += moved
                reads[large] |= reads[small]
                for n in moved:
                    members[n], reads[n] = members[large], reads[large]
    return reads


class Wiring:
    """Pairs of tensors, found from the pairs of nodes."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.a, self.b = alignment.a, alignment.b
        self._reads_a = _find_reads(self.a, alignment.match_in_b)
        self._reads_b = _find_reads(self.b, alignment.match_in_a)
        self.node_pairs = [(a, b) for a, b in enumerate(alignment.match_in_b) if b != NO_MATCH]
        self.tensor_in_b: dict[int, int] = {}
        """For each tensor of A the tensor of B."""
        self.tensor_in_a: dict[int, int] = {}
        for of_a, of_b in self._computed():
            self._pair(of_a, of_b)
        self.initializers = list(self._pair_initializers())

    def _computed(self) -> Iterator[tuple[int, int]]:
        for graph_b, graph_a in self.alignment.graph_in_a.items():
            yield from pair_ends(self.a, self.a.inputs(graph_a), self.b, self.b.inputs(graph_b))
        undefined = {self.b.view.names[t]: t for t in self.b.undefined()}
        for tensor in self.a.undefined():
            if (same := undefined.get(self.a.view.names[tensor])) is not None:
                yield tensor, same
        for a, b in self.node_pairs:
            outputs = zip(self.a.view.nodes[a].outputs, self.b.view.nodes[b].outputs, strict=False)
            yield from (pair for pair in outputs if NO_TENSOR not in pair)

    def _pair(self, of_a: int, of_b: int) -> None:
        self.tensor_in_b[of_a] = of_b
        self.tensor_in_a[of_b] = of_a

    # Initializers ----------------------------------------------------------------------------------------

    def _pair_initializers(self) -> Iterator[tuple[int, int]]:
        """Pair initializers: by how many nodes read the one where they read the other, then by name and type."""
        for of_a, of_b in chain(self._by_use(), self._by_name(alike=True), self._unused(), self._by_name(alike=False)):
            if of_a not in self.tensor_in_b and of_b not in self.tensor_in_a:
                self._pair(of_a, of_b)
                yield of_a, of_b

    def _by_use(self) -> list[tuple[int, int]]:
        a, b = self.a.view, self.b.view
        read = (pair for i, j in self.node_pairs for pair in zip(a.nodes[i].inputs, b.nodes[j].inputs, strict=False))
        graphs = ((a.graphs[i], b.graphs[j]) for j, i in sorted(self.alignment.graph_in_a.items()))
        given = (pair for g, h in graphs for pair in pair_ends(self.a, g.outputs, self.b, h.outputs))
        votes = Counter(p for p in chain(read, given) if p[0] in self.a.initializers and p[1] in self.b.initializers)
        return sorted(votes, key=lambda p: (-votes[p], not self._same_type(*p), a.names[p[0]] != b.names[p[1]]))

    def _same_type(self, of_a: int, of_b: int) -> bool:
        return self.a.initializers[of_a] == self.b.initializers[of_b]

    def _by_name(self, *, alike: bool) -> list[tuple[int, int]]:
        view, graph_in_a = self.b.view, self.alignment.graph_in_a
        keys = {(graph_in_a.get(view.tensor_graphs[t]), view.names[t]): t for t in self.b.initializers}
        named = [(t, keys.get((self.a.view.tensor_graphs[t], self.a.view.names[t]))) for t in self.a.initializers]
        return [(t, same) for t, same in named if same is not None and (not alike or self._same_type(t, same))]

    def _unused(self) -> Iterator[tuple[int, int]]:
        """Yield initializers that nobody reads, in pairs of one type, after those that others paired are known."""
        waiting = group((t for t in _unread(self.b) if t not in self.tensor_in_a), self.b.initializers.__getitem__)
        for tensor in _unread(self.a):
            if tensor not in self.tensor_in_b and waiting.get(self.a.initializers[tensor]):
                yield tensor, waiting[self.a.initializers[tensor]].pop(0)

    # Connections -----------------------------------------------------------------------------------------

    def same(self, of_a: int, of_b: int) -> bool:
        """Say whether two tensors are each other's match, or both absent."""
        return of_a == of_b if NO_TENSOR in (of_a, of_b) else self.tensor_in_b.get(of_a) == of_b

    def follows(self, of_a: int, of_b: int) -> bool:
        """Say whether reading one instead of the other follows from nodes that were added or removed.

        A node that was put between two others changes what the second reads; that is no change of the second.
        """
        if NO_TENSOR in (of_a, of_b):
            return False
        gone, new = of_a not in self.tensor_in_b, of_b not in self.tensor_in_a
        reads_a = self._reads_a.get(self.a.view.producers[of_a])
        reads_b = self._reads_b.get(self.b.view.producers[of_b])
        if gone and new:  # replaced by something else; but not one initializer by another
            return reads_a is not None or reads_b is not None
        if new:
            return reads_b is not None and self.tensor_in_b[of_a] in reads_b
        return gone and reads_a is not None and self.tensor_in_a[of_b] in reads_a


def _unread(side: Side) -> list[int]:
    read = {tensor for node in side.view.nodes for tensor in node.inputs}
    read.update(tensor for graph in side.view.graphs for tensor in graph.outputs)
    return [tensor for tensor in side.initializers if tensor not in read]
