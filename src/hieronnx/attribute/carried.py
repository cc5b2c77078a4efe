"""Carrying a hierarchy through a graph transformation: from graph A and its scopes to graph B.

The rule, for each node of B: find the nodes of A whose work it does. Tensors that both graphs have (by name,
checked by what they are computed from; or by structure, where a tool renamed them) are fixed points. A node
of B stands for the region of A between the fixed points that it reads and those that it makes:

- one node of A: its scope;
- several: their scopes are the origins, and the lowest call above them all is the scope;
- equal computations of A that B has only once: every copy is an origin of the one that is left.

Nodes of B whose own tensors A does not know are taken together with the node that they feed, and share its
region; inside such a group the parameters that a node reads decide first, then its operator.

Nothing here knows of torch, of files or of a particular optimizer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hieronnx.attribute.order import Order
from hieronnx.graph.operators import DATA_MOVEMENT_OPS, QUANTIZE_OPS
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.match.constants import pair_constants
from hieronnx.match.structure import Match, Matcher
from hieronnx.match.tensors import map_tensors

_NEARBY = 200
# A node that may do the work of more calls than this does not do the work of all.
_MANY = 8

_Form: TypeAlias = Callable[[int], Hashable]


@dataclass(frozen=True, slots=True)
class Folded:
    """What an initializer was computed from: the calls that did it, and the initializers that it holds."""

    origins: tuple[CallId, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """What carry found of B.

    Attributes:
        nodes: the attribution of each node of B, None where nothing says what it stands for.
        initializers: what those of B were computed from.
        tensors: for each tensor of A the tensor of B that holds its value; None where that is not known.
    """

    nodes: list[Attribution | None]
    initializers: dict[int, Folded]
    tensors: list[int | None]


def carry_scopes(
    a: View,
    scopes: Sequence[Attribution | None],
    b: View,
    tree: CallTree,
    known: Mapping[int, int] | None = None,
) -> Carried:
    """Attribute the nodes of B from those of A.

    Args:
        a: The graph before.
        scopes: The attribution of each of A's nodes; None where it has none.
        b: The graph after.
        tree: The calls.
        known: Tensors of B that are known to be tensors of A, whatever their names.
    """
    matcher = Matcher(a, b, known)
    matcher.run()
    nodes = _Attributor(a, scopes, tree, matcher).run()
    return Carried(nodes, _find_folded(a, scopes, matcher), map_tensors(matcher))


class _Attributor:
    """Turns the regions that were matched into scopes and origins."""

    def __init__(self, a: View, scopes: Sequence[Attribution | None], tree: CallTree, matcher: Matcher) -> None:
        self._a, self._scopes, self._tree, self._matcher = a, scopes, tree, matcher
        self._merged = self._find_merged()
        self._work: dict[int, Sequence[int]] = {}
        """The nodes of A whose work a node of B was found to do."""

    def run(self) -> list[Attribution | None]:
        """Attribute every node of B that has a match, or that shares one, or that hands on what others make."""
        shares: dict[int, list[Attribution]] = defaultdict(list)
        for index, match in self._matcher.match.items():
            if not match.group:
                self._work[index] = self._core(match.region)
                self._add(shares, index, self._attribute(index, self._work[index], match.proven))
        for index, match in self._matcher.match.items():
            if match.group:
                self._divide(index, match, shares)
        found = [self._join(shares.get(index, ())) for index in range(len(self._matcher.b.nodes))]
        for index, twin in pair_constants(self._matcher, self._work).items():
            found[index] = found[index] or self._attribute(index, [twin], True)
        self._attribute_handed(found)
        return found

    def _add(self, shares: dict[int, list[Attribution]], index: int, share: Attribution | None) -> None:
        if share is not None:
            shares[index].append(share)

    def _join(self, shares: Sequence[Attribution]) -> Attribution | None:
        """Join the work that a node does for several others."""
        if len(shares) < 2:
            return next(iter(shares), None)
        evidence = "carried" if all(share.evidence == "carried" for share in shares) else "dataflow"
        return self._tree.join(shares, evidence)

    def _attribute_handed(self, found: list[Attribution | None]) -> None:
        """Give inserted nodes to the calls that made what they hand on; what no call made, to those that read it.

        What quantizes serves those who compute with the quantized numbers, unless they are only turned back.
        """
        b, handed = self._matcher.b, self._matcher.handed
        consumers = b.consumers if handed else []
        for index in reversed(handed):
            node = b.nodes[index]
            readers = [r for t in node.outputs if t != NO_TENSOR for r in consumers[t]]
            serves = node.op in QUANTIZE_OPS and readers and not any(r in handed for r in readers)
            made = None if serves else self._made_by(index, handed[index])
            if made is not None:
                found[index] = Attribution(made.scope, made.origins, "dataflow", "handed on")
                continue
            reading = [found[r] for r in readers]
            if any(reading):
                served = self._tree.join((reader for reader in reading if reader is not None), "dataflow")
                origins = served.origins if len(served.origins) <= _MANY else (served.scope,)
                found[index] = Attribution(served.scope, origins, "dataflow", "consumers")

    def _made_by(self, index: int, tensor: int | None) -> Attribution | None:
        """Return who computed a tensor of A; None for inputs, parameters and constants."""
        producer = None if tensor is None else self._a.producers[tensor]
        if producer is None or self._a.nodes[producer].op == "Constant":
            return None
        return self._attribute(index, self._core([producer]), False)

    def _core(self, region: Sequence[int]) -> list[int]:
        """Leave out of a region what adds no origin: constants, shapes and copies, unless there is nothing else."""
        a, values = self._a, self._matcher.values
        attributed = [n for n in region if self._scopes[n] is not None]
        made = {n: [t for t in a.nodes[n].outputs if t != NO_TENSOR] for n in attributed}
        computed = [n for n in attributed if not all(values.constant[t] for t in made[n])]
        working = [n for n in computed if not values.is_copy(a.nodes[n])]
        measured = [n for n in attributed if not all(values.literal[t] for t in made[n])]
        return working or computed or measured or attributed

    def _attribute(self, index: int, core: Sequence[int], proven: bool) -> Attribution | None:
        if not core:
            return None
        own = [scope for n in core if (scope := self._scopes[n]) is not None]
        joined = self._tree.join(own, "carried" if proven else "name")
        untouched = proven and len(core) == 1 and self._a.nodes[core[0]].op == self._matcher.b.nodes[index].op
        evidence, rule = (own[0].evidence, own[0].rule) if untouched else (joined.evidence, "")
        copies = [origin for n in core for origin in self._merged.get(n, ())]
        origins = tuple(dict.fromkeys((*joined.origins, *copies)))
        return Attribution(joined.scope, origins, evidence, rule)

    def _divide(self, last: int, match: Match, shares: dict[int, list[Attribution]]) -> None:
        """Divide a region among the nodes of a group: each takes what it can be seen to do."""
        core = self._core([*match.region, *self._find_unread(match)])
        own = [] if match.altered else [n for n in core if self._makes(n, last)]
        rest = [n for n in core if n not in own]
        others = [n for n in match.group if n != last]
        # A member that feeds another group may have its work in this region already.
        done = {member: [n for n in self._work.get(member, ()) if n in rest] for member in others}
        taken = {n for work in done.values() for n in work}
        left = [n for n in rest if n not in taken] or rest
        free = [member for member in others if not done[member]]
        sharing = free if own else [*free, last]
        order = Order(self._a, left, self._matcher.b, sharing)
        claims = self._share(sharing, left, order)
        idle = [node for node, claimed in claims.items() if not claimed]
        if len(idle) == 1:  # what nobody else does is left for the one who seems to do nothing
            claimed_by_others = {n for claimed in claims.values() for n in claimed}
            order.note(claims)
            claims[idle[0]] = order.keep_allowed(idle[0], [n for n in left if n not in claimed_by_others])
        claims.setdefault(last, own)
        claimants = Counter(n for claimed in claims.values() for n in claimed)
        for node, claimed in claims.items():
            alone = all(claimants[n] == 1 for n in claimed)
            share = self._attribute(node, claimed, match.proven) if alone else None
            if node == last and not claimed and self._only_moves(last):
                share = self._attribute(node, [n for n in core if self._makes(n, last)], match.proven)
            if share is None:
                share = self._share_whole(node, core if node == last else rest or core, match, node == last)
            self._work[node] = [*self._work.get(node, ()), *claimed]
            self._add(shares, node, share)

    def _find_unread(self, match: Match) -> list[int]:
        """Find the nodes of A that a tool merged with one of a region, though nobody reads their part any more."""
        b, variants = self._matcher.b, self._matcher.variants
        for split in (b.nodes[n] for n in match.group if b.nodes[n].op == "Split"):
            if any(t != NO_TENSOR and variants.is_unread(t) for t in split.outputs):
                for node in match.region:
                    alike = variants.find_alike(node)
                    if len(alike) == len(split.outputs):
                        return [n for n in alike if n not in match.region]
        return []

    def _share_whole(self, node: int, core: Sequence[int], match: Match, is_last: bool) -> Attribution | None:
        """Give a node of a group that cannot be told from the others the work of all; of a large group, its place."""
        whole = self._attribute(node, core, match.proven)
        if whole is None:
            return None
        if len(whole.origins) <= _MANY:
            known = is_last or len(whole.origins) == 1
            return Attribution(whole.scope, whole.origins, "carried" if known else "dataflow")
        made = self._attribute(node, [n for n in core if self._makes(n, node)], match.proven) if is_last else None
        return made or Attribution(whole.scope, (whole.scope,), "dataflow")

    def _share(self, members: Sequence[int], region: Sequence[int], order: Order) -> dict[int, list[int]]:
        """Divide a region among nodes of B: parameters decide first, then operators, then what lies behind whom."""
        claims = {member: self._claim_by_parameters(member, region) for member in members}
        self._claim_by_operator(claims, region, order)
        claimants = {n: member for member, claimed in claims.items() for n in claimed}
        for node in region:
            if node not in claimants:
                behind = self._find_behind(node, claimants)
                if behind is not None:
                    claims[behind].append(node)
        return claims

    def _claim_by_parameters(self, member: int, region: Sequence[int]) -> list[int]:
        known, b = self._matcher.known, self._matcher.b
        node = b.nodes[member]
        # What moves elements reads sizes and axes next to them; many share these.
        read = node.inputs[:1] if node.op in DATA_MOVEMENT_OPS and node.op != "Concat" else b.nodes[member].reads
        reads = {known[t] for t in read if t in b.constants} - {None}
        return [n for n in region if reads.intersection(self._a.nodes[n].reads)]

    def _claim_by_operator(self, claims: dict[int, list[int]], region: Sequence[int], order: Order) -> None:
        """Pair the nodes of an operator in their order, where A has as many as B; else each may be any of them.

        Before that, those of them that read the same fixed points. No node takes what lies upstream of the work of a
        node upstream of it, or downstream of that of one downstream.
        """
        a, b = self._a, self._matcher.b
        inside = set(region)
        self._claim_alike(claims, region, self._reading_of_b, lambda n: self._reading_of_a(n, inside), None)
        self._claim_alike(claims, region, lambda m: _kind(b.nodes[m].op), lambda n: _kind(a.nodes[n].op), order)

    def _claim_alike(
        self, claims: dict[int, list[int]], region: Sequence[int], of_b: _Form, of_a: _Form, order: Order | None
    ) -> None:
        taken = {n for claimed in claims.values() for n in claimed}
        members: dict[Hashable, list[int]] = defaultdict(list)
        nodes: dict[Hashable, list[int]] = defaultdict(list)
        for member in sorted(member for member, claimed in claims.items() if not claimed):
            members[of_b(member)].append(member)
        for node in region:
            if node not in taken:
                nodes[of_a(node)].append(node)
        if order is not None:
            order.note(claims)
        for form, alike in members.items():
            if form is not None and order is not None:
                claims.update(_pair_in_order(alike, nodes[form], order))
            elif form is not None and len(alike) == len(nodes[form]):
                claims.update((member, [node]) for member, node in zip(alike, nodes[form], strict=True))

    def _reading_of_b(self, member: int) -> Hashable:
        b, known = self._matcher.b, self._matcher.known
        return self._reading(b.nodes[member].op, (known[t] for t in b.nodes[member].reads))

    def _reading_of_a(self, node: int, inside: Collection[int]) -> Hashable:
        read = (t for t in self._a.nodes[node].reads if self._a.producers[t] not in inside)
        return self._reading(self._a.nodes[node].op, read)

    def _reading(self, op: str, tensors: Iterable[int | None]) -> Hashable:
        """Key a node by its operator and what it reads from outside the region; None if that is nothing."""
        values = self._matcher.values
        read = frozenset(values.source[t] for t in tensors if t is not None and not values.constant[t])
        return (op, read) if read else None

    def _find_behind(self, node: int, claimants: dict[int, int]) -> int | None:
        """Return the node of B that does the nearest work upstream of a node of A, and could do its work as well."""
        pending, seen = [node], {node}
        b, computes = self._matcher.b, self._a.nodes[node].op not in DATA_MOVEMENT_OPS
        while pending:
            for tensor in self._a.nodes[pending.pop(0)].reads:
                producer = self._a.producers[tensor]
                if producer in claimants and not (computes and b.nodes[claimants[producer]].op in DATA_MOVEMENT_OPS):
                    return claimants[producer]
                if producer is not None and producer not in seen and len(seen) < _NEARBY:
                    seen.add(producer)
                    pending.append(producer)
        return None

    def _only_moves(self, of_b: int) -> bool:
        """Say whether a node of B makes one tensor and computes nothing."""
        node = self._matcher.b.nodes[of_b]
        return node.op in DATA_MOVEMENT_OPS and len(node.outputs) == 1

    def _makes(self, node: int, of_b: int) -> bool:
        """Say whether a node of A makes a tensor that the node of B makes."""
        known = self._matcher.known
        made = {known[t] for t in self._matcher.b.nodes[of_b].outputs if t != NO_TENSOR}
        return bool(made.intersection(self._a.nodes[node].outputs))

    def _find_merged(self) -> dict[int, list[CallId]]:
        """For each node of A that B kept: the origins of its equals that B did not keep."""
        matcher, a = self._matcher, self._a
        kept = {n for match in matcher.match.values() for n in self._core(match.region)}
        classes: dict[Hashable, list[int]] = defaultdict(list)
        for index, node in enumerate(a.nodes):
            output = next((t for t in node.outputs if t != NO_TENSOR), None)
            if output is not None and not matcher.values.is_copy(node):
                classes[matcher.values.number[output]].append(index)
        merged: dict[int, list[CallId]] = defaultdict(list)
        for members in classes.values():
            survivors = [n for n in members if n in kept]
            for member in members:
                scope = self._scopes[member]
                if member not in kept and scope is not None and len(survivors) == 1:
                    merged[survivors[0]].extend(scope.origins)
        return merged


def _pair_in_order(members: Sequence[int], nodes: Sequence[int], order: Order) -> dict[int, list[int]]:
    """Pair nodes of B with as many of A in turn, those left out that can be none; else each may be what it can be."""
    allowed = {member: order.keep_allowed(member, nodes) for member in members}
    able = [member for member in members if allowed[member]]
    if len(able) == len(nodes) and all(node in allowed[m] for m, node in zip(able, nodes, strict=True)):
        return {**allowed, **{member: [node] for member, node in zip(able, nodes, strict=True)}}
    return allowed


def _kind(op: str) -> str:
    """Return an operator's name without its domain: what a tool writes in its own does the same work."""
    return op.rpartition("::")[2]


def _find_folded(a: View, scopes: Sequence[Attribution | None], matcher: Matcher) -> dict[int, Folded]:
    """For each initializer of B that A knows: the calls whose work it holds, and what they worked on."""
    folded = {}
    for tensor in matcher.b.constants:
        known = matcher.known[tensor]
        if known is None:
            continue
        origins: dict[CallId, None] = {}
        sources: dict[str, None] = {}
        pending, seen = [known], set[int]()
        while pending:
            current = pending.pop()
            producer = a.producers[current]
            if producer is None:
                sources[a.names[current]] = None
            elif producer not in seen:
                seen.add(producer)
                scope = scopes[producer]
                origins.update(dict.fromkeys(scope.origins if scope else ()))
                pending.extend(a.nodes[producer].reads_values)  # of a shape only the taking is folded
        folded[tensor] = Folded(tuple(origins), tuple(sources))
    return folded
