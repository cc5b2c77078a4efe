"""What the order of the nodes of A says of a group of nodes of B: who can do which work, given what others do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from hieronnx.graph.view import View
from hieronnx.match.structure import Matcher

Claims: TypeAlias = dict[int, list[int]]
"""For each node of B the nodes of A whose work it may do; where two claim one node, it is open who does it."""


class Order:
    """Knows which nodes of A need which others, and which of B: what needs the work of others in B needs it in A.

        A: q ─ Mul ─ s ─┐              B: q ─ t1 ─ Mul ─ t2 ─┐
           k ─ Mul ─ r ─┴─ MatMul         k ─ t3 ─ Mul ─ t4 ─┴─ MatMul

    If t1 is known to be made of q, the first Mul does the work of the one behind q. If q is a fixed point, then what is
    not made of it does no work on it: the second Mul.

    A set of nodes is a number with a bit for the place of each, of the region in A and of the group in B.
    """

    def __init__(self, matcher: Matcher, region: Iterable[int], members: Iterable[int]) -> None:
        self.members, nodes = sorted(members), sorted(region)
        self.places = {node: place for place, node in enumerate(nodes)}
        self.everything = (1 << len(nodes)) - 1
        self.made = _find_made(matcher, nodes, self.members)
        """For each node of B the nodes of A that are made of no fixed point that it is not made of."""
        self.edges_of_a = _find_edges(matcher.a, nodes)
        self.own = [1 << place for place in range(len(nodes))]
        self.before = _collect(self.edges_of_a, self.own, or_, 0)
        self.after = _collect(_reverse(self.edges_of_a), self.own, or_, 0)
        self.edges = _find_edges(matcher.b, self.members)
        own = [1 << place for place in range(len(self.members))]
        self.bits = dict(zip(self.members, own, strict=True))
        self.upstream = dict(zip(self.members, _collect(self.edges, own, or_, 0), strict=True))
        """For each node of B those that it needs, at whatever distance."""
        self.downstream = dict(zip(self.members, _collect(_reverse(self.edges), own, or_, 0), strict=True))
        """And those that need it."""

    def rank_nodes(self, nodes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return for some nodes of A how many of them each needs, and how many need it."""
        places = {node: self.places[node] for node in nodes}
        among = _join(self.own, places.values())
        return {
            node: ((self.before[at] & among).bit_count(), (self.after[at] & among).bit_count())
            for node, at in places.items()
        }

    def rank_members(self, members: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return for some nodes of B how many of them each needs, and how many need it."""
        among = sum(self.bits[member] for member in members)
        return {m: ((self.upstream[m] & among).bit_count(), (self.downstream[m] & among).bit_count()) for m in members}

    def agree(self, member: int, node: int, pairs: Mapping[int, int], paired: int) -> bool:
        """Say whether a node of B needs those of other pairs, and they it, where of A one needs the other.

        `paired` has a bit for the place of each node of A in the pairs.
        """
        before, after = (order[self.places[node]] for order in (self.before, self.after))
        if not (before | after) & paired:
            return True
        upstream, downstream = self.upstream[member], self.downstream[member]
        places = ((self.bits[other], self.places[same]) for other, same in pairs.items())
        return not any(
            (before >> place & 1 and not upstream & bit) or (after >> place & 1 and not downstream & bit)
            for bit, place in places
        )


class Allowed:
    """Knows which work claims of others leave to each node of B.

    What it does comes in A neither before the claims of those before it, nor after those of others. It needs the claims
    of those before it; theirs need not need its, for they may do more than is claimed. Of what it does some must be
    behind them, for a node of B may do the work of several branches.
    """

    def __init__(self, order: Order, claims: Claims) -> None:
        self._order = order
        claimed = [[order.places[n] for n in claims.get(member, ())] for member in order.members]
        upstream = _collect(order.edges, [_join(order.before, at) for at in claimed], or_, 0)
        downstream = _collect(_reverse(order.edges), [_join(order.after, at) for at in claimed], or_, 0)
        behind = [_join(order.after, at) | _join(order.own, at) if at else order.everything for at in claimed]
        needed = _collect(order.edges, behind, and_, order.everything)
        self._possible: dict[int, int] = {}
        """For each node of B the nodes of A that do not come in the wrong order."""
        self._needed = dict(zip(order.members, needed, strict=True))
        """And those that are behind all claims of those before it."""
        for place, member in enumerate(order.members):
            self._possible[member] = order.made[member] & ~(upstream[place] | downstream[place])
        alone = self._find_alone(claims)
        self._claimants_before = _collect(order.edges_of_a, alone, or_, 0)
        """For each place in A the nodes of B that alone do the work of some before it."""
        self._claimants_after = _collect(_reverse(order.edges_of_a), alone, or_, 0)
        """And behind it."""

    def _find_alone(self, claims: Claims) -> list[int]:
        """Return for each place in A the node of B that does the work there, if others do none of its work."""
        order, claimants = self._order, Counter(n for nodes in claims.values() for n in nodes)
        alone = [0] * len(order.own)
        for member in order.members:
            claimed = claims.get(member, ())
            if all(claimants[n] == 1 for n in claimed):
                for node in claimed:
                    alone[order.places[node]] = order.bits[member]
        return alone

    def filter_possible(self, member: int, nodes: Iterable[int]) -> list[int]:
        """Return the nodes of A of which a node of B can do one."""
        possible = self._possible[member] & self._needed[member]
        return [node for node in nodes if possible >> self._order.places[node] & 1]

    def filter_shared(self, member: int, nodes: Sequence[int]) -> list[int]:
        """Return the nodes of A all of which a node of B can do: one of them at least is where it must be."""
        possible = self._possible[member] if self.filter_possible(member, nodes) else 0
        return [node for node in nodes if possible >> self._order.places[node] & 1]

    def filter_fitting(self, candidates: Claims) -> Claims:
        """Keep what nodes of B can do that need those that do work which it needs; those need them that need it."""
        order = self._order
        fitting: Claims = {}
        for member, nodes in candidates.items():
            own = order.bits[member]
            elsewhere_before, elsewhere_after = ~(order.upstream[member] | own), ~(order.downstream[member] | own)
            places = ((node, order.places[node]) for node in nodes)
            fitting[member] = [
                node
                for node, at in places
                if not (self._claimants_before[at] & elsewhere_before or self._claimants_after[at] & elsewhere_after)
            ]
        return fitting

    def find_able(self, claims: Claims, nodes: Sequence[int]) -> dict[int, list[int]]:
        """Return for each of some nodes of A those of B that can do it, besides what they claim."""
        wanted = frozenset(nodes)
        candidates: Claims = {}
        for member, claimed in claims.items():
            left = wanted.difference(claimed)
            candidates[member] = [n for n in self.filter_shared(member, [*nodes, *claimed]) if n in left]
        able: dict[int, list[int]] = {node: [] for node in nodes}
        for member, found in self.filter_fitting(candidates).items():
            for node in found:
                able[node].append(member)
        return able


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


def _join(sets: Sequence[int], places: Iterable[int]) -> int:
    return reduce(or_, (sets[place] for place in places), 0)


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
