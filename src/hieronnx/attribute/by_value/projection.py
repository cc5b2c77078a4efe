"""The state of a projection: the file, the run, which of their values are equal, and what was matched so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hieronnx.attribute.by_value.equal_values import Classes, Origins, distance_in_order
from hieronnx.attribute.by_value.trace import FilePrints, Prints, Trace
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId

_REGION = 500


@dataclass(frozen=True, slots=True)
class Match:
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
        varying: The tensors of the file that depend on its inputs.
        seen: The fingerprints of the tensors of the file whose values were seen, where several the first.
        matches: For each node of the file what it was matched with.
        above: For a tensor that a node only moved the tensor that it moved.
        made: For each class the tensors of the file that are computed, in order.
        tensors_by_class: For each distinctive class the tensors of the file that are of it.
        present: The distinctive classes that the file has.
        below: For each tensor the classes of what is computed from it, through nodes that only move it.
        done: The operations of which a match says for sure that some node does them; values with too little information
            to be among those that are present may be matched, too.
    """

    def __init__(self, view: View, trace: Trace, classes: Classes, prints: FilePrints, varying: frozenset[int]) -> None:
        self.view, self.trace, self.classes, self.varying = view, trace, classes, varying
        self.origins = Origins(trace, classes)
        self.seen = {tensor: values[0] for tensor, values in prints.items()}
        self.matches: list[Match | None] = [None] * len(view.nodes)
        self.done: set[int] = set()
        self.above: dict[int, int] = {}
        self.made: dict[int, list[int]] = defaultdict(list)
        self.tensors_by_class: dict[int, list[int]] = defaultdict(list)
        self.present: set[int] = set()
        for tensor, numbers in classes.of_tensor.items():
            self.present.update(number for number in numbers if number is not None and classes.distinctive[number])
            if (number := self.distinctive_class(tensor)) is not None:
                self.tensors_by_class[number].append(tensor)
        self._find_moved()
        self.below = self._find_below()

    def class_of(self, tensor: int) -> int | None:
        """Return the class of a tensor that has one value."""
        classes = self.classes.of_tensor.get(tensor)
        return classes[0] if classes and len(classes) == 1 else None

    def distinctive_class(self, tensor: int) -> int | None:
        """Return the class of a tensor, if equality to its values says something."""
        made = self.class_of(tensor)
        return made if made is not None and self.classes.distinctive[made] else None

    def readers(self, node: int) -> Iterator[int]:
        """Yield the nodes that read what a node makes."""
        return (reader for tensor in self.view.nodes[node].makes for reader in self.view.consumers[tensor])

    def scopes(self, ops: Iterable[int]) -> tuple[CallId, ...]:
        """Return the calls that some operations ran in, each once."""
        return tuple(dict.fromkeys(self.trace.ops[op].scope for op in ops))

    def producers(self, values: Iterable[int]) -> tuple[int, ...]:
        """Return the operations that made some values, each once."""
        producers = self.trace.producers
        return tuple(dict.fromkeys(producers[value] for value in values if value in producers))

    def same_order(self, a: Prints, b: Prints) -> bool:
        """Say whether two have their numbers in the same order, whatever their shapes."""
        return distance_in_order(a, b) <= self.classes.tolerance

    def same(self, a: Prints, b: Prints) -> bool:
        """Say whether two have the same order and shape: one is a copy of the other, no transpose or reshape."""
        return a[0].shape == b[0].shape and self.same_order(a, b)

    def region(self, ops: Iterable[int]) -> list[int]:
        """Return some operations and those behind them that make what the file does not have, and no other node does.

        What does not depend on the inputs is not followed.
        """
        region = dict.fromkeys(ops)
        pending = list(region)
        while pending and len(region) < _REGION:
            for value in self.trace.ops[pending.pop()].reads:
                producer = self.trace.producers.get(value)
                if producer is None or producer in region or producer in self.done:
                    continue
                in_file = self.classes.of_value.get(value) in self.present
                if not in_file and value in self.trace.varying:
                    region[producer] = None
                    pending.append(producer)
        return sorted(region)

    def attribute(self, tree: CallTree) -> list[Attribution | None]:
        """Return what the matches say of each node."""
        return [None if match is None else self._attribute(match, tree) for match in self.matches]

    def _attribute(self, match: Match, tree: CallTree) -> Attribution:
        evidence = "near" if self.classes.near and match.evidence == "value" else match.evidence
        if match.merged:
            scopes = self.scopes(match.ops)
            return Attribution(scopes[0], scopes, evidence, match.rule)
        # What the run does on the way to these values, and the file nowhere else, the node does.
        scopes = self.scopes(match.ops if match.rule else self.region(match.ops))
        return Attribution(tree.lowest_above(scopes), scopes, evidence, match.rule)

    def _find_moved(self) -> None:
        for node in self.view.nodes:
            read = {made: t for t in reversed(node.reads_values) if (made := self.distinctive_class(t)) is not None}
            for tensor in node.makes:
                made = self.class_of(tensor)
                if made in read and not node.bodies:
                    self.above[tensor] = read[made]
                elif made is not None:
                    self.made[made].append(tensor)

    def _find_below(self) -> dict[int, frozenset[int]]:
        below: dict[int, frozenset[int]] = {}
        for node in reversed(self.view.nodes):
            for tensor in node.makes:
                classes: set[int] = set()
                for made in (t for reader in self.view.consumers[tensor] for t in self.view.nodes[reader].makes):
                    if self.above.get(made) == tensor:
                        classes |= below.get(made, frozenset())
                    elif (other := self.distinctive_class(made)) is not None:
                        classes.add(other)
                below[tensor] = frozenset(classes)
        return below
