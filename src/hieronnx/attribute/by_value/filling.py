"""Finding whose work the nodes do that were not matched: the run did not make their values, or these say too little.

They lie between nodes that were matched. What the run does on the way to the same values, and the file has nowhere
else, is their work. Constants belong to who reads them.

    eager op, by call                     ONNX node
    aten.mul               in scales      Mul [scales]
    aten.native_group_norm in norm        Reshape [gap] → InstanceNormalization [gap] → Reshape [gap] → Mul [norm]
    aten.relu              in the root    Relu [the root]

All that the run does between scales and the root is in norm, and so are the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hieronnx.attribute.by_value.equal_values import Projection, ValueMatch
from hieronnx.graph.operators import COPY_OPS

_MANY = 64


class Filler:
    """Fills the gaps that a match by value left, from what it matched."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._trace, self._classes, self._nodes = projection.trace, projection.classes, projection.view.nodes
        self._computes = [
            not projection.varying.isdisjoint(node.outputs)
            or any(projection.distinctive_class(t) is not None for t in node.reads_values)
            for node in self._nodes
        ]
        """For each node whether it works on values, those of the inputs or others that say something."""

    def run(self) -> None:
        """Fill what can be filled, from the surer to the less sure."""
        self._settle_options()
        self._match_backwards()
        matches = self._list_matches(range(len(self._nodes)))
        sure = (m for m in matches if not m.rule and len(self._projection.scopes(m.ops)) == 1)
        self._projection.done = {op for match in sure for op in match.ops}
        self._fill_between()
        self._fill_by_readers()

    def _list_gaps(self, *, computes: bool) -> list[int]:
        gaps = (index for index, match in enumerate(self._projection.matches) if match is None)
        return [index for index in gaps if not self._nodes[index].bodies and self._computes[index] == computes]

    def _list_matches(self, nodes: Iterable[int]) -> list[ValueMatch]:
        return [match for node in nodes if (match := self._projection.matches[node]) is not None]

    def _settle_options(self) -> None:
        """Decide between operations that made the same: by those who read the node, who have it from one of them."""
        for index in range(len(self._nodes) - 1, -1, -1):
            match = self._projection.matches[index]
            if match is None or not match.options:
                continue
            readers = list(self._projection.readers(index))
            matches = [reader for reader in self._list_matches(readers) if len(reader.ops) == 1]
            reading = {op for reader in matches for op in self._projection.region(reader.ops)}
            ops = [op for op in match.options if not reading.isdisjoint(self._readers_of(op))]
            if match.merged and len(matches) < len(readers):
                continue  # who reads it besides may have it from any of them
            if len(self._projection.scopes(ops)) == 1:
                self._projection.matches[index] = ValueMatch(tuple(ops[:1]), "value")

    def _readers_of(self, op: int) -> set[int]:
        """Return the operations that read what an operation made, also through those that only move it."""
        above = self._projection.origins.above
        readers: set[int] = set()
        pending = list(self._trace.ops[op].gives)
        while pending:
            value = pending.pop()
            for reader in self._trace.readers.get(value, ()):
                if reader not in readers:
                    readers.add(reader)
                    pending.extend(v for v in self._trace.ops[reader].gives if above.get(v) == value)
        return readers

    def _match_backwards(self) -> None:
        """Match tensors of low information by who reads them: an operation that reads equal ones in the run."""
        for index in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[index]
            if self._projection.matches[index] is None and not node.bodies and node.op not in COPY_OPS:
                made = {op for t in self._nodes[index].makes for op in self._made_for_readers(t)}
                ops = sorted(op for op in made if self._projection.could_do(index, op))
                if ops:
                    self._projection.matches[index] = ValueMatch(tuple(ops), "near", merged=True)

    def _made_for_readers(self, tensor: int) -> Iterator[int]:
        value_class = self._projection.class_of(tensor)
        if value_class is None or self._classes.distinctive[value_class] or self._projection.has_vanished(tensor):
            return
        for match in self._list_matches(self._projection.view.consumers[tensor]):
            for op in match.ops:
                equal = (v for v in self._trace.ops[op].reads if self._classes.of_value.get(v) == value_class)
                yield from self._projection.producers(equal)

    def _fill_between(self) -> None:
        gaps, producers = self._list_gaps(computes=True), self._projection.view.producers
        after = self._gather(reversed(gaps), self._projection.readers)
        before = self._gather(gaps, lambda node: (producers[t] for t in self._nodes[node].reads_values))
        vanished = {node for node in gaps if all(map(self._projection.has_vanished, self._nodes[node].makes))}
        own = (node for node in gaps if node not in vanished and not self._nodes[node].is_inserted)
        filled = {node: self._find_between(node, after[node], before[node]) for node in own}
        for node, match in filled.items():
            self._projection.matches[node] = match

    def _gather(
        self, gaps: Iterable[int], neighbours: Callable[[int], Iterator[int | None]]
    ) -> dict[int, frozenset[int]]:
        """Return for each gap the operations of the matched nodes that come next, through other gaps.

        A node that does the same for several calls is that of the first.
        """
        gathered: dict[int, frozenset[int]] = {}
        for node in gaps:
            ops: set[int] = set()
            for other in neighbours(node):
                if other is not None:
                    match = self._projection.matches[other]
                    ops.update(gathered.get(other, ()) if match is None else match.ops[: 1 if match.merged else None])
            gathered[node] = frozenset(sorted(ops)[:_MANY])
        return gathered

    def _find_between(self, node: int, after: frozenset[int], before: frozenset[int]) -> ValueMatch | None:
        if not after:
            return None
        scopes = self._projection.scopes
        region = self._projection.region(sorted(after))
        rest, one_call = [op for op in region if op not in after], len(scopes(region)) == 1
        if rest:
            return ValueMatch(tuple(rest), "value" if one_call else "near", "between")
        moves = all(tensor in self._projection.above for tensor in self._nodes[node].makes)
        if one_call and (not moves or scopes(before) == scopes(region)):
            return ValueMatch((min(after),), "value", "between")
        if self._does_nothing(node):
            return self._find_served(node, after, before)
        return ValueMatch(tuple(sorted(after)), "dataflow", "consumers") if one_call or not moves else None

    def _does_nothing(self, node: int) -> bool:
        above, seen, same = self._projection.above, self._projection.seen, self._projection.same
        return all(tensor in above and same(seen[tensor], seen[above[tensor]]) for tensor in self._nodes[node].makes)

    def _find_served(self, node: int, after: frozenset[int], before: frozenset[int]) -> ValueMatch | None:
        """Find whom a node serves that does nothing: those it leads to, or who made it.

        A cast may be of either: one that begins a child is like one that its parent makes before it calls the child.
        """
        gaps = [reader for reader in self._projection.readers(node) if self._projection.matches[reader] is None]
        if any(not self._does_nothing(reader) for reader in gaps):
            return ValueMatch(tuple(sorted(after)), "dataflow", "consumers")
        if self._nodes[node].op in COPY_OPS or len(self._projection.scopes(before)) != 1:
            return None
        return ValueMatch(tuple(sorted(before)), "dataflow", "handed on")

    def _fill_by_readers(self) -> None:
        """Give constants to who reads them; one that is written down and that several read, to the first of them."""
        scopes = self._projection.scopes
        for index in reversed(self._list_gaps(computes=False)):
            readers = list(self._projection.readers(index))
            matches = self._list_matches(readers)
            if not matches or len(matches) < len(readers):
                continue
            decided = all(match.merged or len(scopes(match.ops)) == 1 for match in matches)
            ops = tuple(dict.fromkeys(op for match in matches for op in match.ops[: 1 if match.merged else None]))
            if not self._nodes[index].reads or len(scopes(ops)) == 1:
                self._projection.matches[index] = ValueMatch(ops, "dataflow", "consumers", merged=decided)
