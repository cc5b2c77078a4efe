"""What the order of the nodes of A says of a group of nodes of B: who can do which work, given what others do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from hieronnx.graph.view import View
from hieronnx.match.structure import Matcher

Claims: TypeAlias = dict[int, list[int]]
"""For each node of B the nodes of A whose work it may do; where two claim one node, it is open who does it."""


class Order:
    """Keeps claims of nodes of B on nodes of A in order: what needs the work of others in B needs it in A.

        A: q ─ Mul ─ s ─┐              B: q ─ t1 ─ Mul ─ t2 ─┐
           k ─ Mul ─ r ─┴─ MatMul         k ─ t3 ─ Mul ─ t4 ─┴─ MatMul

    If t1 is known to be made of q, the first Mul does the work of the one behind q. Of what a node does in A some must
    be behind it, for a node of B may do the work of several branches. If q is a fixed point, so is what is not made of
    it: the second Mul, which does not read q, does no work on it.

    A set of nodes of A is a number with a bit for the position of each in the region.
    """

    def __init__(self, matcher: Matcher, region: Iterable[int], members: Iterable[int]) -> None:
        a, b = matcher.a, matcher.b
        self._members, nodes = sorted(members), sorted(region)
        self._positions = {node: position for position, node in enumerate(nodes)}
        self._all = (1 << len(nodes)) - 1
        self._made = _find_made(matcher, nodes, self._members)
        """For each node of B the nodes of A that are made of no fixed point that it is not made of."""
        edges = _find_edges(a, nodes)
        self._own = [1 << position for position in range(len(nodes))]
        self._before = _collect(edges, self._own, or_, 0)
        self._after = _collect(_reverse(edges), self._own, or_, 0)
        self._edges = _find_edges(b, self._members)
        own = [1 << at for at in range(len(self._members))]
        self._needs = dict(zip(self._members, _collect(self._edges, own, or_, 0), strict=True))
        """For each node of B those that it needs, at whatever distance: a bit for the place of each."""
        self._bits = dict(zip(self._members, own, strict=True))
        self._claimed: list[tuple[int, int]] = []
        """The nodes of B that alone do the work of some of A, with these."""
        self._possible = dict(self._made)
        """For each node of B the nodes of A that do not come in the wrong order."""
        self._needed = dict.fromkeys(self._members, self._all)
        """And those that are behind all claims of those before it."""

    def add_claims(self, claims: Claims) -> None:
        """Forbid each node of B what comes in A before the claims of those before it, or after those of others.

        What it does needs the claims of those before it. Theirs need not need its: they may do more than is claimed.
        """
        claimants = Counter(n for nodes in claims.values() for n in nodes)
        claimed = [[self._positions[n] for n in claims.get(member, ())] for member in self._members]
        upstream = _collect(self._edges, [_join(self._before, at) for at in claimed], or_, 0)
        downstream = _collect(_reverse(self._edges), [_join(self._after, at) for at in claimed], or_, 0)
        behind = [_join(self._after, at) | _join(self._own, at) if at else self._all for at in claimed]
        needed = _collect(self._edges, behind, and_, self._all)
        for at, member in enumerate(self._members):
            self._possible[member] = self._made[member] & ~(upstream[at] | downstream[at])
            self._needed[member] = needed[at]
        self._claimed = [
            (member, _join(self._own, claimed[at]))
            for at, member in enumerate(self._members)
            if claimed[at] and all(claimants[n] == 1 for n in claims[member])
        ]

    def filter_possible(self, member: int, nodes: Iterable[int]) -> list[int]:
        """Return the nodes of A of which a node of B can do one."""
        possible = self._possible[member] & self._needed[member]
        return [node for node in nodes if possible >> self._positions[node] & 1]

    def rank_nodes(self, nodes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return for some nodes of A how many of them each needs, and how many need it."""
        positions = {node: self._positions[node] for node in nodes}
        among = _join(self._own, positions.values())
        return {
            node: ((self._before[at] & among).bit_count(), (self._after[at] & among).bit_count())
            for node, at in positions.items()
        }

    def rank_members(self, members: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return for some nodes of B how many of them each needs, and how many need it."""
        among = sum(self._bits[member] for member in members)
        needs = {member: self._needs[member] & among for member in members}
        return {
            member: (own.bit_count(), sum(bool(other & self._bits[member]) for other in needs.values()))
            for member, own in needs.items()
        }

    def fits(self, member: int, node: int) -> bool:
        """Say whether a node of B needs those that do work which one of A needs, and those need it that need its."""
        position = self._positions[node]
        before, after = self._before[position], self._after[position]
        return all(
            (not before & work or self._needs[member] & self._bits[other])
            and (not after & work or self._needs[other] & self._bits[member])
            for other, work in self._claimed
        )

    def agree(self, member: int, node: int, other: int, same: int) -> bool:
        """Say whether two nodes of B need one another where two of A do, whose work they would do."""
        position = self._positions[same]
        return bool(
            (not self._before[self._positions[node]] >> position & 1 or self._needs[member] & self._bits[other])
            and (not self._after[self._positions[node]] >> position & 1 or self._needs[other] & self._bits[member])
        )

    def filter_shared(self, member: int, nodes: Sequence[int]) -> list[int]:
        """Return the nodes of A all of which a node of B can do: one of them at least is where it must be."""
        possible = self._possible[member] if self.filter_possible(member, nodes) else 0
        return [node for node in nodes if possible >> self._positions[node] & 1]

    def find_alone(self, members: Collection[int], nodes: Sequence[int]) -> Claims:
        """Return for nodes of B those of some nodes of A that they can do, and no other of them can."""
        once = twice = 0
        masks = {member: self._possible[member] & self._needed[member] for member in members}
        for member in members:
            twice |= once & masks[member]
            once |= masks[member]
        alone = {member: mask & ~twice for member, mask in masks.items()}
        return {m: [n for n in nodes if mask >> self._positions[n] & 1] for m, mask in alone.items() if mask}

    def reads_enough(self, member: int, node: int) -> bool:
        """Say whether a node of B is made of all fixed points that one of A is made of."""
        return bool(self._made[member] >> self._positions[node] & 1)


def _find_edges(view: View, nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Return which of the nodes, given in order, feed which: pairs of their positions, in the order of the graph."""
    positions: dict[int | None, int] = {node: position for position, node in enumerate(nodes)}
    feeds = ((view.producers[t], position) for position, node in enumerate(nodes) for t in view.nodes[node].reads)
    return [(positions[producer], position) for producer, position in feeds if producer in positions]


def _find_made(matcher: Matcher, nodes: Sequence[int], members: Sequence[int]) -> dict[int, int]:
    """Find for each node of B the nodes of A that are made of no other fixed points than it: a bit for each.

    A fixed point has a bit as well, and the first one is for what B is made of that A does not know.
    """
    a, b, source, known = matcher.a, matcher.b, matcher.values.source, matcher.tensor_in_a
    bits: dict[int, int] = {}
    of_b: dict[int, int] = {}
    for member in members:
        of_b[member] = 0
        for tensor in (t for t in b.nodes[member].reads if not b.flow.constant[t]):
            same, producer = known[tensor], b.producers[tensor]
            if same is not None:
                of_b[member] |= bits.setdefault(source[same], 2 << len(bits))
            else:
                of_b[member] |= 1 if producer is None else of_b.get(producer, 1)
    of_a: dict[int, int] = {}
    made: dict[int, int] = {}
    for position, node in enumerate(nodes):
        of_a[node] = 0
        for tensor in (t for t in a.nodes[node].reads if not a.flow.constant[t]):
            producer = a.producers[tensor]
            of_a[node] |= bits.get(source[tensor]) or (0 if producer is None else of_a.get(producer, 0))
        made[of_a[node]] = made.get(of_a[node], 0) | 1 << position
    everything = reduce(or_, made.values(), 0)
    fitting = {
        points: everything if points & 1 else reduce(or_, (bit for own, bit in made.items() if not own & ~points), 0)
        for points in set(of_b.values())
    }
    return {member: fitting[of_b[member]] for member in members}


def _join(sets: Sequence[int], positions: Iterable[int]) -> int:
    return reduce(or_, (sets[position] for position in positions), 0)


def _reverse(edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(after, before) for before, after in sorted(edges, reverse=True)]


def _collect(
    edges: Iterable[tuple[int, int]], own: Sequence[int], join: Callable[[int, int], int], start: int
) -> list[int]:
    """Return for each position what those have together that come before it."""
    received = [start] * len(own)
    for giver, taker in edges:
        received[taker] = join(received[taker], join(received[giver], own[giver]))
    return received
