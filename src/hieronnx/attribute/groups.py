"""Dividing a region of A among a group of nodes of B that share it: which of them does which node's work.

    A: x ─ MatMul(w) ─ a ─ Add(bias) ─ b ─ Relu ─ y     B: x ─ Reshape ─ p ─ Gemm(w, bias) ─ g ─ Relu ─ q ─ Reshape ─ y

Gemm reads the parameters of MatMul and Add, so it does their work; Relu is the only Relu. Each rule leaves alone what
the rules before it gave away: parameters, then names of nodes, then what is read from outside the region, then
operators (in order: work that comes first in A does not come later in B, and what needs other work comes behind that),
then what comes right before a claim, then the nearest work upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from hieronnx.graph.operators import DATA_MOVEMENT_OPS
from hieronnx.graph.view import View
from hieronnx.match.align.sequences import group
from hieronnx.match.kinds import is_related
from hieronnx.match.structure import Match, Matcher

_NEARBY = 200
_MANY = 6
"""So many nodes are paired by trying all ways."""

Claims: TypeAlias = dict[int, list[int]]
"""For each node of B the nodes of A whose work it may do; where two claim one node, it is open who does it."""


def divide_region(
    matcher: Matcher, match: Match, members: Sequence[int], region: Sequence[int], done: Claims
) -> Claims:
    """Divide nodes of A, of a match's region, among nodes of B, of its group; `done` is what others of them do."""
    a, b = matcher.a, matcher.b
    order = _Order(matcher, {*match.region, *region, *(n for work in done.values() for n in work)}, match.group)
    claims = {member: _claim_by_parameters(matcher, member, region) for member in members}
    _claim_by_names(matcher, claims, region)
    for free, nodes in _group_alike(claims, region, *_key_readings(matcher, members, region)):
        if len(free) == len(nodes):
            claims.update((member, [node]) for member, node in zip(free, nodes, strict=True))
    order.add_claims({**done, **claims})
    # The name of an operator without its domain: what a tool writes in its own does the same work.
    types_a = {n: a.nodes[n].op.rpartition("::")[2] for n in region}
    types_b = {m: b.nodes[m].op.rpartition("::")[2] for m in members}
    for free, nodes in _group_alike(claims, region, types_a, types_b):
        claims.update(_claim_in_order(matcher, free, nodes, order))
    _claim_before(matcher, claims, region)
    order.add_claims({**done, **claims})
    _claim_alone(matcher, claims, region, order)
    _claim_behind(matcher, claims, region, order)
    idle = [member for member, claimed in claims.items() if not claimed]
    if len(idle) == 1:  # what nobody else does is left for the one that seems to do nothing
        order.add_claims({**done, **claims})
        claimed_by_others = {n for claimed in claims.values() for n in claimed}
        claims[idle[0]] = order.filter_shared(idle[0], [n for n in region if n not in claimed_by_others])
    return claims


def _claim_by_parameters(matcher: Matcher, member: int, region: Sequence[int]) -> list[int]:
    """Claim the nodes of A that read a parameter which the node of B reads."""
    node, constants = matcher.b.nodes[member], matcher.b.constants
    # What moves elements reads sizes and axes next to them; many share these.
    reads = node.inputs[:1] if node.op in DATA_MOVEMENT_OPS and node.op != "Concat" else node.reads
    parameters = {matcher.tensor_in_a[t] for t in reads if t in constants} - {None}
    if not parameters:
        return []
    return [n for n in region if parameters.intersection(matcher.a.nodes[n].reads)]


def _claim_by_names(matcher: Matcher, claims: Claims, region: Sequence[int]) -> None:
    """Claim the nodes of A that nodes of B are named after, where nobody else has a parameter of theirs."""
    taken = {n for claimed in claims.values() for n in claimed}
    for member, claimed in claims.items():
        named = matcher.kinds.named.get(member)
        if named is not None and named in region and named not in taken:
            claimed.append(named)


def _claim_before(matcher: Matcher, claims: Claims, region: Sequence[int]) -> None:
    """Give unclaimed nodes of A to the node of B that does what comes right behind.

    As far as a form of its own operator, or where it does all that is done with what they read::

        A: Conv ─ BatchNormalization ─ Relu ─ r                  B: Conv, which is named after r
        A: x ─┬─ Sigmoid ─ s ─ Mul ─ m, which reads x, too       B: QuickGelu, which is named after m
    """
    a = matcher.a
    free = set(region).difference(*claims.values())
    for member, claimed in claims.items():
        op, own, path = matcher.b.nodes[member].op, set(claimed), list[int]()
        while len(path) < _MANY and (before := _find_before(a, own, free)) is not None:
            own.add(before)
            path.append(before)
            is_first = is_related(a.nodes[before].op, op) and not any(is_related(a.nodes[n].op, op) for n in claimed)
            readers = {reader for tensor in a.nodes[before].makes for reader in a.consumers[tensor]}
            if is_first or all(set(a.nodes[before].reads) <= set(a.nodes[reader].reads) for reader in readers):
                claimed.extend(path)
                free.difference_update(path)
                path = []


def _find_before(a: View, own: Set[int], free: Set[int]) -> int | None:
    """Return the last of some free nodes that make what other nodes read, and nobody else does."""
    makers = {producer for n in own for t in a.nodes[n].reads if (producer := a.producers[t]) in free}
    alone = (
        n for n in makers - own if n is not None and all(r in own for t in a.nodes[n].makes for r in a.consumers[t])
    )
    return max(alone, default=None)


def _key_readings(
    matcher: Matcher, members: Sequence[int], region: Sequence[int]
) -> tuple[dict[int, Hashable], dict[int, Hashable]]:
    """Key nodes by their operator and the fixed points that they read from outside the region; None if by none."""
    a, b, source, inside = matcher.a, matcher.b, matcher.values.source, set(region)

    def key(op: str, tensors: Iterable[int | None]) -> Hashable:
        read = frozenset(source[t] for t in tensors if t is not None and not a.flow.constant[t])
        return (op, read) if read else None

    keys_a = {n: key(a.nodes[n].op, (t for t in a.nodes[n].reads if a.producers[t] not in inside)) for n in region}
    return keys_a, {m: key(b.nodes[m].op, (matcher.tensor_in_a[t] for t in b.nodes[m].reads)) for m in members}


def _group_alike(
    claims: Claims, region: Sequence[int], keys_a: Mapping[int, Hashable], keys_b: Mapping[int, Hashable]
) -> list[tuple[list[int], list[int]]]:
    """Return the nodes of B without a claim, with the unclaimed nodes of A that have the same key."""
    taken = {n for claimed in claims.values() for n in claimed}
    members = group(sorted(member for member, claimed in claims.items() if not claimed), keys_b.__getitem__)
    nodes = group((n for n in region if n not in taken), keys_a.__getitem__)
    return [(free, nodes[key]) for key, free in members.items() if key is not None and key in nodes]


def _claim_in_order(matcher: Matcher, members: Sequence[int], nodes: Sequence[int], order: _Order) -> Claims:
    """Pair nodes of B with as many of A, those left out that can be none; else each may be what it can be.

    They are paired in turn, unless weights and wiring say that it is another way.
    """
    merged = len(members) < len(nodes)  # one may do the work of several
    possible = {m: (order.filter_shared if merged else order.filter_possible)(m, nodes) for m in members}
    able = [member for member in members if possible[member]]
    if len(able) != len(nodes):
        return possible
    pairs = _pair_by_wiring(matcher, able, nodes, possible) or dict(zip(able, nodes, strict=True))
    if all(node in possible[member] for member, node in pairs.items()):
        return {**possible, **{member: [node] for member, node in pairs.items()}}
    return possible


def _pair_by_wiring(
    matcher: Matcher, members: Sequence[int], nodes: Sequence[int], possible: Claims
) -> dict[int, int] | None:
    """Pair nodes of B with as many of A, so that each has weights as large, and reads what is made of the same others.

    Of several ways the first in turn; None where there is none, or there are too many to try.
    """
    if len(nodes) > _MANY:
        return None
    needs_a, needs_b = _find_needs(matcher.a, nodes), _find_needs(matcher.b, members)

    def agree(member: int, node: int, pairs: Mapping[int, int]) -> bool:
        return all(
            (same not in needs_a[node] or other in needs_b[member])
            and (node not in needs_a[same] or member in needs_b[other])
            for other, same in pairs.items()
        )

    def search(pairs: dict[int, int]) -> dict[int, int] | None:
        if len(pairs) == len(members):
            return pairs
        member = members[len(pairs)]
        free = (n for n in possible[member] if n not in pairs.values())
        fitting = (n for n in free if matcher.kinds.can_hold_weights(member, n) and agree(member, n, pairs))
        return next((found for n in fitting if (found := search({**pairs, member: n})) is not None), None)

    return search({})


def _find_needs(view: View, nodes: Sequence[int]) -> dict[int, set[int]]:
    """Return for each of some nodes which others it needs, at whatever distance; what comes first needs none."""
    first, wanted = min(nodes), set(nodes)
    needs: dict[int, set[int]] = {}
    for node in nodes:
        pending, seen = [node], {node}
        for current in pending:
            producers = (view.producers[tensor] for tensor in view.nodes[current].reads)
            new = {p for p in producers if p is not None and p >= first} - seen
            seen |= new
            pending.extend(new)
        needs[node] = seen & wanted - {node}
    return needs


def _claim_alone(matcher: Matcher, claims: Claims, region: Sequence[int], order: _Order) -> None:
    """Give unclaimed nodes of A to the one node of B that can do them: what joins two tensors must read both."""
    taken = {n for claimed in claims.values() for n in claimed}
    computing = [n for n in region if n not in taken and matcher.a.nodes[n].op not in DATA_MOVEMENT_OPS]
    able = [member for member in claims if matcher.b.nodes[member].op not in DATA_MOVEMENT_OPS]
    for member, nodes in order.find_alone(able, computing).items():
        claims[member].extend(nodes)


def _claim_behind(matcher: Matcher, claims: Claims, region: Sequence[int], order: _Order) -> None:
    """Give unclaimed nodes of A to the node of B that does the nearest work upstream, and could do theirs as well."""
    claimants = {n: member for member, claimed in claims.items() for n in claimed}
    for node in (n for n in region if n not in claimants):
        nearest = _find_nearest(matcher, node, claimants)
        if nearest is not None and order.reads_enough(nearest, node):
            claims[nearest].append(node)


def _find_nearest(matcher: Matcher, node: int, claimants: Mapping[int, int]) -> int | None:
    a, b = matcher.a, matcher.b
    computes = a.nodes[node].op not in DATA_MOVEMENT_OPS
    pending, seen = [node], {node}
    for current in pending:
        for tensor in a.nodes[current].reads:
            producer = a.producers[tensor]
            claimant = None if producer is None else claimants.get(producer)
            if claimant is not None and not (computes and b.nodes[claimant].op in DATA_MOVEMENT_OPS):
                return claimant
            if producer is not None and producer not in seen and len(seen) < _NEARBY:
                seen.add(producer)
                pending.append(producer)
    return None


class _Order:
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
        self._possible = dict(self._made)
        """For each node of B the nodes of A that do not come in the wrong order."""
        self._needed = dict.fromkeys(self._members, self._all)
        """And those that are behind all claims of those before it."""

    def add_claims(self, claims: Claims) -> None:
        """Forbid each node of B what comes in A before the claims of those before it, or after those of others.

        What it does needs the claims of those before it. Theirs need not need its: they may do more than is claimed.
        """
        claimed = [[self._positions[n] for n in claims.get(member, ())] for member in self._members]
        upstream = _collect(self._edges, [_join(self._before, at) for at in claimed], or_, 0)
        downstream = _collect(_reverse(self._edges), [_join(self._after, at) for at in claimed], or_, 0)
        behind = [_join(self._after, at) | _join(self._own, at) if at else self._all for at in claimed]
        needed = _collect(self._edges, behind, and_, self._all)
        for at, member in enumerate(self._members):
            self._possible[member] = self._made[member] & ~(upstream[at] | downstream[at])
            self._needed[member] = needed[at]

    def filter_possible(self, member: int, nodes: Iterable[int]) -> list[int]:
        """Return the nodes of A of which a node of B can do one."""
        possible = self._possible[member] & self._needed[member]
        return [node for node in nodes if possible >> self._positions[node] & 1]

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
