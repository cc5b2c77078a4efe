"""Equal values: those of the eager run put into classes, and for each tensor of the file the class that it is of.

A class takes no account of the order of the values: a view, a transpose and a copy are of the class of what they show.
Within a class `Layouts` tells orders and shapes apart, and `Origins` who computed the values from who only moved them:

    eager op, by call                  class     ONNX tensor
    aten.addmm    in encoder.dense     0         h  = Gemm (x, w, b)
    aten.view     in encoder           0         v  = Reshape (h, s)       moved from h: same class, another layout
    aten.tanh     in encoder           1         y  = Tanh (v)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.attribute.by_value.trace import Prints, Trace
from hieronnx.match.fingerprints import FingerprintIndex, distance, order_distance

# The same numbers in another order are summed up otherwise; what is computed twice may differ a little more.
_SAME = 3e-6
_STEPS = (2e-4, 1e-2, 5e-2)
# A wider tolerance must bring that much, or the file is in the precision of the run. If its outputs are, so is all.
_ENOUGH, _GAIN = 0.9, 0.1


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


def classify(
    trace: Trace, tensors: Mapping[int, Sequence[Prints]], computed: Iterable[int], outputs: Collection[int]
) -> Classes:
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
        if agreement >= _ENOUGH or reached:
            break
    assert best is not None  # there is a first step
    return best


def _are_distinctive(prints: Prints) -> bool:
    return all(one.distinctive for one in prints)


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


def _distance_in_order(a: Prints, b: Prints) -> float:
    """Return how far two tensors are apart, place by place, on any set of inputs."""
    return max(map(order_distance, a, b))


# -- within a class ---------------------------------------------------------------------------------------


class Layouts:
    """Compares orders and shapes of the run's values and of the file's tensors: a transpose, a reshape, or a copy."""

    def __init__(self, values: Mapping[int, Prints], tensors: Mapping[int, Sequence[Prints]], tolerance: float) -> None:
        self._values, self._tensors, self._tolerance = values, tensors, tolerance

    def seen(self, tensor: int) -> bool:
        """Say whether the values of a tensor of the file were seen."""
        return tensor in self._tensors

    def kind(self, tensor: int) -> str:
        """Return what numbers a tensor of the file holds."""
        return self._tensors[tensor][0][0].kind if tensor in self._tensors else ""

    def size(self, tensor: int) -> int:
        """Return how many numbers a tensor of the file has that was seen."""
        return self._tensors[tensor][0][0].size

    def same_order(self, value: int, tensor: int) -> bool:
        """Say whether a value and a tensor have their numbers in the same order, whatever their shapes."""
        return tensor in self._tensors and self._near(self._values[value], self._tensors[tensor][0])

    def same(self, value: int, tensor: int) -> bool:
        """Say whether a value and a tensor have the same order and shape."""
        return tensor in self._tensors and self._equal(self._values[value], self._tensors[tensor][0])

    def same_values(self, value: int, other: int) -> bool:
        """Say whether two values of the run have the same order and shape."""
        return self._equal(self._values[value], self._values[other])

    def same_tensors(self, tensor: int, other: int) -> bool:
        """Say whether two tensors of the file have the same order and shape."""
        if tensor not in self._tensors or other not in self._tensors:
            return False
        return self._equal(self._tensors[tensor][0], self._tensors[other][0])

    def _equal(self, a: Prints, b: Prints) -> bool:
        return a[0].shape == b[0].shape and self._near(a, b)

    def _near(self, a: Prints, b: Prints) -> bool:
        return _distance_in_order(a, b) <= self._tolerance


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
                made = of_value.get(value)
                if made is None:
                    continue
                if made in by_class and classes.distinctive[made]:
                    self.above[value] = by_class[made]
                else:
                    self.makers[made].append(value)
                    for source in reads:
                        self.reads[of_value[source], made].append(source)

    def chain(self, value: int) -> Iterator[int]:
        """Yield a value and those that it shows, the nearest first."""
        yield value
        while value in self.above:
            value = self.above[value]
            yield value

    def chains_to(self, made: int, wanted: frozenset[int]) -> set[int]:
        """Return the values of a class from which values of other classes were computed, and all that those show."""
        chains: set[int] = set()
        for other in wanted:
            for value in self.reads.get((made, other), ()):
                for shown in self.chain(value):
                    if shown in chains:
                        break
                    chains.add(shown)
        return chains
