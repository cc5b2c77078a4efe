"""Dividing a region of A among a group of nodes of B that share it: which of them does which node's work.

    A: x ─ MatMul(w) ─ a ─ Add(bias) ─ b ─ Relu ─ y     B: x ─ Reshape ─ p ─ Gemm(w, bias) ─ g ─ Relu ─ q ─ Reshape ─ y

Gemm reads the parameters of MatMul and Add, so it does their work; Relu is the only Relu. Each rule leaves alone what
the rules before it gave away: parameters, then names of nodes, then what is read from outside the region, then
operators (in order: work that comes first in A does not come later in B, and what needs other work comes behind that;
those that are few first), then what comes right before a claim, then the nearest work upstream. Where operators could
be paired in another way as well, which changes a node's call, the claim is not proven.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from operator import le

from hieronnx.attribute.order import Claims, Order
from hieronnx.graph.operators import DATA_MOVEMENT_OPS
from hieronnx.graph.view import View
from hieronnx.match.align.sequences import group
from hieronnx.match.kinds import is_related
from hieronnx.match.structure import Match, Matcher

_NEARBY = 200
_MANY = 6
"""So many nodes in a row are given to the node that does what comes behind."""
_TRIES = 2000
"""So many pairs are tried to find a way to pair nodes."""


def divide_region(
    matcher: Matcher, match: Match, members: Sequence[int], region: Sequence[int], done: Claims
) -> tuple[Claims, Claims]:
    """Divide nodes of A, of a match's region, among nodes of B, of its group; `done` is what others of them do.

    Returns beside the claims for nodes of B those of A that they might have been given as well.
    """
    a, b = matcher.a, matcher.b
    order = Order(matcher, {*match.region, *region, *(n for work in done.values() for n in work)}, match.group)
    claims = {member: _claim_by_parameters(matcher, member, region) for member in members}
    _claim_by_names(matcher, claims, region)
    for free, nodes in _group_alike(claims, region, *_key_readings(matcher, members, region)):
        if len(free) == len(nodes):
            claims.update((member, [node]) for member, node in zip(free, nodes, strict=True))
    order.add_claims({**done, **claims})
    choices: Claims = {}
    # The name of an operator without its domain: what a tool writes in its own does the same work.
    types_a = {n: a.nodes[n].op.rpartition("::")[2] for n in region}
    types_b = {m: b.nodes[m].op.rpartition("::")[2] for m in members}
    # Those that are few first: where they are says which of many is which.
    for free, nodes in sorted(_group_alike(claims, region, types_a, types_b), key=lambda pair: len(pair[1])):
        paired, open_to = _claim_in_order(matcher, free, nodes, order)
        claims.update(paired)
        choices.update(open_to)
        order.add_claims({**done, **claims})
    _claim_before(matcher, claims, region)
    order.add_claims({**done, **claims})
    _claim_alone(matcher, claims, region, order)
    _claim_behind(matcher, claims, region, order)
    idle = [member for member, claimed in claims.items() if not claimed]
    if len(idle) == 1:  # what nobody else does is left for the one that seems to do nothing
        order.add_claims({**done, **claims})
        claimed_by_others = {n for claimed in claims.values() for n in claimed}
        claims[idle[0]] = order.filter_shared(idle[0], [n for n in region if n not in claimed_by_others])
    return claims, choices


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


def _claim_in_order(
    matcher: Matcher, members: Sequence[int], nodes: Sequence[int], order: Order
) -> tuple[Claims, Claims]:
    """Pair nodes of B with as many of A, those left out that can be none; else each may be what it can be.

    Weights and wiring say which is which; where they leave a choice, turn does. Returns beside the claims the nodes
    of A that might be claimed as well.
    """
    merged = len(members) < len(nodes)  # one may do the work of several
    possible = {m: (order.filter_shared if merged else order.filter_possible)(m, nodes) for m in members}
    able = [member for member in members if possible[member]]
    if len(able) != len(nodes):
        return possible, {}
    ranks_a, ranks_b = order.rank_nodes(nodes), order.rank_members(able)
    fitting = {
        member: [
            n
            for n in possible[member]
            if all(map(le, ranks_a[n], ranks_b[member]))
            and matcher.kinds.can_hold_weights(member, n)
            and order.fits(member, n)
        ]
        for member in able
    }
    pairs = _pair_by_wiring(fitting, order, iter(range(_TRIES)))
    choices = fitting if pairs else possible
    pairs = pairs or dict(zip(able, nodes, strict=True))
    if any(node not in possible[member] for member, node in pairs.items()):
        return possible, {}
    claims = {**possible, **{member: [node] for member, node in pairs.items()}}
    others = {member: [n for n in choices[member] if n != node] for member, node in pairs.items()}
    tries = iter(range(_TRIES))
    open_to = {m: [n for n in left if _pair_by_wiring({**choices, m: [n]}, order, tries)] for m, left in others.items()}
    return claims, open_to if next(tries, None) is not None else others


def _pair_by_wiring(fitting: Claims, order: Order, tries: Iterator[int]) -> dict[int, int] | None:
    """Pair nodes of B with as many of A that fit, so that each is made of what is made of the same others.

    Of several ways the first in turn; None where there is none, or none is found soon.
    """
    members = list(fitting)

    def search(pairs: dict[int, int]) -> dict[int, int] | None:
        if len(pairs) == len(members):
            return pairs
        member = members[len(pairs)]
        for node in fitting[member]:
            if node in pairs.values() or next(tries, None) is None:
                continue
            if all(order.agree(member, node, other, same) for other, same in pairs.items()):
                found = search({**pairs, member: node})
                if found is not None:
                    return found
        return None

    return search({})


def _claim_alone(matcher: Matcher, claims: Claims, region: Sequence[int], order: Order) -> None:
    """Give unclaimed nodes of A to the one node of B that can do them: what joins two tensors must read both."""
    taken = {n for claimed in claims.values() for n in claimed}
    computing = [n for n in region if n not in taken and matcher.a.nodes[n].op not in DATA_MOVEMENT_OPS]
    able = [member for member in claims if matcher.b.nodes[member].op not in DATA_MOVEMENT_OPS]
    for member, nodes in order.find_alone(able, computing).items():
        claims[member].extend(nodes)


def _claim_behind(matcher: Matcher, claims: Claims, region: Sequence[int], order: Order) -> None:
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
