"""Equal values: those of the eager run put into classes, and for each tensor of the file the class that it is of.

A class takes no account of the order of the values: a view, a transpose and a copy are of the class of what they show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    telling: Sequence[bool]
    of_tensor: Mapping[int, tuple[int | None, ...]]
    """For each tensor of the file the classes of its values; None where the run made no such value."""
    tolerance: float
    """How far apart, as a part of their scale, values of the file and of the run may be."""
    agreement: float
    """The share of the file's telling tensors that are of some class."""
    reached: bool
    """Whether all telling outputs of the file are of some class, and there are some."""

    @property
    def near(self) -> bool:
        """Whether only a wide tolerance makes the two runs equal: lower precision."""
        return self.tolerance > _STEPS[0]


def far(a: Prints, b: Prints) -> float:
    """Return how far two tensors are apart on any set of inputs, in whatever order their values are."""
    found = max(map(distance, a, b))
    return max(found, far_in_order(a, b)) if a[0].plain else found


def far_in_order(a: Prints, b: Prints) -> float:
    """Return how far two tensors are apart, place by place, on any set of inputs."""
    return max(map(order_distance, a, b))


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
    telling = [all(one.telling for one in prints) for prints in shown]
    index = FingerprintIndex((number, prints[0]) for number, prints in enumerate(shown))
    judged = [t for t in computed if t in tensors and all(p.telling for prints in tensors[t] for p in prints)]
    given = [t for t in judged if t in outputs]
    best: Classes | None = None
    for tolerance in _STEPS:
        of_tensor = {
            t: tuple(_find_class(prints, shown, index, tolerance) for prints in found) for t, found in tensors.items()
        }
        known = {t for t in judged if None not in of_tensor[t]}
        agreement = len(known) / len(judged) if judged else 1.0
        reached = bool(given) and known.issuperset(given)
        if best is None or agreement >= best.agreement + _GAIN:
            best = Classes(of_value, members, telling, of_tensor, tolerance, agreement, reached)
        if agreement >= _ENOUGH or reached:
            break
    assert best is not None  # there is a first step
    return best


def _cluster(trace: Trace) -> tuple[dict[int, int], list[list[int]]]:
    index = FingerprintIndex((value, prints[0]) for value, prints in trace.prints.items())
    of_value: dict[int, int] = {}
    members: list[list[int]] = []
    for value in sorted(trace.prints):
        if value in of_value:
            continue
        prints = trace.prints[value]
        found = (other for _, other in index.find(prints[0], _SAME) if other not in of_value)
        group = sorted({value, *(other for other in found if far(prints, trace.prints[other]) <= _SAME)})
        of_value.update(dict.fromkeys(group, len(members)))
        members.append(group)
    return of_value, members


def _find_class(prints: Prints, shown: Sequence[Prints], index: FingerprintIndex, tolerance: float) -> int | None:
    """Return the class that is nearest to a tensor, if one is near enough."""
    nearest, best = tolerance, None
    for apart, number in index.find(prints[0], tolerance):
        if apart > nearest:
            break
        whole = far(prints, shown[number])
        if whole < nearest or (whole == nearest and best is None):
            nearest, best = whole, number
    return best
