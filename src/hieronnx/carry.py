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

    def run(self) -> list[Attribution | None]:
        """Attribute every node of B that has a match, or that shares one."""
        found: list[Attribution | None] = [None] * len(self._matcher.b.nodes)
        for index, match in self._matcher.match.items():
            if not match.group:
                found[index] = self._attribute(index, self._core(match.region), match.proven)
        for index, match in self._matcher.match.items():
            if match.group:
                self._attribute_group(index, match, found)
        return found

    def _core(self, region: Sequence[int]) -> list[int]:
        """Leave out of a region what adds no origin: constants, shapes and copies, unless there is nothing else."""
        a, constant = self._a, self._matcher.values.constant
        attributed = [n for n in region if self._scopes[n] is not None]
        computed = [n for n in attributed if not all(constant[t] for t in a.nodes[n].outputs if t != NO_TENSOR)]
        working = [n for n in computed if a.nodes[n].op != "Identity"]
        return working or computed or attributed

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
        """Share a region among the nodes of a group: each takes what it can be seen to do, altered ones the rest."""
        core = self._core(match.region)
        others = [n for n in match.group if n != last and n not in self._matcher.match and found[n] is None]
        own = core if match.altered else [n for n in core if self._makes(n, last)]
        left = core if match.altered else [n for n in core if n not in own]
        found[last] = self._attribute(last, own or core, match.proven)
        claims = {n: self._claims(n, left) for n in others}
        unclaimed = [n for n in left if not any(n in claimed for claimed in claims.values())]
        whole = self._attribute(last, left or core, match.proven)
        for node, claimed in claims.items():
            share = claimed + unclaimed if claimed and not match.altered else claimed
            joined = self._attribute(node, share, match.proven)
            if joined is None and whole is not None:
                evidence = "carried" if len(whole.origins) == 1 else "dataflow"
                joined = Attribution(whole.scope, whole.origins, evidence)
            found[node] = joined

    def _makes(self, node: int, of_b: int) -> bool:
        """Say whether a node of A makes a tensor that the node of B makes."""
        known = self._matcher.known
        made = {known[t] for t in self._matcher.b.nodes[of_b].outputs if t != NO_TENSOR}
        return bool(made.intersection(self._a.nodes[node].outputs))

    def _claims(self, node: int, core: Sequence[int]) -> list[int]:
        """Return the nodes of a region whose work one node of a group does: by parameters, else by operator."""
        known = self._matcher.known
        reads = {known[t] for t in self._matcher.b.reads(node) if t in self._matcher.b.constants} - {None}
        by_parameter = [n for n in core if reads.intersection(self._a.reads(n))]
        return by_parameter or [n for n in core if self._a.nodes[n].op == self._matcher.b.nodes[node].op]

    def _find_merged(self) -> dict[int, list[CallId]]:
        """For each node of A that B kept: the origins of its equals that B did not keep."""
        matcher, a = self._matcher, self._a
        kept = {n for match in matcher.match.values() for n in self._core(match.region)}
        classes: dict[Hashable, list[int]] = defaultdict(list)
        for index, node in enumerate(a.nodes):
            output = next((t for t in node.outputs if t != NO_TENSOR), None)
            if output is not None and node.op != "Identity":
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
                pending.extend(a.reads(producer))
        folded[tensor] = Folded(tuple(origins), tuple(sources))
    return folded
