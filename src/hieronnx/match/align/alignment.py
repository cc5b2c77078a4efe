"""Aligning two models: which node of B is which node of A, with as few left over as possible.

    A: x ─ Relu ─ MatMul ─ Add ──────── Relu ─ Softmax ─ y
    B: x ─ Relu ─ MatMul ─ Add ─ Cast ─ Relu ─ Softmax ─ y
           └─ same up ───────┘          └─ same down ─┘

Nodes before every edit have the same `up` number on both sides, nodes behind every edit the same `down` number; those
that are the only ones of their number are matched first. Matches spread to their neighbours: the producers of what two
matched nodes read, the only readers of what they make. What lies between two edits is aligned like lines of text, in an
order that comes from the structure. Last, nodes that are alike swap their matches if their readers fit better so.

Where both models have a hierarchy, all this is done inside pairs of calls (`places.py`), and only what has no place of
its own is matched across them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from hieronnx.graph.view import NO_TENSOR
from hieronnx.match.align.numbering import (
    NO_MATCH,
    NumberedGraph,
    Side,
    by_initializer_names,
    by_operator,
    by_output_name,
    by_signature,
    number_graph,
    pair_ends,
)
from hieronnx.match.align.places import Places, Round
from hieronnx.match.align.sequences import align_sequences, exchange_partners, group, longest_rising

_Key: TypeAlias = Callable[[NumberedGraph, int], Hashable]
"""Keys a node of a graph; None where it has none."""


@dataclass(frozen=True, slots=True)
class Preference:
    """What decides among nodes that are alike.

    Attributes:
        from_below: whether what is made of a node counts before what it is computed from.
        initializer_names: whether the names of its initializers count; parameters keep theirs where others are new.
        output_names: whether the name of its output counts.
    """

    from_below: bool = False
    initializer_names: bool = False
    output_names: bool = False


class Alignment:
    """Matches of nodes, one of each side.

    Attributes:
        match_in_b: for each node of A the node of B.
        match_in_a: for each node of B the node of A.
        graph_in_a: for each graph of B the graph of A that it was aligned with.
    """

    def __init__(self, a: Side, b: Side, preference: Preference, places: Places | None = None) -> None:
        self.a, self.b, self.preference = a, b, preference
        everywhere = Round([None] * len(a.view.nodes), [None] * len(b.view.nodes))
        self.rounds = [everywhere] if places is None else list(places.list_rounds())
        self.match_in_b = [NO_MATCH] * len(a.view.nodes)
        self.match_in_a = [NO_MATCH] * len(b.view.nodes)
        self.graph_in_a: dict[int, int] = {}

    def run(self) -> Alignment:
        """Align the main graphs, functions of the same name, and the bodies of nodes that are matched."""
        functions = {g.key: n for n, g in enumerate(self.a.view.graphs) if n and g.owner is None}
        waiting = [(0, 0)]
        for number, graph in enumerate(self.b.view.graphs):
            if number and graph.owner is None and graph.key in functions:
                waiting.append((functions[graph.key], number))
        while waiting:
            graph_a, graph_b = waiting.pop()
            self.graph_in_a[graph_b] = graph_a
            _GraphAlignment(self, graph_a, graph_b).run()
            for index in self.a.view.nodes_in[graph_a]:
                match = self.match_in_b[index]
                bodies = self.b.view.nodes[match].bodies if match != NO_MATCH else ()
                others = {self.b.view.graphs[g].label: g for g in bodies}
                labels = ((g, self.a.view.graphs[g].label) for g in self.a.view.nodes[index].bodies)
                waiting += [(g, others[label]) for g, label in labels if label in others]
        return self


class _GraphAlignment:
    """Aligns one graph of A with one of B."""

    def __init__(self, alignment: Alignment, graph_a: int, graph_b: int) -> None:
        self.alignment = alignment
        self.match_in_b, self.match_in_a = alignment.match_in_b, alignment.match_in_a
        a, b = alignment.a, alignment.b
        self.boundary = pair_ends(a, a.inputs(graph_a), b, b.inputs(graph_b))
        """Pairs of tensors that come from outside: inputs, and what is captured."""
        self.outputs = pair_ends(a, a.view.graphs[graph_a].outputs, b, b.view.graphs[graph_b].outputs)
        self.outputs_by_a = group(self.outputs, lambda pair: pair[0])
        self.a, self.b = self._number(0, a, graph_a), self._number(1, b, graph_b)
        captured_a, captured_b = (
            {
                self._outer_key(which, graph.side, t): t
                for t in graph.uses
                if graph.side.view.tensor_graphs[t] != graph.graph and t not in graph.side.initializers
            }
            for which, graph in enumerate((self.a, self.b))
        )
        self.boundary += [(tensor, captured_b[key]) for key, tensor in captured_a.items() if key in captured_b]
        self.round = alignment.rounds[0]
        self.open_a: set[int] = set()
        """The nodes of A that have no match yet and may get one in this round."""
        self.open_b: set[int] = set()
        self.new: deque[tuple[int, int]] = deque()
        """Matches that have not spread yet."""

    def _number(self, which: int, side: Side, graph: int) -> NumberedGraph:
        """Number a graph; one that stands alone, which is what takes long, only once for all alignments."""
        if graph in side.numbered:
            return side.numbered[graph]
        inputs = {pair[which]: position for position, pair in enumerate(self.boundary)}
        outputs = group(range(len(self.outputs)), lambda position: self.outputs[position][which])

        def leaf_key(tensor: int) -> Hashable:
            if tensor in inputs:
                return "input", inputs[tensor]
            if tensor in side.initializers:
                return "held", side.initializers[tensor]
            return "outer", self._outer_key(which, side, tensor)

        numbered = number_graph(side, graph, leaf_key, outputs)
        if side.view.graphs[graph].owner is None:
            side.numbered[graph] = numbered
        return numbered

    def _outer_key(self, which: int, side: Side, tensor: int) -> Hashable:
        """Key a tensor of a graph around this one by what it is on side A, if it has a match there."""
        producer, graph = side.view.producers[tensor], side.view.tensor_graphs[tensor]
        if producer is None:
            graph_a = self.alignment.graph_in_a.get(graph) if which else graph
            position = side.input_positions.get(tensor)
            return ("undefined", side.view.names[tensor]) if position is None else ("input", graph_a, position)
        position = side.output_positions[tensor]
        match = self.match_in_a[producer] if which else producer
        if match == NO_MATCH or (not which and self.match_in_b[producer] == NO_MATCH):
            return "unmatched", which, producer, position
        return "node", match, position

    def run(self) -> None:
        """Match what can be matched, round after round: first inside calls, last what may be anywhere."""
        for number, turn in enumerate(self.alignment.rounds):
            self.round = turn
            self._open()
            if self.round.anywhere:
                self._match_alike(lambda g, n: (g.around[n], g.inside.get(n)), copies=True)
            elif self.open_a and self.open_b:
                self._run_round()
                self._tidy(first=not number)

    def _open(self) -> None:
        """Open to matching what takes part in the round and has no match."""
        of_a, of_b = self.round.open_a, self.round.open_b
        here_a, here_b = (
            order if allowed is None else filter(set(allowed).__contains__, order)
            for order, allowed in ((self.a.order, of_a), (self.b.order, of_b))
        )
        self.open_a = {n for n in here_a if self.match_in_b[n] == NO_MATCH}
        self.open_b = {n for n in here_b if self.match_in_a[n] == NO_MATCH}

    def _run_round(self) -> None:
        """Match first what is alike in every respect, last what has changed in some."""
        preference = self.alignment.preference
        self.new = self._list_matches()
        if preference.initializer_names:
            self._match_alike(by_initializer_names)
        if preference.output_names:
            self._match_alike(by_output_name)
        for _ in range(2):  # the second time for those that the first made the only ones
            self._match_alike(lambda g, n: (g.around[n], g.inside.get(n)))
            if preference.from_below:
                self._match_alike(lambda g, n: g.down[n])
            self._match_alike(lambda g, n: g.up[n])
            self._spread_to_producers(by_signature)
            self._match_alike(lambda g, n: g.down[n])
            self._spread(by_signature)
        self._match_in_order(lambda g, n: g.near[n])
        self._spread(by_signature)
        self._match_in_order(by_signature)
        self._spread(by_signature)
        self._spread_all(by_operator)
        self._match_in_order(by_operator)
        self._spread(by_operator)
        self._match_alike(lambda g, n: g.around[n], copies=True)
        self._match_alike(lambda g, n: g.up[n], copies=True)

    def _tidy(self, *, first: bool) -> None:
        """Settle which of several that are alike is matched, and let that spread."""
        if first:
            self._swap_equal_nodes()
            if not self.alignment.preference.output_names:
                a, b = self.round.a, self.round.b
                _move_upstream(self.a, self.match_in_b, a, self.b.side, self.match_in_a, b)
                _move_upstream(self.b, self.match_in_a, b, self.a.side, self.match_in_b, a)
            self._open()
        self._spread_all(by_signature)

    def _match(self, a: int, b: int) -> None:
        self.match_in_b[a], self.match_in_a[b] = b, a
        self.open_a.remove(a)
        self.open_b.remove(b)
        self.new.append((a, b))

    def _key_a(self, key: _Key, node: int) -> Hashable:
        value = key(self.a, node)
        return None if value is None else (self.round.a[node], value)

    def _key_b(self, key: _Key, node: int) -> Hashable:
        value = key(self.b, node)
        return None if value is None else (self.round.b[node], value)

    def _match_alike(self, key: _Key, *, copies: bool = False) -> None:
        """Match nodes that are on each side the only open one of their place with their key; None is no key.

        With `copies` also where there are several: copies of a computation, of which any may be any.
        """
        if not (self.open_a and self.open_b):
            return
        nodes = group((n for n in self.a.order if n in self.open_a), partial(self._key_a, key))
        others = group((n for n in self.b.order if n in self.open_b), partial(self._key_b, key))
        for value, of_a in nodes.items():
            of_b = others.get(value, ())
            if value is not None and (copies or len(of_a) == len(of_b) == 1):
                for a, b in zip(of_a, of_b, strict=False):
                    self._match(a, b)

    # Spreading -------------------------------------------------------------------------------------------

    def _spread_to_producers(self, key: _Key) -> None:
        """Match what feeds new matches at the same position: what equal results are computed from is equal."""
        waiting = deque(self.new)
        while waiting and self.open_a and self.open_b:
            index_a, index_b = waiting.popleft()
            before = len(self.new)
            self._match_producers(index_a, index_b, key)
            waiting.extend(self.new[position] for position in range(before - len(self.new), 0))

    def _spread(self, key: _Key) -> None:
        """Let matches find their neighbours: what feeds them at the same position, and what alone reads the same."""
        for of_a, of_b in self.boundary:
            self._match_readers(of_a, of_b, key)
        while self.new and self.open_a and self.open_b:
            index_a, index_b = self.new.popleft()
            node_a, node_b = self.a.side.view.nodes[index_a], self.b.side.view.nodes[index_b]
            self._match_producers(index_a, index_b, key)
            for of_a, of_b in zip(node_a.outputs, node_b.outputs, strict=False):
                self._match_readers(of_a, of_b, key)

    def _spread_all(self, key: _Key) -> None:
        self.new = self._list_matches()
        self._spread(key)

    def _list_matches(self) -> deque[tuple[int, int]]:
        return deque((n, m) for n in self.a.order if (m := self.match_in_b[n]) != NO_MATCH)

    def _match_producers(self, a: int, b: int, key: _Key) -> None:
        feeds = dict(self.b.feeds(b))
        for position, of_a in self.a.feeds(a):
            of_b = feeds.get(position, NO_TENSOR)
            producer_a, producer_b = self.a.producer(of_a), self.b.producer(of_b)
            if producer_a not in self.open_a or producer_b not in self.open_b:
                continue
            same_output = self.a.side.output_positions[of_a] == self.b.side.output_positions[of_b]
            if same_output and self._key_a(key, producer_a) == self._key_b(key, producer_b):
                self._match(producer_a, producer_b)

    def _match_readers(self, of_a: int, of_b: int, key: _Key) -> None:
        uses_a = [use for use in self.a.uses.get(of_a, ()) if use[0] in self.open_a]
        uses_b = [use for use in self.b.uses.get(of_b, ()) if use[0] in self.open_b]
        if not uses_a or not uses_b:
            return
        readers_a = group(uses_a, lambda use: (self._key_a(key, use[0]), use[1]))
        readers_b = group(uses_b, lambda use: (self._key_b(key, use[0]), use[1]))
        for value, readers in readers_a.items():
            others = readers_b.get(value, ())
            if len(readers) == len(others) == 1:
                (a, _), (b, _) = readers[0], others[0]
                if a in self.open_a and b in self.open_b:  # it may read the tensor at two positions
                    self._match(a, b)

    # In order --------------------------------------------------------------------------------------------

    def _match_in_order(self, key: _Key) -> None:
        """Align what is left in each place between the matches that come in the same order on both sides."""
        if not (self.open_a and self.open_b):
            return
        orders_b = group(self.b.order, self.round.b.__getitem__)
        for place, order_a in group(self.a.order, self.round.a.__getitem__).items():
            order_b = orders_b.get(place, ())
            if not (self.open_a.isdisjoint(order_a) or self.open_b.isdisjoint(order_b)):
                self._align_orders(order_a, order_b, key)

    def _align_orders(self, order_a: Sequence[int], order_b: Sequence[int], key: _Key) -> None:
        positions = {n: position for position, n in enumerate(order_b)}
        matched = [(i, positions[m]) for i, n in enumerate(order_a) if (m := self.match_in_b[n]) in positions]
        fixed = [matched[at] for at in longest_rising([j for _, j in matched])]
        start_a = start_b = 0
        for end_a, end_b in [*fixed, (len(order_a), len(order_b))]:
            left_a = [n for n in order_a[start_a:end_a] if n in self.open_a]
            left_b = [n for n in order_b[start_b:end_b] if n in self.open_b]
            for i, j in align_sequences([key(self.a, n) for n in left_a], [key(self.b, n) for n in left_b]):
                self._match(left_a[i], left_b[j])
            start_a, start_b = end_a + 1, end_b + 1

    # Ties ------------------------------------------------------------------------------------------------

    def _swap_equal_nodes(self) -> None:
        """Let nodes that compute the same swap matches, so that most of their readers' matches read their match."""
        place_a, place_b = self.round.a, self.round.b
        unmatched = group(
            (n for n in self.b.order if self.match_in_a[n] == NO_MATCH), lambda n: (place_b[n], self.b.up[n])
        )
        for number, equals in group(self.a.order, lambda n: (place_a[n], self.a.up[n])).items():
            free = unmatched.get(number, ())
            if len(equals) + len(free) > 1:
                self._swap(equals, free)

    def _swap(self, equals: Sequence[int], free: Sequence[int]) -> None:
        votes: dict[tuple[int, int | None], float] = defaultdict(float)
        for node, match, weight in self._find_votes(equals):
            votes[node, match] += weight
        pairs = [*((node, self.match_in_b[node]) for node in equals), *((NO_MATCH, node) for node in free)]
        for a, b in exchange_partners(pairs, votes):
            if a != NO_MATCH:
                self.match_in_b[a] = b
            if b != NO_MATCH:
                self.match_in_a[b] = a

    def _find_votes(self, equals: Sequence[int]) -> Iterator[tuple[int, int | None, float]]:
        """Yield for each use of an output the node of B that is used there, and what that says.

        A reader of several of these nodes is one node that may have changed: all its votes together count as one.
        """
        nodes = self.a.side.view.nodes
        own = {tensor for node in equals for tensor in nodes[node].outputs}
        weights: dict[int, float] = {}
        for node in equals:
            for position, tensor in enumerate(nodes[node].outputs):
                for reader, at in self.a.uses.get(tensor, ()):
                    match = self.match_in_b[reader]
                    inputs = () if match == NO_MATCH else self.b.side.view.nodes[match].inputs
                    if 0 <= at < len(inputs):
                        if reader not in weights:
                            weights[reader] = 1 / sum(t in own for t in nodes[reader].inputs)
                        yield node, self._find_maker(inputs[at], position), weights[reader]
                for _, of_b in self.outputs_by_a.get(tensor, ()):
                    yield node, self._find_maker(of_b, position), 1

    def _find_maker(self, tensor: int, position: int) -> int | None:
        """Return the node of B that makes a tensor as its output at a position."""
        is_made = tensor != NO_TENSOR and self.b.side.output_positions[tensor] == position
        return self.b.side.view.producers[tensor] if is_made else None


def _move_upstream(
    graph: NumberedGraph,
    matches: list[int],
    places: Sequence[Hashable],
    other: Side,
    matches_back: list[int],
    other_places: Sequence[Hashable],
) -> None:
    """Of two alike in a row, one of them matched, match the first, if others read it as they read the match.

    The readers of the second then read something that was put in between; those of the first could not.
    """
    side = graph.side
    for node in [n for n in reversed(graph.order) if matches[n] == NO_MATCH]:
        readers = [use for t in side.view.nodes[node].outputs for use in graph.uses.get(t, ())]
        feeders = {_find_feeder(other, matches[reader], position) for reader, position in readers}
        for follower, _ in readers:
            match = matches[follower]
            fits = match != NO_MATCH and match in feeders and places[node] == other_places[match]
            if fits and side.signatures[follower] == side.signatures[node]:
                matches[node], matches[follower], matches_back[match] = match, NO_MATCH, node
                break


def _find_feeder(side: Side, reader: int, position: int) -> int | None:
    """Return the node that feeds a reader at a position."""
    inputs = () if reader == NO_MATCH else side.view.nodes[reader].inputs
    tensor = inputs[position] if 0 <= position < len(inputs) else NO_TENSOR
    return None if tensor == NO_TENSOR else side.view.producers[tensor]
