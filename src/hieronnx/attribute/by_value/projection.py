"""What all steps of a projection look at: the file, the run, which of their values are equal, and what was found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.attribute.by_value.classes import Classes
from hieronnx.attribute.by_value.layouts import Layouts
from hieronnx.attribute.by_value.origins import Origins
from hieronnx.attribute.by_value.trace import Prints, Trace
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.records import CallId

_REGION = 500


@dataclass(frozen=True, slots=True)
class Found:
    """The operations whose work a node does, and how that is known."""

    ops: tuple[int, ...]
    evidence: str
    rule: str = ""
    merged: bool = False
    """Whether each of the operations does the same, so that the scope is that of the first."""
    options: tuple[int, ...] = ()
    """All operations that made these values, where nothing in the values says which of them it is, or if it is all."""


class Projection:
    """A file and a run of its model, seen together.

    Attributes:
        above: For a tensor that a node only moved the tensor that it moved.
        made: For each class the tensors of the file that are computed, in order.
        tensors_by_class: For each telling class the tensors of the file that are of it.
        present: The telling classes that the file has.
        below: For each tensor the classes of what is computed from it, through nodes that only move it.
        found: For each node of the file what was found.
        done: The operations of which a match says for sure that some node does them; values too plain to be among those
            that are present may be matched, too.
    """

    def __init__(self, view: View, trace: Trace, classes: Classes, prints: Mapping[int, Sequence[Prints]]) -> None:
        self.view, self.trace, self.classes = view, trace, classes
        self.origins = Origins(trace, classes)
        self.layouts = Layouts(trace.prints, prints, classes.tolerance)
        self.consumers = view.consumers
        self.found: list[Found | None] = [None] * len(view.nodes)
        self.done: set[int] = set()
        self.above: dict[int, int] = {}
        self.made: dict[int, list[int]] = defaultdict(list)
        self.tensors_by_class: dict[int, list[int]] = defaultdict(list)
        for tensor in classes.of_tensor:
            if (of_class := self.telling_class_of(tensor)) is not None:
                self.tensors_by_class[of_class].append(tensor)
        self.present = {
            c for found in classes.of_tensor.values() for c in found if c is not None and classes.telling[c]
        }
        self._find_moved()
        self.below = self._find_below()

    def class_of(self, tensor: int) -> int | None:
        """Return the class of a tensor that has one value."""
        found = self.classes.of_tensor.get(tensor)
        return found[0] if found and len(found) == 1 else None

    def telling_class_of(self, tensor: int) -> int | None:
        """Return the class of a tensor, if that tells something."""
        made = self.class_of(tensor)
        return made if made is not None and self.classes.telling[made] else None

    def outputs(self, node: int) -> Iterator[int]:
        """Yield the tensors that a node makes."""
        return (tensor for tensor in self.view.nodes[node].outputs if tensor != NO_TENSOR)

    def readers(self, node: int) -> Iterator[int]:
        """Yield the nodes that read what a node makes."""
        return (reader for tensor in self.outputs(node) for reader in self.consumers[tensor])

    def scope(self, op: int) -> CallId:
        """Return the call that an operation ran in."""
        return self.trace.ops[op].scope

    def scopes(self, ops: Iterable[int]) -> tuple[CallId, ...]:
        """Return the calls that some operations ran in, each once."""
        return tuple(dict.fromkeys(map(self.scope, ops)))

    def producers(self, values: Iterable[int]) -> tuple[int, ...]:
        """Return the operations that made some values, each once."""
        found = (self.trace.producers.get(value) for value in values)
        return tuple(dict.fromkeys(op for op in found if op is not None))

    def note_done(self) -> None:
        """Note which operations the nodes do that were matched in one call."""
        sure = (f.ops for f in self.found if f is not None and not f.rule and len(self.scopes(f.ops)) == 1)
        self.done = {op for ops in sure for op in ops}

    def region(self, ops: Iterable[int], *, constant: bool = False) -> list[int]:
        """Return some operations and those behind them that make what the file does not have, and no other node does.

        Args:
            ops: The operations.
            constant: Whether what does not depend on the inputs is followed too.
        """
        region = dict.fromkeys(ops)
        pending = list(region)
        while pending and len(region) < _REGION:
            for value in self.trace.ops[pending.pop()].reads:
                producer = self.trace.producers.get(value)
                if producer is None or producer in region or producer in self.done:
                    continue
                if self.classes.of_value.get(value) in self.present:
                    continue
                if constant or value in self.trace.varying:
                    region[producer] = None
                    pending.append(producer)
        return sorted(region)

    def _find_moved(self) -> None:
        for index, node in enumerate(self.view.nodes):
            read = {made: t for t in reversed(node.reads_values) if (made := self.telling_class_of(t)) is not None}
            for tensor in self.outputs(index):
                made = self.class_of(tensor)
                if made in read and not node.bodies:
                    self.above[tensor] = read[made]
                elif made is not None:
                    self.made[made].append(tensor)

    def _find_below(self) -> dict[int, frozenset[int]]:
        below: dict[int, frozenset[int]] = {}
        for index in range(len(self.view.nodes) - 1, -1, -1):
            for tensor in self.outputs(index):
                found: set[int] = set()
                for made in (t for reader in self.consumers[tensor] for t in self.outputs(reader)):
                    if self.above.get(made) == tensor:
                        found |= below.get(made, frozenset())
                    elif (other := self.telling_class_of(made)) is not None:
                        found.add(other)
                below[tensor] = frozenset(found)
        return below
