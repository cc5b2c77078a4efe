"""Equal values: those of the eager run put into classes, and for each tensor of the file the class that it is of.

A class takes no account of the order of the values: a view, a transpose and a copy are of the class of what they show.
Within a class fingerprints tell orders and shapes apart, and `Origins` who computed the values from who moved them:

    eager op, by call                  class     ONNX tensor
    aten.addmm    in encoder.dense     0         h  = Gemm (x, w, b)
    aten.view     in encoder           0         v  = Reshape (h, s)       moved from h: same class, another layout
    aten.tanh     in encoder           1         y  = Tanh (v)

`Projection` is what is known of the two together: the file, the run, their equal values, and what was matched so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile

from hieronnx.attribute.by_value.trace import FilePrints, Prints, Trace
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.match.fingerprints import Fingerprint, FingerprintIndex, distance, order_distance

# The same numbers in another order are summed up otherwise; what is computed twice may differ a little more.
_SAME = 3e-6
_STEPS = (2e-4, 1e-2, 5e-2)
# A wider tolerance must bring that much, or the file is in the precision of the run. If its outputs are, so is all; but
# of less precision an output may have lost little, and what is on the way to it more.
_ENOUGH, _GAIN = 0.9, 0.1
# In less precision single numbers are farther apart than sorted ones.
_SCATTER = 4
_REGION = 500


@dataclass(frozen=True, slots=True)
class Classes:
    """Which values are equal."""

    of_value: Mapping[int, int]
    members: Sequence[Sequence[int]]
    """The values of each class, in the order in which they were made."""
    distinctive: Sequence[bool]
    """For each class whether equality to its values says something."""
    of_tensor: Mapping[int, tuple[int | None, ...]]
    """For each tensor of the file the classes of its values; None where the run made no such value."""
    tolerance: float
    """How far apart, as a part of their scale, values of the file and of the run may be."""
    agreement: float
    """The share of the file's distinctive tensors that are of some class."""
    reached: bool
    """Whether all distinctive outputs of the file are of some class, and there are some."""

    @property
    def near(self) -> bool:
        """Whether only a wide tolerance makes the two runs equal: lower precision."""
        return self.tolerance > _STEPS[0]


def classify(trace: Trace, tensors: FilePrints, computed: Iterable[int], outputs: Collection[int]) -> Classes:
    """Put the values of a run into classes, and find those of the file's tensors.

    Args:
        trace: The eager run.
        tensors: The fingerprints of the file's tensors.
        computed: Those of them that depend on the inputs: by these it is judged whether the two agree.
        outputs: Those of them that the file gives: by these it is judged how precise it is.
    """
    of_value, members = _cluster(trace)
    shown = [trace.prints[group[0]] for group in members]
    distinctive = [_are_distinctive(prints) for prints in shown]
    index = FingerprintIndex((number, prints[0]) for number, prints in enumerate(shown))
    judged = [t for t in computed if t in tensors and all(map(_are_distinctive, tensors[t]))]
    given = [t for t in judged if t in outputs]
    best: Classes | None = None
    for tolerance in _STEPS:
        of_tensor = {
            t: tuple(_find_class(prints, shown, index, tolerance) for prints in values) for t, values in tensors.items()
        }
        equal = {t for t in judged if None not in of_tensor[t]}
        agreement = len(equal) / len(judged) if judged else 1.0
        reached = bool(given) and equal.issuperset(given)
        if best is None or agreement >= best.agreement + _GAIN:
            best = Classes(of_value, members, distinctive, of_tensor, tolerance, agreement, reached)
        if agreement >= _ENOUGH or (reached and tolerance == _STEPS[0]):
            break
    assert best is not None  # there is a first step
    return best


def _are_distinctive(prints: Prints) -> bool:
    return all(one.distinctive for one in prints)


def is_clear(prints: Prints) -> bool:
    """Say whether a tensor has at least several numbers, on some set of inputs not all the same: a count, a small mask.

    That it is equal to another says something only where little else could be meant.
    """
    return any(one.size > 2 and _has_several(one) for one in prints)


def _has_several(one: Fingerprint) -> bool:
    infinite = sum(one.counts)
    return 0 < infinite < one.size or (not infinite and bool(one.ranks.min() < one.ranks.max()))


def _cluster(trace: Trace) -> tuple[dict[int, int], list[list[int]]]:
    index = FingerprintIndex((value, prints[0]) for value, prints in trace.prints.items())
    of_value: dict[int, int] = {}
    members: list[list[int]] = []
    for value in sorted(trace.prints):
        if value in of_value:
            continue
        prints = trace.prints[value]
        near = (other for _, other in index.find(prints[0], _SAME) if other not in of_value)
        group = sorted({value, *(other for other in near if _distance(prints, trace.prints[other]) <= _SAME)})
        of_value.update(dict.fromkeys(group, len(members)))
        members.append(group)
    return of_value, members


def _find_class(prints: Prints, shown: Sequence[Prints], index: FingerprintIndex, tolerance: float) -> int | None:
    """Return the class that is nearest to a tensor, if one is near enough."""
    nearest, best = tolerance, None
    for apart, number in index.find(prints[0], tolerance):
        if apart > nearest:
            break
        whole = _distance(prints, shown[number])
        if whole < nearest or (whole == nearest and best is None):
            nearest, best = whole, number
    return best


def _distance(a: Prints, b: Prints) -> float:
    """Return how far two tensors are apart on any set of inputs, in whatever order their values are."""
    apart = max(map(distance, a, b))
    return max(apart, _distance_in_order(a, b)) if a[0].low_information else apart


def measure_distance(a: Prints, b: Prints) -> float:
    """Return how far two tensors are apart on any set of inputs, both in whatever order and place by place."""
    return max(*map(distance, a, b), _distance_in_order(a, b))


def _distance_in_order(a: Prints, b: Prints) -> float:
    """Return how far two tensors are apart, place by place, on any set of inputs."""
    return max(map(order_distance, a, b))


# -- within a class ---------------------------------------------------------------------------------------


class Origins:
    """The values of a run: which were computed, and which are only others moved, by views and copies.

    Attributes:
        above: For a value that an operation only moved the value that it moved.
        makers: For each class the values that were computed, in order.
        reads: For two classes the values of the first from which a value of the second was computed.
    """

    def __init__(self, trace: Trace, classes: Classes) -> None:
        self.above: dict[int, int] = {}
        self.makers: dict[int, list[int]] = defaultdict(list)
        self.reads: dict[tuple[int, int], list[int]] = defaultdict(list)
        of_value = classes.of_value
        for op in trace.ops:
            reads = [value for value in op.reads if value in of_value]
            by_class = {of_value[value]: value for value in reversed(reads)}
            for value in op.gives:
                value_class = of_value.get(value)
                if value_class is None:
                    continue
                if value_class in by_class and classes.distinctive[value_class]:
                    self.above[value] = by_class[value_class]
                else:
                    self.makers[value_class].append(value)
                    for source in reads:
                        self.reads[of_value[source], value_class].append(source)

    def chain(self, value: int) -> Iterator[int]:
        """Yield a value and those that it shows, the nearest first."""
        yield value
        while value in self.above:
            value = self.above[value]
            yield value

    def chains_to(self, value_class: int, wanted: frozenset[int]) -> set[int]:
        """Return the values of a class from which values of other classes were computed, and all that those show."""
        chains: set[int] = set()
        for value in (v for other in wanted for v in self.reads.get((value_class, other), ())):
            chains.update(takewhile(lambda shown: shown not in chains, self.chain(value)))
        return chains


# -- the file and the run seen together -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueMatch:
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
        computed: For each class the tensors of the file that are computed, in order.
        tensors_by_class: For each distinctive class the tensors of the file that are of it.
        present: The distinctive classes that the file has.
        below: For each tensor the classes of what is computed from it, through nodes that only move it.
        begins: For each node the stretch of the run before which it cannot have run: what it reads was not yet made. A
            stretch is all that runs in one call until another is entered or that one is left.
        done: The operations of which a match says for sure that some node does them; values with too little information
            to be among those that are present may be matched, too.
    """

    def __init__(self, view: View, trace: Trace, classes: Classes, prints: FilePrints, varying: frozenset[int]) -> None:
        self.view, self.trace, self.classes, self.varying = view, trace, classes, varying
        self.origins = Origins(trace, classes)
        self.seen = {tensor: values[0] for tensor, values in prints.items()}
        self.matches: list[ValueMatch | None] = [None] * len(view.nodes)
        self.done: set[int] = set()
        self.above: dict[int, int] = {}
        self.computed: dict[int, list[int]] = defaultdict(list)
        self.tensors_by_class: dict[int, list[int]] = defaultdict(list)
        self.present: set[int] = set()
        for tensor, numbers in classes.of_tensor.items():
            self.present.update(number for number in numbers if number is not None and classes.distinctive[number])
            if (number := self.distinctive_class(tensor)) is not None:
                self.tensors_by_class[number].append(tensor)
        self._find_moved()
        self.below = self._find_below()
        changes = (before.scope != after.scope for before, after in pairwise(trace.ops))
        self._stretches = list(accumulate(changes, initial=0))
        self.begins = self._find_begins()

    def class_of(self, tensor: int) -> int | None:
        """Return the class of a tensor that has one value."""
        classes = self.classes.of_tensor.get(tensor)
        return classes[0] if classes and len(classes) == 1 else None

    def distinctive_class(self, tensor: int) -> int | None:
        """Return the class of a tensor, if equality to its values says something."""
        value_class = self.class_of(tensor)
        return value_class if value_class is not None and self.classes.distinctive[value_class] else None

    def has_vanished(self, tensor: int) -> bool:
        """Say whether numbers made of the inputs all became one: those of many operations did, where one's did."""
        seen = self.seen.get(tensor)
        if tensor not in self.varying or seen is None or seen[0].kind != "f" or seen[0].size <= 2:
            return False
        return not any(taken.distinctive for taken in seen)

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

    def could_do(self, node: int, op: int) -> bool:
        """Say whether a node could do the work of an operation: when that ran, what the node reads was made."""
        return self._stretches[op] >= self.begins[node]

    def same_order(self, a: Prints, b: Prints) -> bool:
        """Say whether two have their numbers in the same order, whatever their shapes."""
        return _distance_in_order(a, b) <= self.classes.tolerance * (_SCATTER if self.classes.near else 1)

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

    def attribute(self, match: ValueMatch, tree: CallTree) -> Attribution:
        """Return what a match says of its node."""
        evidence = "near" if self.classes.near and match.evidence == "value" else match.evidence
        if match.merged:
            scopes = self.scopes(match.ops)
            return Attribution(scopes[0], scopes, evidence, match.rule)
        # What the run does on the way to these values, and the file nowhere else, the node does.
        scopes = self.scopes(match.ops if match.rule else self.region(match.ops))
        return Attribution(tree.lowest_above(scopes), scopes, evidence, match.rule)

    def _find_moved(self) -> None:
        for node in self.view.nodes:
            read = {c: t for t in reversed(node.reads_values) if (c := self.distinctive_class(t)) is not None}
            for tensor in node.makes:
                value_class = self.class_of(tensor)
                if value_class in read and not node.bodies:
                    self.above[tensor] = read[value_class]
                elif value_class is not None:
                    self.computed[value_class].append(tensor)

    def _find_below(self) -> dict[int, frozenset[int]]:
        below: dict[int, frozenset[int]] = {}
        for node in reversed(self.view.nodes):
            for tensor in node.makes:
                classes: set[int] = set()
                for output in (t for reader in self.view.consumers[tensor] for t in self.view.nodes[reader].makes):
                    if self.above.get(output) == tensor:
                        classes |= below.get(output, frozenset())
                    elif (other := self.distinctive_class(output)) is not None:
                        classes.add(other)
                below[tensor] = frozenset(classes)
        return below

    def _find_begins(self) -> list[int]:
        """Find for each node the last of the stretches of the run in which first was made what it reads.

        Where the run did not make what a node reads, that counts of which it is made, if only by its sizes. Where
        tensors are not so precise, one may be taken for what is made of it later.
        """
        if self.classes.near:
            return [0] * len(self.view.nodes)
        begins: list[int] = []
        made: dict[int, int] = {}
        for node in self.view.nodes:
            begins.append(max((made.get(tensor, 0) for tensor in node.reads), default=0))
            for tensor in node.makes:
                value_class = self.distinctive_class(tensor) if tensor in self.varying else None
                made[tensor] = begins[-1] if value_class is None else self._find_first(value_class)
        return begins

    def _find_first(self, value_class: int) -> int:
        """Return the stretch of the run in which the first value of a class was made; the first for what was given."""
        producers = map(self.trace.producers.get, self.classes.members[value_class])
        return min(0 if op is None else self._stretches[op] for op in producers)
