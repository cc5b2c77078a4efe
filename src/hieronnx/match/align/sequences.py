"""Choosing pairs: along two sequences, and by votes; near linear where the two sides are much alike."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# Up to so many insertions and deletions the exact answer is looked for; its cost grows with their square.
_EXACT_EDITS = 400
_MOST_EXCHANGED = 40


def align_sequences(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of positions that hold equal items, rising in both: as many as possible if a and b are alike."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    middle = _align_exactly(middle_a, middle_b) if middle_a and middle_b else []
    if middle is None:
        middle = _align_by_rank(middle_a, middle_b)
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(a) - end + i, len(b) - end + i) for i in range(end)),
    ]


def _align_exactly(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """Find the longest common subsequence by Myers' greedy walk; None if the two are too far apart."""
    if abs(len(a) - len(b)) > _EXACT_EDITS:
        return None
    furthest: dict[int, int] = {1: 0}  # on each diagonal i - j, how far into `a` a walk of so many edits gets
    steps: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _EXACT_EDITS) + 1):
        steps.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            i, _ = _enter(furthest, diagonal, edits)
            while i < len(a) and i - diagonal < len(b) and a[i] == b[i - diagonal]:
                i += 1
            furthest[diagonal] = i
            if i >= len(a) and i - diagonal >= len(b):
                return _walk_back(steps, len(a), len(b))
    return None


def _enter(furthest: dict[int, int], diagonal: int, edits: int) -> tuple[int, bool]:
    """Return where in `a` the walk enters a diagonal, and whether by an insertion, not a deletion."""
    inserted = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
    return (furthest[diagonal + 1] if inserted else furthest[diagonal - 1] + 1), inserted


def _walk_back(steps: list[dict[int, int]], i: int, j: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(steps) - 1, -1, -1):
        entered, inserted = _enter(steps[edits], i - j, edits)
        while i > entered:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = (i, j - 1) if inserted else (i - 1, j)
    return pairs[::-1]


def _align_by_rank(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pair the first of each item with the first, the second with the second, and keep what rises in both."""
    positions = group(reversed(range(len(b))), b.__getitem__)
    pairs = [(i, positions[item].pop()) for i, item in enumerate(a) if positions.get(item)]
    return [pairs[index] for index in longest_rising([j for _, j in pairs])]


def longest_rising(values: Sequence[int]) -> list[int]:
    """Return the positions of a longest strictly rising subsequence."""
    tails: list[int] = []
    ends, before = list[int](), list[int]()
    for position, value in enumerate(values):
        length = bisect_left(tails, value)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1], ends[length : length + 1] = [value], [position]  # replace, or append
    rising = []
    position = ends[-1] if ends else -1
    while position >= 0:
        rising.append(position)
        position = before[position]
    return rising[::-1]


def exchange_partners(
    pairs: Sequence[tuple[int, int]], votes: Mapping[tuple[int, int | None], float]
) -> list[tuple[int, int]]:
    """Let pairs exchange partners as long as two of them have more votes so."""
    current = set(pairs)
    wanted = {item for pair in votes if pair not in current for item in pair}
    movable = [pair for pair in pairs if not wanted.isdisjoint(pair)]
    if len(movable) > _MOST_EXCHANGED:
        return list(pairs)
    others = [pair for pair in pairs if wanted.isdisjoint(pair)]
    improved = True
    while improved:
        improved = False
        for i, j in combinations(range(len(movable)), 2):
            (a, b), (c, d) = movable[i], movable[j]
            if votes.get((a, d), 0) + votes.get((c, b), 0) > votes.get((a, b), 0) + votes.get((c, d), 0):
                movable[i], movable[j] = (a, d), (c, b)
                improved = True
    return others + movable


def group(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by their keys."""
    groups: dict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
