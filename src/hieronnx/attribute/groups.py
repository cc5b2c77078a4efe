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

from hieronnx.attribute.order import Allowed, Claims, Order
from hieronnx.graph.operators import AFFINE_INPUTS, DATA_MOVEMENT_OPS, PRODUCT_OPS
from hieronnx.graph.view import View
from hieronnx.match.align.sequences import group
from hieronnx.match.kinds import is_related
from hieronnx.match.structure import Match, Matcher
from hieronnx.match.upstream import find_scaled, has_new_numbers

_NEARBY = 200
_MANY = 6
"""So many nodes in a row are given to the node that does what comes behind."""
_MOST = 64
"""More nodes of one operator are paired in turn."""
_TRIES = 2000
"""So many pairs are tried to find a way to pair nodes."""
_ROUNDS = 10
"""So often what was given to nodes is asked what it leaves to others."""


def divide_region(
    matcher: Matcher, match: Match, members: Sequence[int], region: Sequence[int], done: Claims
) -> tuple[Claims, Claims]:
    """Divide nodes of A, of a match's region, among nodes of B, of its group; `done` is what others of them do.

    Returns beside the claims for nodes of B those of A that they might have been given as well.
    """
    order = Order(matcher, {*match.region, *region, *(n for work in done.values() for n in work)}, match.group)
    claims = {member: _claim_by_parameters(matcher, member, region) for member in members}
    _claim_by_names(matcher, claims, region)
    for free, nodes in _group_alike(claims, region, *_key_readings(matcher, members, region, order)):
        if len(free) == len(nodes):
            claims.update((member, [node]) for member, node in zip(free, nodes, strict=True))
    known = {**done, **{member: list(claimed) for member, claimed in claims.items()}}
    paired, choices = _claim_by_operators(matcher, claims, region, order, known)
    _claim_before(matcher, claims, region)
    alone = _claim_alone(matcher, claims, region, order, known, paired)
    _claim_behind(matcher, claims, region, Allowed(order, {**done, **claims, **paired}))
    idle = [member for member, claimed in claims.items() if not claimed]
    if len(idle) == 1:  # what nobody else does is left for the one that seems to do nothing
        claims[idle[0]] = Allowed(order, {**done, **claims}).filter_shared(idle[0], _list_left(claims, region))
    for member in _find_unsure(matcher, claims, known, region, Allowed(order, {**known, **paired, **alone})):
        choices[member] = list(region)
    return claims, choices


def _list_left(claims: Claims, region: Sequence[int]) -> list[int]:
    """List the nodes of A that nobody claims."""
    taken = {n for claimed in claims.values() for n in claimed}
    return [n for n in region if n not in taken]


def _find_unsure(matcher: Matcher, claims: Claims, known: Claims, region: Sequence[int], allowed: Allowed) -> set[int]:
    """Find the nodes of B that may do more than they claim, which nobody does, or less: others could do it as well.

    A node does the work of one of its own operator, and what goes into its constants. What is `known` is nobody else's.
    """
    a, b = matcher.a, matcher.b
    computing = {m: own for m, own in claims.items() if b.nodes[m].op not in DATA_MOVEMENT_OPS}
    single = {m for m, own in computing.items() if len(own) == 1 and _does_own_operator(matcher, m, own)}
    guessed = {n: m for m, own in computing.items() if len(own) > 1 for n in own if n not in known.get(m, ())}
    left = [n for n in _list_left(claims, region) if a.nodes[n].op not in DATA_MOVEMENT_OPS]
    unsure: set[int] = set()
    for node, able in allowed.find_able(computing, [*left, *guessed]).items() if left or guessed else ():
        # What moves elements for one node is no reason to doubt another that does what it always did.
        moves = a.nodes[node].op in DATA_MOVEMENT_OPS
        able = [m for m in able if m not in single or (not moves and _may_do(matcher, m, claims[m], node))]
        # What nobody claims is rather the work of those that seem to do nothing.
        if able and (node in guessed or all(claims[member] for member in able)):
            unsure.update(able, [guessed[node]] if node in guessed else [])
    return unsure


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
    matcher: Matcher, members: Sequence[int], region: Sequence[int], order: Order
) -> tuple[dict[int, Hashable], dict[int, Hashable]]:
    """Key nodes by their operator, the fixed points that they read from outside the region, and whether they read more.

    None where they read no fixed point. More is what others compute; a fixed point in another form is not.
    """
    a, b, source, inside = matcher.a, matcher.b, matcher.values.source, set(region)
    computing_a = sum(1 << place for n, place in order.places.items() if a.nodes[n].op not in DATA_MOVEMENT_OPS)
    computing_b = sum(bit for member, bit in order.bits.items() if b.nodes[member].op not in DATA_MOVEMENT_OPS)

    def key(op: str, tensors: Iterable[int | None], needs: int) -> Hashable:
        read = frozenset(source[t] for t in tensors if t is not None and not a.flow.constant[t])
        return (op, read, needs > 0) if read else None

    outside = {n: (t for t in a.nodes[n].reads if a.producers[t] not in inside) for n in region}
    known = {m: (matcher.tensor_in_a[t] for t in b.nodes[m].reads) for m in members}
    return (
        {n: key(a.nodes[n].op, read, order.before[order.places[n]] & computing_a) for n, read in outside.items()},
        {m: key(b.nodes[m].op, read, order.upstream[m] & computing_b) for m, read in known.items()},
    )


def _group_alike(
    claims: Claims, region: Sequence[int], keys_a: Mapping[int, Hashable], keys_b: Mapping[int, Hashable]
) -> list[tuple[list[int], list[int]]]:
    """Return the nodes of B without a claim, with the unclaimed nodes of A that have the same key."""
    taken = {n for claimed in claims.values() for n in claimed}
    members = group(sorted(member for member, claimed in claims.items() if not claimed), keys_b.__getitem__)
    nodes = group((n for n in region if n not in taken), keys_a.__getitem__)
    return [(free, nodes[key]) for key, free in members.items() if key is not None and key in nodes]


def _claim_by_operators(
    matcher: Matcher, claims: Claims, region: Sequence[int], order: Order, known: Claims
) -> tuple[Claims, Claims]:
    """Claim nodes of A for those of B without a claim that are of the same operator; `known` is what others do.

    Those that are few come first: where they are says which of many is which. Returns what was paired one to one, and
    the nodes of A that those of B might have been given as well.
    """
    # The name of an operator without its domain: what a tool writes in its own does the same work.
    ops_a = {n: matcher.a.nodes[n].op.rpartition("::")[2] for n in region}
    ops_b = {member: matcher.b.nodes[member].op.rpartition("::")[2] for member in claims}
    first = certain = likely = Allowed(order, known)
    paired: Claims = {}
    choices: Claims = {}
    for free, nodes in sorted(_group_alike(claims, region, ops_a, ops_b), key=lambda pair: len(pair[1])):
        pairs, possible = _pair_in_order(matcher, free, nodes, order, likely)
        if not any(possible.values()):  # in the order of A nobody does it: a scale that was moved behind a product, say
            pairs, possible = {}, {member: first.filter_shared(member, nodes) for member in free}
            choices.update((member, list(region)) for member in free)
        claims.update(possible)
        if pairs:
            paired.update((member, [node]) for member, node in pairs.items())
            claims.update(paired)
            choices.update(_find_choices(matcher, free, nodes, order, certain, pairs))
            sure = {member: work for member, work in paired.items() if not choices[member]}
            certain, likely = Allowed(order, {**known, **sure}), Allowed(order, {**known, **paired})
    return paired, choices


def _pair_in_order(
    matcher: Matcher, members: Sequence[int], nodes: Sequence[int], order: Order, allowed: Allowed
) -> tuple[dict[int, int], Claims]:
    """Pair nodes of B with as many of A, those left out that can be none; else each may be what it can be.

    Weights and wiring say which is which; where they leave a choice, turn does. Returns the pairs, if there are any,
    and what each node of B can be.
    """
    merged = len(members) < len(nodes)  # one may do the work of several
    possible = {m: (allowed.filter_shared if merged else allowed.filter_possible)(m, nodes) for m in members}
    able = {member: possible[member] for member in members if possible[member]}
    if len(able) != len(nodes):
        return {}, possible
    fitting = _filter_fitting(matcher, able, nodes, order, allowed) if len(nodes) <= _MOST else {}
    pairs = _pair_by_wiring(fitting, order, iter(range(_TRIES))) if fitting else None
    pairs = pairs or dict(zip(able, nodes, strict=True))
    return (pairs if all(node in able[member] for member, node in pairs.items()) else {}), possible


def _find_choices(
    matcher: Matcher,
    members: Sequence[int],
    nodes: Sequence[int],
    order: Order,
    allowed: Allowed,
    pairs: Mapping[int, int],
) -> Claims:
    """Return for each node of B that was paired the other nodes of A with which it is in another way to pair them all.

    What only turn decided does not say which of them those are that come before or behind.
    """
    if len(nodes) > _MOST:
        return {member: [n for n in nodes if n != node] for member, node in pairs.items()}
    possible = {member: allowed.filter_possible(member, nodes) for member in members if member in pairs}
    fitting = _filter_fitting(matcher, possible, nodes, order, allowed)
    if not all(node in fitting[member] for member, node in pairs.items()):
        fitting = possible  # they do not even agree with what is certain: turn alone decided
    seen = {member: {node} for member, node in pairs.items()}
    tries = iter(range(_TRIES))
    for member in pairs:
        for node in fitting[member]:
            if node not in seen[member]:
                for other, same in (_pair_by_wiring({**fitting, member: [node]}, order, tries) or {}).items():
                    seen[other].add(same)
    if next(tries, None) is None:  # not all ways were tried
        seen = {member: {*nodes, *seen[member]} for member, nodes in fitting.items()}
    return {member: sorted(nodes - {pairs[member]}) for member, nodes in seen.items()}


def _filter_fitting(matcher: Matcher, possible: Claims, nodes: Sequence[int], order: Order, allowed: Allowed) -> Claims:
    """Keep of what nodes of B can be what has weights that they can hold, and a place among the others as theirs."""
    ranks_a, ranks_b = order.rank_nodes(nodes), order.rank_members(list(possible))
    return allowed.filter_fitting(
        {
            member: [
                n
                for n in able
                if all(map(le, ranks_a[n], ranks_b[member])) and matcher.kinds.can_hold_weights(member, n)
            ]
            for member, able in possible.items()
        }
    )


def _pair_by_wiring(fitting: Claims, order: Order, tries: Iterator[int]) -> dict[int, int] | None:
    """Pair nodes of B with as many of A that fit, so that each is made of what is made of the same others.

    Of several ways the first in turn; None where there is none, or none is found soon.
    """
    members, pairs, paired = list(fitting), dict[int, int](), 0
    left = [iter(fitting[members[0]])]
    while left:
        member = members[len(left) - 1]
        if member in pairs:
            paired ^= order.own[order.places[pairs.pop(member)]]
        for node in left[-1]:
            if paired & order.own[order.places[node]]:
                continue
            if next(tries, None) is None:
                return None
            if order.agree(member, node, pairs, paired):
                break
        else:
            left.pop()
            continue
        pairs[member] = node
        paired |= order.own[order.places[node]]
        if len(pairs) == len(members):
            return pairs
        left.append(iter(fitting[members[len(left)]]))
    return None


def _claim_alone(
    matcher: Matcher, claims: Claims, region: Sequence[int], order: Order, known: Claims, paired: Claims
) -> Claims:
    """Give unclaimed nodes of A to the one node of B that can do them: what joins two tensors must read both.

    What is given so says which side of it others are on: they may leave one node that can do them then. Returns all
    that is known of those to whom something was given.
    """
    left = [n for n in _list_left(claims, region) if matcher.a.nodes[n].op not in DATA_MOVEMENT_OPS]
    computing = [m for m in claims if matcher.b.nodes[m].op not in DATA_MOVEMENT_OPS]
    given: Claims = {}
    for _ in range(_ROUNDS):
        if not left:
            break
        able = Allowed(order, {**known, **claims, **paired}).find_able({m: claims[m] for m in computing}, left)
        willing = {n: [m for m in able[n] if _may_do(matcher, m, claims[m], n)] for n in left}
        sure = {n: members[0] for n, members in willing.items() if len(members) == 1}
        for node, member in sure.items():
            claims[member].append(node)
            given.setdefault(member, list(known.get(member, ()))).append(node)
        left = [n for n in left if n not in sure] if sure else []
    return given


def _claim_behind(matcher: Matcher, claims: Claims, region: Sequence[int], allowed: Allowed) -> None:
    """Give unclaimed nodes of A to the node of B that does the nearest work upstream, and could do theirs as well."""
    claimants = {n: member for member, claimed in claims.items() for n in claimed}
    left = _list_left(claims, region)
    able = allowed.find_able(claims, left) if left else {}
    for node in left:
        nearest = _find_nearest(matcher, node, claimants)
        if nearest in able[node] and _may_do(matcher, nearest, claims[nearest], node):
            claims[nearest].append(node)


def _may_do(matcher: Matcher, member: int, claimed: Sequence[int], node: int) -> bool:
    """Say whether a node of B may do the work of one more of A.

    One that is of the operator whose work it does takes over what moves elements, and what scales or shifts by
    constants if it has new ones to multiply or add: these go into them.
    """
    op = matcher.b.nodes[member].op
    if not _does_own_operator(matcher, member, claimed) or matcher.a.nodes[node].op in DATA_MOVEMENT_OPS:
        return True
    has_place = op in PRODUCT_OPS or op in AFFINE_INPUTS
    return has_place and find_scaled(matcher.a, node) is not None and has_new_numbers(matcher, member)


def _does_own_operator(matcher: Matcher, member: int, claimed: Sequence[int]) -> bool:
    """Say whether a node of B does the work of its very operator: what a tool writes in its own domain may do more."""
    return {matcher.a.nodes[n].op for n in claimed} == {matcher.b.nodes[member].op}


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
