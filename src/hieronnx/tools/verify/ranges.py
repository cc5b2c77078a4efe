"""Numbers outside of the ranges that a file was calibrated for: which errors they make.

A quantizer clips what its scale and zero point have no number for. One that has none below zero may have had a Relu
merged into it, or may have seen none when the file was calibrated; which it is is seen by the reference's numbers::

    x ─→ QuantizeLinear ─→ y        as the reference with x below zero clipped: a Relu
                                    as the reference with x as it is: x was above zero when the file was calibrated
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from hieronnx.runtime.precise import make_precise
from hieronnx.runtime.slices import Slice, is_copy_of
from hieronnx.runtime.unrounded import list_limited
from hieronnx.tools.verify.deviation import Deviation
from hieronnx.tools.verify.observing import Observation

LARGE = 0.1
"""The error from which on it is asked whether ranges make it, as a part of a tensor's size: rounding makes less."""
_MOST_LIMITED = 8
_LESS, _LITTLE = 0.9, 0.5
"""What a limit that goes must leave of an error at most, and what all of them together."""


def find_lifted(seen: Observation, steps: Sequence[Slice]) -> frozenset[str]:
    """Find the tensors in few bits that should hold numbers below zero, and cannot, by steps that go wrong there."""
    limited, lifted = list_limited(seen.graph.model), set[str]()
    for step in steps:
        found = [name for index in step.nodes for name in seen.graph.nodes[index].output if name in limited]
        if 0 < len(found) <= _MOST_LIMITED:
            before = _measure_lifted(seen, step, frozenset())
            helping = frozenset(n for n in found if _measure_lifted(seen, step, frozenset({n})) < _LESS * before)
            if helping and _measure_lifted(seen, step, helping) < _LITTLE * before:
                lifted |= helping
    return frozenset(lifted)


def measure_ranges(seen: Observation, slices: Sequence[Slice]) -> list[Mapping[str, float]]:
    """Measure what slices lose by numbers outside of ranges: for each target the root of the mean square."""
    is_lifted = partial(is_copy_of, seen.lifted)
    limited = seen.run_slices(slices, partial(make_precise, keeps_ranges=True))
    free = seen.run_slices(slices, partial(make_precise, is_lifted=is_lifted))
    return [
        {a.tensor: math.sqrt(max(a.rms**2 - b.rms**2, 0.0)) for a, b in zip(*pair, strict=True)}
        for pair in zip(limited, free, strict=True)
    ]


def _measure_lifted(seen: Observation, step: Slice, lifted: frozenset[str]) -> float:
    (found,) = seen.run_slices([step], partial(make_precise, is_lifted=partial(is_copy_of, lifted)))
    return max(map(_take_error, found))


def _take_error(deviation: Deviation) -> float:
    return math.inf if deviation.is_broken else deviation.rms
