"""The cuts that make the slowest of some stages as fast as it can be, and among these let the fewest bytes cross.

Both by dynamic programming over the places in order: first the least that the slowest stage can cost, then the fewest
bytes with no stage that costs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hieronnx.errors import InputError

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Costs:
    """What stages cost.

    Attributes:
        stages: by the places where they begin and end: `stages[i, j]` is that of the places from i up to j.
        crossing: the bytes that cross a cut before each place.
    """

    stages: Numbers
    crossing: Numbers


def sum_costs(costs: Sequence[float]) -> Numbers:
    """Return what stages cost if each place has a cost of its own."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])
    return np.asarray(sums[None, :] - sums[:, None])


def join_weights(count: int, weights: Sequence[tuple[int, Sequence[int]]]) -> Numbers:
    """Return how many bytes of weights stages have, each weight once; given are its bytes and who reads it."""
    first_read = np.zeros((count + 1, count + 1))
    for size, places in weights:
        begin = 0
        for place in sorted(set(places)):
            first_read[begin : place + 1, place + 1] += size  # of stages that begin there, it is read here first
            begin = place + 1
    return np.asarray(np.cumsum(first_read, axis=1))


def choose_cuts(costs: Costs, stages: int) -> list[int]:
    """Choose the places to cut before, for a number of stages.

    Raises:
        InputError: If no such stages are possible.
    """
    count = len(costs.stages) - 1
    if stages > count:
        raise InputError(f"the model has {count} places to cut it into stages, too few for {stages}")
    slowest = _find_least(costs.stages, np.zeros(count + 1), stages, join=np.maximum)[0]
    if not np.isfinite(slowest):
        raise InputError(f"no {stages} stages are within the limit; give more stages, or a higher limit")
    allowed = np.where(costs.stages <= slowest, 0.0, np.inf)
    return _find_least(allowed, costs.crossing, stages, join=np.add)[1]


def count_stages(sizes: Numbers, limit: float) -> int:
    """Return how many stages are needed if none may be larger; the places from one to the next grow a stage.

    Raises:
        InputError: If one place alone is larger.
    """
    count, begin, stages = len(sizes) - 1, 0, 0
    while begin < count:
        end = int(np.searchsorted(sizes[begin], limit, side="right")) - 1
        if end <= begin:
            raise InputError(f"one call alone has {int(sizes[begin, begin + 1]):,} bytes of weights, over the limit")
        begin, stages = min(end, count), stages + 1
    return stages


def _find_least(table: Numbers, crossing: Numbers, stages: int, join: Any) -> tuple[float, list[int]]:
    """Return the least that a row of stages costs, joined by maximum or sum, and where these are cut."""
    count = len(table) - 1
    best = join(table[0], 0.0)
    choices = []
    for _ in range(1, stages):
        before = join(best, crossing)  # a cut at each place, behind the best stages up to there
        candidates = join(before[:, None], table)
        candidates[np.tril_indices(count + 1)] = np.inf  # no stage is empty
        candidates[0] = np.inf
        choices.append(candidates.argmin(axis=0))
        best = candidates.min(axis=0)
    cuts, end = [], count
    for choice in reversed(choices):
        end = int(choice[end])
        cuts.append(end)
    return float(best[count]), cuts[::-1]
