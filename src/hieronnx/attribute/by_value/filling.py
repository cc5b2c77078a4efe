"""Finding whose work the other nodes do: those whose values the run did not make, or that are too plain to tell.

They lie between nodes that were matched. What the run does on the way to the same values, and the file has nowhere
else, is their work. Constants belong to who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hieronnx.attribute.by_value.projection import Found, Projection
from hieronnx.graph.operators import COPY_OPS
from hieronnx.graph.view import NO_TENSOR

_MANY = 64


class Filler:
    """Fills what a match by value left open, from what it found."""

    def __init__(self, scene: Projection, varying: Sequence[int]) -> None:
        self._scene = scene
        self._trace, self._classes, self._nodes = scene.trace, scene.classes, scene.view.nodes
        tensors = set(varying)
        self._computes = [
            not tensors.isdisjoint(node.outputs)
            or any(scene.telling_class_of(t) is not None for t in node.reads_values)
            for node in self._nodes
        ]
        """For each node whether it works on values, those of the inputs or others that tell something."""

    def run(self) -> None:
        """Fill what can be filled, from the surer to the less sure."""
        self._settle_options()
        self._match_backwards()
        self._scene.note_done()
        self._fill_between()
        self._fill_constants()
        self._fill_by_readers()

    def _open(self, *, computes: bool) -> list[int]:
        found = self._scene.found
        return [
            n
            for n, node in enumerate(self._nodes)
            if found[n] is None and not node.bodies and self._computes[n] == computes
        ]

    # -- equal values ---------------------------------------------------------------------------------------

    def _settle_options(self) -> None:
        """Decide between operations that made the same: by those who read the node, who have it from one of them."""
        for index in range(len(self._nodes) - 1, -1, -1):
            found = self._scene.found[index]
            if found is None or not found.options:
                continue
            reading = {
                op for reader in self._known(self._scene.readers(index)) for op in reader.ops if len(reader.ops) == 1
            }
            ops = [op for op in found.options if not reading.isdisjoint(self._readers_of(op))]
            if len(self._scene.scopes(ops)) == 1:
                self._scene.found[index] = Found(tuple(ops[:1]), "value")

    def _readers_of(self, op: int) -> set[int]:
        """Return the operations that read what an operation made, also through those that only move it."""
        found: set[int] = set()
        pending = list(self._trace.ops[op].gives)
        while pending:
            value = pending.pop()
            for reader in self._trace.readers.get(value, ()):
                if reader not in found:
                    found.add(reader)
                    moved = (v for v in self._trace.ops[reader].gives if self._scene.origins.above.get(v) == value)
                    pending.extend(moved)
        return found

    # -- plain values ---------------------------------------------------------------------------------------

    def _match_backwards(self) -> None:
        """Match plain tensors by who reads them: an operation that reads equal ones in the run."""
        for index in range(len(self._nodes) - 1, -1, -1):
            if self._scene.found[index] is None and not self._nodes[index].bodies:
                ops = sorted({op for t in self._scene.outputs(index) for op in self._made_for_readers(t)})
                if ops:
                    self._scene.found[index] = Found(tuple(ops), "near", merged=True)

    def _made_for_readers(self, tensor: int) -> Iterator[int]:
        made = self._scene.class_of(tensor)
        if made is None or self._classes.telling[made]:
            return
        for found in self._known(self._scene.consumers[tensor]):
            for op in found.ops:
                equal = (v for v in self._trace.ops[op].reads if self._classes.of_value.get(v) == made)
                yield from self._scene.producers(equal)

    def _known(self, nodes: Iterable[int]) -> list[Found]:
        return [found for node in nodes if (found := self._scene.found[node]) is not None]

    # -- between matches ------------------------------------------------------------------------------------

    def _fill_between(self) -> None:
        pending = self._open(computes=True)
        after = self._gather(reversed(pending), self._scene.readers)
        before = self._gather(pending, self._feeders)
        made = {node: self._find_between(node, after[node], before[node]) for node in pending}
        for node, found in made.items():
            self._scene.found[node] = found

    def _gather(self, nodes: Iterable[int], neighbours: Callable[[int], Iterator[int]]) -> dict[int, frozenset[int]]:
        """For each open node the operations of the matched ones that come next, through others that are open."""
        gathered: dict[int, frozenset[int]] = {}
        for node in nodes:
            found: set[int] = set()
            for other in neighbours(node):
                known = self._scene.found[other]
                found.update(known.ops if known is not None else gathered.get(other, ()))
            gathered[node] = frozenset(sorted(found)[:_MANY])
        return gathered

    def _feeders(self, node: int) -> Iterator[int]:
        producers = (self._scene.view.producers[t] for t in self._nodes[node].reads_values)
        return (producer for producer in producers if producer is not None)

    def _find_between(self, node: int, after: frozenset[int], before: frozenset[int]) -> Found | None:
        if not after:
            return None
        region = self._scene.region(sorted(after))
        rest = [op for op in region if op not in after]
        inner, whole = self._scene.scopes(rest), self._scene.scopes(region)
        moves = all(tensor in self._scene.above for tensor in self._scene.outputs(node))
        if inner:
            sure = len(whole) == 1
            return Found(tuple(rest), "value" if sure else "near", "between")
        if len(whole) == 1 and (not moves or self._scene.scopes(before) == whole):
            return Found((min(after),), "value", "between")
        if self._only_idles(node):
            return self._find_idle(node, after, before)
        return Found(tuple(sorted(after)), "dataflow", "consumers") if len(whole) == 1 or not moves else None

    def _only_idles(self, node: int) -> bool:
        above, same = self._scene.above, self._scene.layouts.same_tensors
        return all(tensor in above and same(tensor, above[tensor]) for tensor in self._scene.outputs(node))

    def _find_idle(self, node: int, after: frozenset[int], before: frozenset[int]) -> Found | None:
        """Find whom a node serves that does nothing: those it leads to, or who made it; a cast may be of either."""
        unknown = [reader for reader in self._scene.readers(node) if self._scene.found[reader] is None]
        if any(not self._only_idles(reader) for reader in unknown):
            return Found(tuple(sorted(after)), "dataflow", "consumers")
        if self._nodes[node].op in COPY_OPS or len(self._scene.scopes(before)) != 1:
            return None
        return Found(tuple(sorted(before)), "dataflow", "handed on")

    # -- constants ------------------------------------------------------------------------------------------

    def _fill_constants(self) -> None:
        """Fill nodes that compute constants: what the run computes without the inputs for the same readers."""
        pending = [n for n in self._open(computes=False) if any(t != NO_TENSOR for t in self._nodes[n].inputs)]
        after = self._gather(reversed(pending), self._scene.readers)
        for node in pending:
            region = self._scene.region(sorted(after[node]), constant=True)
            held = [op for op in region if op not in after[node]]
            rest = [op for op in held if self._trace.varying.isdisjoint(self._trace.ops[op].gives)]
            if len(self._scene.scopes(rest)) == 1:
                self._scene.found[node] = Found(tuple(rest), "dataflow", "consumers")

    def _fill_by_readers(self) -> None:
        """Give constants to who reads them; one that is written down and that several read, to the first of them."""
        for index in reversed(self._open(computes=False)):
            readers = list(self._scene.readers(index))
            known = self._known(readers)
            if not known or len(known) < len(readers):
                continue
            decided = all(found.merged or len(self._scene.scopes(found.ops)) == 1 for found in known)
            ops = tuple(dict.fromkeys(op for found in known for op in (found.ops[:1] if found.merged else found.ops)))
            written = all(tensor == NO_TENSOR for tensor in self._nodes[index].inputs)
            if written or len(self._scene.scopes(ops)) == 1:
                self._scene.found[index] = Found(ops, "dataflow", "consumers", merged=decided)
