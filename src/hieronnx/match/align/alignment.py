"""Aligning two models: which node of B is which node of A, with as few left over as possible.

What lies before every edit has kept the number of all that it is computed from, what lies behind every edit the
number of all that is made of it; pairs that are the only ones of their number are found so. They spread to their
neighbours. What lies between two edits is aligned like lines of text, in an order that comes from the structure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hieronnx.graph.view import NO_TENSOR
from hieronnx.match.align.numbering import NO_MATCH, NumberedGraph, Numbers, Side, number_graph
from hieronnx.match.align.sequences import align_sequences, group, group_pairs, longest_rising
from hieronnx.match.align.settling import TieBreaker


def pair_ends(a: Side, tensors_a: Sequence[int], b: Side, tensors_b: Sequence[int]) -> list[tuple[int, int]]:
    """Pair the inputs or the outputs of two graphs: by position, or where their number differs by name or type."""
    if len(tensors_a) == len(tensors_b):
        return list(zip(tensors_a, tensors_b, strict=True))
    pairs = align_sequences([a.view.names[t] for t in tensors_a], [b.view.names[t] for t in tensors_b])
    if not pairs:
        pairs = align_sequences([a.view.types[t] for t in tensors_a], [b.view.types[t] for t in tensors_b])
    return [(tensors_a[i], tensors_b[j]) for i, j in pairs]


@dataclass(frozen=True, slots=True)
class Preference:
    """What decides among nodes that are alike.

    Attributes:
        from_below: whether what is made of a node counts before what it is computed from.
        initializer_names: whether the names of what it holds count; parameters keep theirs where others are new.
        output_names: whether the name of its output counts.
    """

    from_below: bool = False
    initializer_names: bool = False
    output_names: bool = False

    def name_keys(self) -> Iterator[Callable[[Side, int], Hashable]]:
        """Yield the keys by name that may be used."""
        if self.initializer_names:
            yield _initializer_names
        if self.output_names:
            yield _output_name


class Alignment:
    """Pairs of nodes, one of each side; names may help to choose among equals."""

    def __init__(
        self,
        a: Side,
        b: Side,
        numbers: Numbers,
        preference: Preference,
        numbered: dict[tuple[int, int], NumberedGraph],
    ) -> None:
        self.a, self.b, self.numbers, self.preference, self.numbered = a, b, numbers, preference, numbered
        self.match_in_b = [NO_MATCH] * len(a.view.nodes)
        self.match_in_a = [NO_MATCH] * len(b.view.nodes)
        self.graphs: dict[int, int] = {}
        """For each graph of B the graph of A that it was aligned with."""

    def run(self) -> Alignment:
        """Align the main graphs, functions of the same name, and the bodies of nodes that are pairs."""
        functions = {g.key: n for n, g in enumerate(self.a.view.graphs) if n and g.owner is None}
        waiting = [(0, 0)]
        for number, graph in enumerate(self.b.view.graphs):
            if number and graph.owner is None and graph.key in functions:
                waiting.append((functions[graph.key], number))
        while waiting:
            graph_a, graph_b = waiting.pop()
            self.graphs[graph_b] = graph_a
            _GraphAlignment(self, graph_a, graph_b).run()
            waiting += self._body_pairs(graph_a)
        return self

    def _body_pairs(self, graph_a: int) -> list[tuple[int, int]]:
        pairs = []
        for index in self.a.nodes[graph_a]:
            bodies, mate = self.a.view.nodes[index].bodies, self.match_in_b[index]
            if bodies and mate != NO_MATCH:
                others = {self.b.view.graphs[g].label: g for g in self.b.view.nodes[mate].bodies}
                labels = ((g, self.a.view.graphs[g].label) for g in bodies)
                pairs += [(g, others[label]) for g, label in labels if label in others]
        return pairs


def _initializer_names(side: Side, node: int) -> Hashable:
    names = tuple(side.view.names[t] for t in side.view.nodes[node].inputs if t in side.held)
    return (side.signatures[node], names) if names else None


def _output_name(side: Side, node: int) -> Hashable:
    name = next((side.view.names[t] for t in side.view.nodes[node].outputs if t != NO_TENSOR), "")
    return (side.signatures[node], name) if name else None


class _GraphAlignment:
    """Aligns one graph of A with one of B."""

    def __init__(self, whole: Alignment, graph_a: int, graph_b: int) -> None:
        self.whole = whole
        self.match_in_b, self.match_in_a = whole.match_in_b, whole.match_in_a
        a, b = whole.a, whole.b
        self.given = pair_ends(a, a.inputs(graph_a), b, b.inputs(graph_b))
        """Pairs of tensors that come from outside: inputs, and what is captured."""
        self.ends = pair_ends(a, a.view.graphs[graph_a].outputs, b, b.view.graphs[graph_b].outputs)
        self.a, self.b = self._number(0, a, graph_a), self._number(1, b, graph_b)
        self.given += self._pair_captured()
        self.lone = [len(self.a.order), len(self.b.order)]
        """How many nodes of each side have no mate yet."""
        self.new: deque[tuple[int, int]] = deque()
        """Pairs that have not spread yet."""

    def _number(self, which: int, side: Side, graph: int) -> NumberedGraph:
        """Number a graph; one that stands alone, which is what takes long, only once for all alignments."""
        known = self.whole.numbered.get((which, graph))
        if known is None:
            places = group_pairs((pair[which], place) for place, pair in enumerate(self.ends))
            known = number_graph(side, graph, self.whole.numbers, self._make_leaf_key(which), places)
            if side.view.graphs[graph].owner is None:
                self.whole.numbered[which, graph] = known
        return known

    def _pair_captured(self) -> list[tuple[int, int]]:
        a, b = self.whole.a, self.whole.b
        of_a, of_b = ({self._outer(which, (a, b)[which], t): t for t in self._captured(which)} for which in (0, 1))
        return [(tensor, of_b[key]) for key, tensor in of_a.items() if key in of_b]

    def _captured(self, which: int) -> list[int]:
        """Return what a graph reads of the graphs around it, initializers not counted."""
        graph = (self.a, self.b)[which]
        side = graph.side
        return [t for t in graph.uses if side.view.tensor_graphs[t] != graph.graph and t not in side.held]

    def _make_leaf_key(self, which: int) -> Callable[[int], Hashable]:
        """Return the function that keys what a graph does not compute itself, alike on both sides."""
        side = (self.whole.a, self.whole.b)[which]
        places = {pair[which]: number for number, pair in enumerate(self.given)}

        def key(tensor: int) -> Hashable:
            if tensor in places:
                return "input", places[tensor]
            if tensor in side.held:
                return "held", side.held[tensor]
            return "outer", self._outer(which, side, tensor)

        return key

    def _outer(self, which: int, side: Side, tensor: int) -> Hashable:
        """Key a tensor of a graph around this one by what it is on side A, if it has a mate there."""
        producer, graph = side.view.producers[tensor], side.view.tensor_graphs[tensor]
        if producer is None:
            known = self.whole.graphs.get(graph) if which else graph
            place = side.input_places.get(tensor)
            return ("undefined", side.view.names[tensor]) if place is None else ("input", known, place)
        position = side.places[tensor]
        mate = self.match_in_a[producer] if which else producer
        if mate == NO_MATCH or (not which and self.match_in_b[producer] == NO_MATCH):
            return "alone", which, producer, position
        return "node", mate, position

    def run(self) -> None:
        """Pair what can be paired: first what is alike in every respect, last what has changed in some."""
        signatures, operators = (lambda s, n: s.signatures[n]), (lambda s, n: s.operators[n])
        for by_name in self.whole.preference.name_keys():
            self._pair_only_ones(lambda g, n, key=by_name: key(g.side, n))  # type: ignore[misc]
        for _ in range(2):  # the second time for those that the first made the only ones
            self._pair_only_ones(lambda g, n: (g.around[n], g.inside.get(n)))
            if self.whole.preference.from_below:
                self._pair_only_ones(lambda g, n: g.down[n])
            self._pair_only_ones(lambda g, n: g.up[n])
            self._spread_to_producers(signatures)
            self._pair_only_ones(lambda g, n: g.down[n])
            self._spread(signatures)
        self._pair_in_order(lambda g, n: g.near[n])
        self._spread(signatures)
        self._pair_in_order(lambda g, n: g.side.signatures[n])
        self._spread(signatures)
        self._spread_all(operators)
        self._pair_in_order(lambda g, n: g.side.operators[n])
        self._spread(operators)
        self._pair_copies(lambda g, n: g.around[n])
        self._pair_copies(lambda g, n: g.up[n])
        settler = TieBreaker(self.a, self.b, self.match_in_b, self.match_in_a, self.ends)
        settler.swap_equal_nodes()
        if not self.whole.preference.output_names:
            settler.move_upstream()
        self._spread_all(signatures)

    def _pair(self, a: int, b: int) -> None:
        self.match_in_b[a], self.match_in_a[b] = b, a
        self.lone[0] -= 1
        self.lone[1] -= 1
        self.new.append((a, b))

    def _pair_only_ones(self, key: Callable[[NumberedGraph, int], Hashable]) -> None:
        """Pair nodes that are on each side the only one with their key; None is no key."""
        for nodes, others in self._find_alike(key):
            if len(nodes) == len(others) == 1:
                self._pair(nodes[0], others[0])

    def _pair_copies(self, key: Callable[[NumberedGraph, int], Hashable]) -> None:
        """Pair what is left and alike, one with one: copies of a computation, of which any may be any."""
        for nodes, others in self._find_alike(key):
            for a, b in zip(nodes, others, strict=False):
                self._pair(a, b)

    def _find_alike(self, key: Callable[[NumberedGraph, int], Hashable]) -> Iterable[tuple[list[int], list[int]]]:
        """Return the nodes without mates that have the same key, of both sides."""
        if not all(self.lone):
            return []
        free = group((n for n in self.a.order if self.match_in_b[n] == NO_MATCH), lambda n: key(self.a, n))
        others = group((n for n in self.b.order if self.match_in_a[n] == NO_MATCH), lambda n: key(self.b, n))
        return [(nodes, others[value]) for value, nodes in free.items() if value is not None and value in others]

    # Spreading -------------------------------------------------------------------------------------------

    def _spread_to_producers(self, key: Callable[[Side, int], Hashable]) -> None:
        """Pair what feeds new pairs at the same place: what equal results are computed from is equal."""
        waiting = deque(self.new)
        while waiting and all(self.lone):
            index_a, index_b = waiting.popleft()
            known = len(self.new)
            self._pair_producers(index_a, index_b, key)
            waiting.extend(self.new[position] for position in range(known - len(self.new), 0))

    def _spread(self, key: Callable[[Side, int], Hashable]) -> None:
        """Let pairs find their neighbours: those that feed them at the same place, those that alone read the same."""
        for of_a, of_b in self.given:
            self._pair_readers(of_a, of_b, key)
        while self.new and all(self.lone):
            index_a, index_b = self.new.popleft()
            node_a, node_b = self.whole.a.view.nodes[index_a], self.whole.b.view.nodes[index_b]
            self._pair_producers(index_a, index_b, key)
            for of_a, of_b in zip(node_a.outputs, node_b.outputs, strict=False):
                self._pair_readers(of_a, of_b, key)

    def _spread_all(self, key: Callable[[Side, int], Hashable]) -> None:
        self.new = deque((n, m) for n in self.a.order if (m := self.match_in_b[n]) != NO_MATCH)
        self._spread(key)

    def _pair_producers(self, a: int, b: int, key: Callable[[Side, int], Hashable]) -> None:
        feeds = dict(self.b.feeds(b))
        for position, tensor in self.a.feeds(a):
            if position in feeds:
                self._pair_makers(tensor, feeds[position], key)

    def _pair_makers(self, of_a: int, of_b: int, key: Callable[[Side, int], Hashable]) -> None:
        if NO_TENSOR in (of_a, of_b):
            return
        side_a, side_b = self.whole.a, self.whole.b
        a, b = side_a.view.producers[of_a], side_b.view.producers[of_b]
        if a is None or b is None or self.match_in_b[a] != NO_MATCH or self.match_in_a[b] != NO_MATCH:
            return
        node_a, node_b = side_a.view.nodes[a], side_b.view.nodes[b]
        here = node_a.graph == self.a.graph and node_b.graph == self.b.graph
        if here and key(side_a, a) == key(side_b, b) and side_a.places[of_a] == side_b.places[of_b]:
            self._pair(a, b)

    def _pair_readers(self, of_a: int, of_b: int, key: Callable[[Side, int], Hashable]) -> None:
        uses_a = [use for use in self.a.uses.get(of_a, ()) if self.match_in_b[use[0]] == NO_MATCH]
        uses_b = [use for use in self.b.uses.get(of_b, ()) if self.match_in_a[use[0]] == NO_MATCH]
        if not uses_a or not uses_b:
            return
        free = group(uses_a, lambda use: (key(self.whole.a, use[0]), use[1]))
        others = group(uses_b, lambda use: (key(self.whole.b, use[0]), use[1]))
        for value, readers in free.items():
            found = others.get(value, ())
            if len(readers) == len(found) == 1:
                (a, _), (b, _) = readers[0], found[0]
                if self.match_in_b[a] == self.match_in_a[b] == NO_MATCH:  # it may read the tensor at two places
                    self._pair(a, b)

    # In order --------------------------------------------------------------------------------------------

    def _pair_in_order(self, key: Callable[[NumberedGraph, int], Hashable]) -> None:
        """Align what is left between the pairs that come in the same order on both sides."""
        if not all(self.lone):
            return
        for left_a, left_b in self._find_gaps():
            pairs = align_sequences([key(self.a, n) for n in left_a], [key(self.b, n) for n in left_b])
            for i, j in pairs:
                self._pair(left_a[i], left_b[j])

    def _find_gaps(self) -> Iterable[tuple[list[int], list[int]]]:
        place = {n: position for position, n in enumerate(self.b.order)}
        paired = [(i, place[m]) for i, n in enumerate(self.a.order) if (m := self.match_in_b[n]) != NO_MATCH]
        fixed = [paired[position] for position in longest_rising([j for _, j in paired])]
        gaps = []
        start_a = start_b = 0
        for end_a, end_b in [*fixed, (len(self.a.order), len(self.b.order))]:
            left_a = [n for n in self.a.order[start_a:end_a] if self.match_in_b[n] == NO_MATCH]
            left_b = [n for n in self.b.order[start_b:end_b] if self.match_in_a[n] == NO_MATCH]
            if left_a and left_b:
                gaps.append((left_a, left_b))
            start_a, start_b = end_a + 1, end_b + 1
        return gaps
