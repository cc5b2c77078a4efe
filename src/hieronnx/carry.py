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

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hieronnx._matching import Match, Matcher
from hieronnx.graph import NO_TENSOR, View
from hieronnx.hierarchy import Attribution, CallId, CallTree, join_scopes

__all__ = ["Carried", "Folded", "carry_scopes"]

_NEARBY = 200


@dataclass(frozen=True, slots=True)
class Folded:
    """What an initializer was computed from: the calls that did it, and the initializers that it holds."""

    origins: tuple[CallId, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """The attribution of each node of B, None where nothing says what it stands for; and of its initializers."""

    nodes: list[Attribution | None]
    initializers: dict[int, Folded]


def carry_scopes(a: View, scopes: Sequence[Attribution | None], b: View, tree: CallTree) -> Carried:
    """Attribute the nodes of B from those of A.

    Args:
        a: The graph before.
        scopes: The attribution of each of A's nodes; None where it has none.
        b: The graph after.
        tree: The calls.
    """
    matcher = Matcher(a, b)
    matcher.run()
    return Carried(_Attributor(a, scopes, tree, matcher).run(), _find_folded(a, scopes, matcher))


class _Attributor:
    """Turns the regions that were matched into scopes and origins."""

    def __init__(self, a: View, scopes: Sequence[Attribution | None], tree: CallTree, matcher: Matcher) -> None:
        self._a, self._scopes, self._tree, self._matcher = a, scopes, tree, matcher
        self._merged = self._find_merged()
        self._work: dict[int, Sequence[int]] = {}
        """The nodes of A whose work a node of B was found to do."""

    def run(self) -> list[Attribution | None]:
        """Attribute every node of B that has a match, or that shares one."""
        found: list[Attribution | None] = [None] * len(self._matcher.b.nodes)
        for index, match in self._matcher.match.items():
            if not match.group:
                self._work[index] = self._core(match.region)
                found[index] = self._attribute(index, self._work[index], match.proven)
        for index, match in self._matcher.match.items():
            if match.group:
                self._attribute_group(index, match, found)
        return found

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
        joined = join_scopes(own, self._tree, "carried" if proven else "name")
        untouched = proven and len(core) == 1 and self._a.nodes[core[0]].op == self._matcher.b.nodes[index].op
        evidence, rule = (own[0].evidence, own[0].rule) if untouched else (joined.evidence, "")
        copies = [origin for n in core for origin in self._merged.get(n, ())]
        origins = tuple(dict.fromkeys((*joined.origins, *copies)))
        return Attribution(joined.scope, origins, evidence, rule)

    def _attribute_group(self, last: int, match: Match, found: list[Attribution | None]) -> None:
        """Share a region among the nodes of a group: each takes what it can be seen to do."""
        core = self._core(match.region)
        own = [] if match.altered else [n for n in core if self._makes(n, last)]
        # A member that feeds two groups has its work already: the others do the rest.
        done = {n for member in match.group if member != last for n in self._work.get(member, ())}
        left = [n for n in core if n not in own and n not in done] or [n for n in core if n not in own]
        others = [n for n in match.group if n != last and n not in self._matcher.match and found[n] is None]
        claims = self._share(others if own else [*others, last], left)
        idle = [node for node, claimed in claims.items() if not claimed]
        if len(idle) == 1:  # what nobody else does is left for the one who seems to do nothing
            claims[idle[0]] = [n for n in left if not any(n in claimed for claimed in claims.values())]
        claims.setdefault(last, own)
        whole = self._attribute(last, core, match.proven)
        self._work.update(claims)
        for node, claimed in claims.items():
            alone = not any(set(claimed) & set(theirs) for other, theirs in claims.items() if other != node)
            joined = self._attribute(node, claimed, match.proven) if alone else None
            if joined is None and whole is not None:
                known = node == last or len(whole.origins) == 1
                joined = Attribution(whole.scope, whole.origins, "carried" if known else "dataflow")
            found[node] = joined

    def _share(self, members: Sequence[int], region: Sequence[int]) -> dict[int, list[int]]:
        """Divide a region among nodes of B: parameters decide first, then operators, then what lies behind whom."""
        claims = {member: self._claim_by_parameters(member, region) for member in members}
        self._claim_by_operator(claims, region)
        claimants = {n: member for member, claimed in claims.items() for n in claimed}
        for node in region:
            if node not in claimants:
                behind = self._find_behind(node, claimants)
                if behind is not None:
                    claims[behind].append(node)
        return claims

    def _claim_by_parameters(self, member: int, region: Sequence[int]) -> list[int]:
        known, b = self._matcher.known, self._matcher.b
        reads = {known[t] for t in b.reads(member) if t in b.constants} - {None}
        return [n for n in region if reads.intersection(self._a.reads(n))]

    def _claim_by_operator(self, claims: dict[int, list[int]], region: Sequence[int]) -> None:
        """Pair the nodes of an operator in their order, where A has as many as B; else each may be any of them."""
        taken = {n for claimed in claims.values() for n in claimed}
        for op in {self._matcher.b.nodes[member].op for member, claimed in claims.items() if not claimed}:
            members = [m for m, claimed in claims.items() if not claimed and self._matcher.b.nodes[m].op == op]
            nodes = [n for n in region if n not in taken and self._a.nodes[n].op == op]
            same = len(members) == len(nodes)
            for position, member in enumerate(sorted(members)):
                claims[member] = [nodes[position]] if same else list(nodes)

    def _find_behind(self, node: int, claimants: dict[int, int]) -> int | None:
        """Return the node of B that does the nearest work upstream of a node of A."""
        pending, seen = [node], {node}
        while pending:
            for tensor in self._a.reads(pending.pop(0)):
                producer = self._a.producers[tensor]
                if producer in claimants:
                    return claimants[producer]
                if producer is not None and producer not in seen and len(seen) < _NEARBY:
                    seen.add(producer)
                    pending.append(producer)
        return None

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
