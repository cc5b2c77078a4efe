"""Matching a node of B with one of A that reads the same and is an operator of the same kind: `QLinearConv`, `Conv`.

For tools that write new operators for old ones and give every tensor on the way a new name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cached_property

from hieronnx.graph.operators import DATA_MOVEMENT_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import NO_TENSOR, View

_MOST = 64  # nodes that read the same; more are not looked at
_GATE = 3  # tensors on the way from a value to the gate that it is multiplied with
_MOVES = 2  # nodes that may move a value before it is read
_LONGEST = 6  # nodes that may have gone into one, or that hand a tensor on one after the other


class OperatorKinds:
    """Finds nodes of A by what they read and by the kind of their operator."""

    def __init__(self, a: View, b: View, values: Values, constant_b: Sequence[bool]) -> None:
        self._a, self._b, self._values, self._constant_b = a, b, values, constant_b
        self._new: dict[str, bool] = {}

    @cached_property
    def _operators(self) -> set[str]:
        return {node.op for node in self._a.nodes}

    @cached_property
    def _by_reading(self) -> dict[Hashable, list[int]]:
        found: dict[Hashable, list[int]] = defaultdict(list)
        for index, node in enumerate(self._a.nodes):
            read = self._values_read(index)
            if read and node.passes_on is None and not node.bodies:
                found[node.graph, frozenset(self._values.source[t] for t in read)].append(index)
        return found

    @cached_property
    def _readers_a(self) -> list[list[int]]:
        return self._a.consumers

    @cached_property
    def _readers_b(self) -> list[list[int]]:
        return self._b.consumers

    def _values_read(self, node: int) -> list[int]:
        return [t for t in self._a.nodes[node].reads if not self._values.constant[t]]

    def find(
        self, index: int, graph: int, read: Sequence[int], is_free: Callable[[int], bool]
    ) -> tuple[tuple[int, ...], bool] | None:
        """Find the nodes of A that a node of B stands for, the maker of its output last, and whether that is sure.

        Args:
            index: The node of B.
            graph: The graph of A to look in.
            read: The tensors of A that the node of B reads, constants left out.
            is_free: Whether nothing of B stands for a node of A yet.
        """
        sources = frozenset(self._values.source[t] for t in read)
        reading = self._by_reading.get((graph, sources), [])
        if len(reading) > _MOST:
            return None
        op = self._b.nodes[index].op
        related = self._find_starts(op, graph, [sources])
        joining = [] if related else self._find_starts(op, graph, [frozenset((s,)) for s in sorted(sources)])
        starts = [start for start in related or joining if all(map(is_free, start))]
        if not starts and self._is_new(op):
            starts = [()]
        fitting = [region for start in starts if (region := self._grow(index, start, read, is_free)) is not None]
        if len(fitting) == 1:
            return fitting[0], True
        # Not even their order tells which it is, if there are not as many in B.
        return (fitting[0], False) if fitting and len(related) == self._count_alike(index) else None

    def _find_starts(self, op: str, graph: int, reading: Iterable[frozenset[int]]) -> list[tuple[int, ...]]:
        """Find the nodes of A of an operator's kind that read some values, also behind nodes that only move them."""
        starts: list[tuple[int, ...]] = [
            (n,) for values in reading for n in self._by_reading.get((graph, values), [])[:_MOST]
        ]
        found = []
        for start in starts:
            while not _is_related(self._a.nodes[start[-1]].op, op):
                behind = self._find_behind_move(start[-1])
                if behind is None or len(start) > _MOVES:
                    break
                start = (*start, behind)
            else:
                found.append(start)
        return found

    def _find_behind_move(self, node: int) -> int | None:
        """Return the one node of A that reads what a node only moves."""
        if self._a.nodes[node].op not in DATA_MOVEMENT_OPS or len(self._values_read(node)) != 1:
            return None
        readers = self._readers_a[self._a.nodes[node].outputs[0]]
        return readers[0] if len(readers) == 1 else None

    def _is_new(self, op: str) -> bool:
        """Say whether no operator of A is of this kind: a tool wrote it for several."""
        if op not in self._new:
            self._new[op] = not any(_is_related(op, other) for other in self._operators)
        return self._new[op]

    def _count_alike(self, index: int) -> int:
        """Count the nodes of B with the operator of this one that read what it reads."""
        node = self._b.nodes[index]
        first = next(t for t in node.inputs if t != NO_TENSOR)
        return sum(self._b.nodes[reader].op == node.op for reader in set(self._readers_b[first]))

    def _grow(
        self, index: int, start: tuple[int, ...], read: Sequence[int], is_free: Callable[[int], bool]
    ) -> tuple[int, ...] | None:
        """Add to nodes of A those behind that B has nowhere, until what reads their one result is what B has there.

        Returns None where that is never so: the node of B does something else.
        """
        op = self._b.nodes[index].op
        wanted = self._find_wanted(self._b.nodes[index].outputs[0])
        region, given = list(start), {self._values.source[t] for t in read}
        inside = {self._values.source[t] for n in start for t in self._a.nodes[n].outputs if t != NO_TENSOR}
        while wanted and len(region) < _LONGEST:
            open_ = self._find_open(region)
            taken = {self._values.source[t] for n in region for t in self._values_read(n)}
            if len(open_) == 1 and given <= taken and self._fits(next(iter(open_)), wanted, inside | given):
                return tuple(region)
            candidates = {r for t in (open_ or read) for r in self._readers_a[t] if r not in region}
            if any(_is_related(self._a.nodes[r].op, op) for r in candidates):
                return None  # one node does not do the work of two such
            ready = [
                n
                for n in candidates
                if is_free(n) and all(self._values.source[t] in inside | given for t in self._values_read(n))
            ]
            if not ready or len(candidates) > _LONGEST:
                return None
            region.append(min(ready))
            inside.update(self._values.source[t] for t in self._a.nodes[region[-1]].outputs if t != NO_TENSOR)
        return None

    def _find_open(self, region: Sequence[int]) -> dict[int, None]:
        """Return the tensors that nodes of A make and others read."""
        made = (t for n in region for t in self._a.nodes[n].outputs if t != NO_TENSOR)
        return {t: None for t in made if any(reader not in region for reader in self._readers_a[t])}

    def _find_wanted(self, tensor: int) -> list[tuple[int, int]]:
        """Return who reads a tensor of B, each with how many values a node of A must read to be such a reader."""
        readers, handed = _look_through(self._b, self._readers_b, tensor)
        names = {tensor, *handed}
        # What is read next to the first input may be what another node of A joined to it.
        return [(r, 1 if self._b.nodes[r].inputs[0] in names else self._count_values(r)) for r in readers]

    def _fits(self, tensor: int, wanted: Sequence[tuple[int, int]], own: Collection[int]) -> bool:
        """Say whether a tensor of A is read as one of B is: by operators of the same kind, or joined with others."""
        readers = _look_through(self._a, self._readers_a, tensor)[0]
        behind = [found for reader in readers if (found := self._find_behind_move(reader)) is not None]
        kinds = {(self._a.nodes[reader].op, len(self._values_read(reader))) for reader in (*readers, *behind)}
        forks = len(readers) > 1
        others = {t for reader in readers for t in self._values_read(reader) if self._values.source[t] not in own}
        joins = not all(self._is_made_of(t, self._values.source[tensor]) for t in others)
        for reader, least in wanted:
            op = self._b.nodes[reader].op
            if any(_is_related(kind, op) and count >= least for kind, count in kinds):
                continue
            if not (joins and self._count_values(reader) > 1) and not (forks and self._is_new(op)):
                return False
        return True

    def _is_made_of(self, tensor: int, source: int) -> bool:
        """Say whether a tensor of A is computed from one value alone, within a few nodes."""
        pending, seen = [tensor], {tensor}
        for current in pending:
            producer = self._a.producers[current]
            if producer is None or len(seen) > _GATE:
                return False
            new = {t for t in self._values_read(producer) if self._values.source[t] != source} - seen
            seen |= new
            pending.extend(sorted(new))
        return True

    def _count_values(self, index: int) -> int:
        """Count the values that a node of B reads."""
        return len({t for t in self._b.nodes[index].reads if not self._constant_b[t]})

    def find_alike(self, node: int) -> list[int]:
        """Return the nodes of A with the operator of one that read what it reads, itself among them."""
        graph, op = self._a.nodes[node].graph, self._a.nodes[node].op
        sources = frozenset(self._values.source[t] for t in self._values_read(node))
        alike = self._by_reading.get((graph, sources), [])
        return [n for n in alike if self._a.nodes[n].op == op] if len(alike) <= _MOST else []

    def is_unread(self, tensor: int) -> bool:
        """Say whether nobody reads a tensor of B."""
        return not self._readers_b[tensor]

    def is_handed_on_as(self, index: int, is_known: Callable[[int], bool]) -> bool:
        """Say whether a node of B makes what is known further on, in another type or layout."""
        _, handed = _look_through(self._b, self._readers_b, self._b.nodes[index].outputs[0])
        return any(is_known(tensor) for tensor in handed)


def _look_through(view: View, readers: Sequence[Sequence[int]], tensor: int) -> tuple[list[int], list[int]]:
    """Return the nodes that read a tensor, also where it was handed on, and the tensors that it was handed on as."""
    found: list[int] = []
    handed = [tensor]
    for current in handed:
        for reader in readers[current]:
            node = view.nodes[reader]
            if node.passes_on == current and len(handed) <= _LONGEST:
                handed.append(node.outputs[0])
            else:
                found.append(reader)
    return found, handed[1:]


def _is_related(op: str, other: str) -> bool:
    """Say whether one operator is a form of the other, as names tell: `Conv`, `FusedConv`, `QLinearConv`."""
    a, b = op.rpartition("::")[2], other.rpartition("::")[2]
    return a in b or b in a
