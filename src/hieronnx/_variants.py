"""Matching a node of B with one of A that reads the same and is an operator of the same kind: `QLinearConv`, `Conv`.

For tools that write new operators for old ones and give every tensor on the way a new name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

from hieronnx._values import Values, hands_on
from hieronnx.graph import NO_TENSOR, View

__all__ = ["Variants"]

_MOST = 64  # nodes that read the same; more are not looked at
_LONGEST = 6  # nodes that may have gone into one, or that hand a tensor on one after the other


class Variants:
    """Finds nodes of A by what they read and by the kind of their operator."""

    def __init__(self, a: View, b: View, values: Values) -> None:
        self._a, self._b, self._values = a, b, values

    @cached_property
    def _by_reading(self) -> dict[Hashable, list[int]]:
        found: dict[Hashable, list[int]] = defaultdict(list)
        for index, node in enumerate(self._a.nodes):
            read = self._values_read(index)
            if read and hands_on(node) is None and not node.bodies:
                found[node.graph, frozenset(self._values.source[t] for t in read)].append(index)
        return found

    @cached_property
    def _readers_a(self) -> list[list[int]]:
        return self._a.consumers()

    @cached_property
    def _readers_b(self) -> list[list[int]]:
        return self._b.consumers()

    def _values_read(self, node: int) -> list[int]:
        return [t for t in self._a.reads(node) if not self._values.constant[t]]

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
        key = graph, frozenset(self._values.source[t] for t in read)
        op = self._b.nodes[index].op
        reading = self._by_reading.get(key, [])
        if len(reading) > _MOST:
            return None
        related = [n for n in reading if _is_related(self._a.nodes[n].op, op)]
        free = [n for n in related if is_free(n)]
        fitting = [region for node in free if (region := self._absorb(index, node)) is not None]
        if len(fitting) == 1:
            return fitting[0], True
        # Not even their order tells which it is, if there are not as many in B.
        return (fitting[0], False) if fitting and len(related) == self._count_alike(index) else None

    def _count_alike(self, index: int) -> int:
        """Count the nodes of B with the operator of this one that read what it reads."""
        node = self._b.nodes[index]
        first = next(t for t in node.inputs if t != NO_TENSOR)
        return sum(self._b.nodes[reader].op == node.op for reader in set(self._readers_b[first]))

    def _absorb(self, index: int, node: int) -> tuple[int, ...] | None:
        """Add to a node of A those behind it that B has nowhere, until what reads the output is what B has there.

        Returns None where that is never so: the node of B does something else.
        """
        wanted = _find_kinds(self._b, self._readers_b, self._b.nodes[index].outputs[0])
        region = [node]
        while wanted and len(region) < _LONGEST:
            output = self._a.nodes[region[-1]].outputs[0]
            present = _find_kinds(self._a, self._readers_a, output)
            if all(any(_is_related(kind, other) for kind in present) for other in wanted):
                return tuple(region)
            readers = self._readers_a[output]
            if len(readers) != 1 or len(self._values_read(readers[0])) != 1:
                break
            region.append(readers[0])
        return None

    def is_handed_on_as(self, index: int, is_known: Callable[[int], bool]) -> bool:
        """Say whether a node of B makes what is known further on, in another type or layout."""
        _, handed = _look_through(self._b, self._readers_b, self._b.nodes[index].outputs[0])
        return any(is_known(tensor) for tensor in handed)


def _find_kinds(view: View, readers: Sequence[Sequence[int]], tensor: int) -> set[str]:
    """Return the operators that read a tensor, seen through what only hands it on."""
    return {view.nodes[reader].op for reader in _look_through(view, readers, tensor)[0]}


def _look_through(view: View, readers: Sequence[Sequence[int]], tensor: int) -> tuple[list[int], list[int]]:
    """Return the nodes that read a tensor, also where it was handed on, and the tensors that it was handed on as."""
    found: list[int] = []
    handed = [tensor]
    for current in handed:
        for reader in readers[current]:
            node = view.nodes[reader]
            if hands_on(node) == current and len(handed) <= _LONGEST:
                handed.append(node.outputs[0])
            else:
                found.append(reader)
    return found, handed[1:]


def _is_related(op: str, other: str) -> bool:
    """Say whether one operator is a form of the other, as names tell: `Conv`, `FusedConv`, `QLinearConv`."""
    a, b = op.rpartition("::")[2], other.rpartition("::")[2]
    return a in b or b in a
