"""Fingerprints: enough of a tensor's values to find it again among others, in another layout or a little rounded.

Two levels. The values without their order: how many, some means, and the values at fixed ranks of the sorted ones.
And the values in their order: some at fixed places, and sums with fixed weights; a reshape keeps it, a transpose does
not. All of these move by no more than the values do, so that near tensors have near fingerprints.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from hieronnx.match.align.sequences import group

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_RANKS = 24
_PLACES = 24
_SORTED = 1 << 13
_BLOCK, _PIECE = 1 << 12, 1 << 16
_SAME, _LEAST = 1e-6, 1e-300
# From here on a number stands for infinity, as the lowest one of its type does in attention masks.
_INFINITE, _HALF_INFINITE, _ORDINARY = 1e30, 6e4, 6e2


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is remembered of a tensor's values."""

    size: int
    shape: tuple[int, ...]
    kind: str
    """What numbers they are, as numpy's dtypes say: `f`, `i`, `b` and so on."""
    bits: int
    """How many bits each of them has."""
    counts: tuple[int, int, int]
    """How many are infinite, minus infinite, or no number."""
    scale: float
    """The root of the mean square of the others."""
    means: Array
    """Of the values, their sizes and their squares with their signs, as parts of the scale."""
    ranks: Array
    """At fixed ranks of the sorted values; few of them where there are many values."""
    places: Array
    """At fixed places, then sums with fixed weights, of the values and of where the infinite ones are."""
    distinctive: bool
    """Whether equality says something: not all the same, nor a mere count."""
    low_information: bool
    """Whether there are only two different values, so that only their order says something."""


def take_fingerprint(array: Array) -> Fingerprint:
    """Return the fingerprint of a tensor; a complex one counts as its parts."""
    real = np.ascontiguousarray(array).view(array.real.dtype) if np.iscomplexobj(array) else array
    flat, counts, infinite = _bound(real.ravel())
    scale, means, weighted = _sum_up(flat, max(flat.size - sum(counts), 1))
    step = flat.size // _SORTED + 1
    ordered = np.sort(flat[::step]).astype(np.float64)
    marked = ordered if infinite is None else np.sort(np.where(infinite[::step], np.inf, flat[::step]))
    distinctive, low_information = _judge(marked, flat.size)
    if step > 1:
        ranks: Array = np.array([flat.min(), flat.max()], dtype=np.float64)
    else:
        few = ordered.size <= _RANKS
        ranks = ordered if few else ordered[np.linspace(0, ordered.size - 1, _RANKS).astype(np.int64)]
    where = _draw_places(flat.size)
    places, hidden = flat[where].astype(np.float64), 0.0
    if infinite is not None:
        places[infinite[where]] = _HALF_INFINITE
        hidden = _HALF_INFINITE * _sum_up(infinite, 1)[2]
    return Fingerprint(
        size=flat.size,
        shape=array.shape,
        kind=array.dtype.kind,
        bits=array.dtype.itemsize * 8,
        counts=counts,
        scale=scale,
        means=means,
        ranks=ranks,
        places=np.append(places, (weighted, hidden)),
        distinctive=distinctive,
        low_information=low_information,
    )


def _bound(flat: Array) -> tuple[Array, tuple[int, int, int], Array | None]:
    """Return the values with zeros for those that count as infinite, how many there are of these, and where."""
    if not flat.size or max(-float(flat.min()), float(flat.max())) < _HALF_INFINITE:  # not so if one is no number
        return flat, (0, 0, 0), None
    wide = flat.astype(np.float64)
    nan = np.isnan(wide)
    sizes = np.where(nan, np.inf, np.abs(wide))
    finite = sizes[(sizes > 0) & (sizes < _INFINITE)]
    # Masks in half precision end earlier.
    ordinary = not finite.size or np.median(finite) < _ORDINARY or finite.min() >= _HALF_INFINITE - 100.0
    infinite = sizes >= (_HALF_INFINITE if ordinary else _INFINITE)
    above, below = infinite & (wide > 0), infinite & (wide < 0)
    counts = int(above.sum()), int(below.sum()), int(nan.sum())
    return np.where(infinite, 0.0, wide), counts, infinite


def _sum_up(flat: Array, count: int) -> tuple[float, Array, float]:
    """Return the scale of some values, their means, and their sum with fixed weights; in pieces that stay small."""
    sums, weighted = np.zeros(4), 0.0
    signs, outer = _draw_signs()
    for number, start in enumerate(range(0, flat.size, _PIECE)):
        piece = flat[start : start + _PIECE].astype(np.float64)
        sizes = np.abs(piece)
        sums += (piece.sum(), sizes.sum(), _dot(piece, piece), _dot(piece, sizes))
        whole = piece.size // _BLOCK * _BLOCK
        blocks = np.einsum("ij,j->i", piece[:whole].reshape(-1, _BLOCK), signs)
        blocks = np.append(blocks, _dot(piece[whole:], signs[: piece.size - whole]))
        first = number * (_PIECE // _BLOCK)
        weighted += _dot(blocks, outer[(np.arange(blocks.size) + first) % outer.size])
    scale = float(np.sqrt(sums[2] / count))
    if not scale:
        return 0.0, np.zeros(3), 0.0
    return scale, sums[[0, 1, 3]] / (count * scale * np.array([1.0, 1.0, scale])), weighted / float(np.sqrt(flat.size))


def _dot(a: Array, b: Array) -> float:
    # For so few numbers the threads of a linear algebra library cost more than they bring.
    return float(np.einsum("i,i", a, b))


@lru_cache(maxsize=64)
def _draw_places(size: int) -> Array:
    """Return the places to look at in a tensor of a size: the same each time."""
    generator = np.random.Generator(np.random.PCG64(size))
    few = size <= _BLOCK
    places: Array = generator.permutation(size)[:_PLACES] if few else generator.integers(0, size, _PLACES)
    return np.sort(places)


@lru_cache(maxsize=1)
def _draw_signs() -> tuple[Array, Array]:
    """Return the weights for sums, within a block and of the blocks: the same each time."""
    signs: Array = np.random.Generator(np.random.PCG64(0)).choice([-1.0, 1.0], _BLOCK + 4099)
    return signs[:_BLOCK], signs[_BLOCK:]


def _judge(ordered: Array, size: int) -> tuple[bool, bool]:
    """Say whether equality to some sorted values says something, and whether there are only two different ones."""
    if size <= 2:
        return False, False
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    distinct, counts = ordered[starts], np.diff(np.append(starts, ordered.size))
    if distinct.size == 1:
        return False, False
    if distinct.size == 2:
        return size >= 6, True
    finite = distinct[np.isfinite(distinct)]
    whole = np.array_equal(finite, np.round(finite))
    is_count = finite.size == np.ptp(finite) + 1 and np.ptp(counts) == 0
    if whole and (size <= 6 or is_count):
        return False, False
    return bool(np.ptp(finite) > _SAME * np.abs(finite).max()), False


def distance(a: Fingerprint, b: Fingerprint) -> float:
    """Return how far two tensors are apart without regard to order, as a part of their scale; infinite for never."""
    if a.size != b.size or a.counts != b.counts:
        return np.inf
    scale = max(a.scale, b.scale)
    if not scale:
        return 0.0
    apart = float(max(abs(a.scale - b.scale) / scale, np.abs(a.means - b.means).max()))
    return max(apart, _apart(a.ranks, b.ranks, scale)) if a.ranks.size else apart


def order_distance(a: Fingerprint, b: Fingerprint) -> float:
    """Return how far two tensors of the same size are apart, place by place."""
    return np.inf if a.size != b.size else _apart(a.places, b.places, max(a.scale, b.scale))


def _apart(a: Array, b: Array, scale: float) -> float:
    # A value that is large by itself may be off by more.
    return float((np.abs(a - b) / np.maximum(scale + np.maximum(np.abs(a), np.abs(b)), _LEAST)).max())


class FingerprintIndex:
    """Tensors to be found by their values."""

    def __init__(self, items: Iterable[tuple[int, Fingerprint]]) -> None:
        scaled = ((item.scale, number, item) for number, item in items)
        groups = group(scaled, lambda item: (item[2].size, item[2].counts))
        self._groups = {key: sorted(members, key=lambda item: item[:2]) for key, members in groups.items()}
        self._scales = {key: [scale for scale, _, _ in members] for key, members in self._groups.items()}

    def find(self, wanted: Fingerprint, tolerance: float) -> list[tuple[float, int]]:
        """Return the tensors of nearly these values, each with its distance, the nearest first."""
        key = wanted.size, wanted.counts
        scales: Sequence[float] = self._scales.get(key, ())
        low = bisect_left(scales, wanted.scale * (1.0 - tolerance))
        high = bisect_right(scales, wanted.scale / (1.0 - tolerance))
        near = ((distance(wanted, item), number) for _, number, item in self._groups.get(key, ())[low:high])
        return sorted(pair for pair in near if pair[0] <= tolerance)
