"""Finding an array among named ones by its values: as it is, transposed, rounded, joined, or scaled by channel.

An array is cut into pieces of known ones, each found by its first elements and then compared whole:

    known                       array                         found
    q [8,4]  k [8,4]            [[q], [k]]  [16,4]            q, k: fused
    w [8,4]                     w.T         [4,8]             w: transposed
    w [8,4]                     w[c] * s[c] in 8 bits         w: scaled

One piece is a known array as it is or transposed; several are arrays that were joined, as query, key and value often
are, or one whose parts were put in another order, as the gates of an LSTM are. What is no such thing may still be a
known array scaled channel by channel, as by quantization or a folded normalization: within each channel it is
proportional to it, but for an offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

FEW = 8
"""Elements that find a piece of an array, and the least whose equality says something."""
_PARTS = (1, 2, 3, 4)
"""An array may be found in this many equal parts: joined projections have three, the gates of an LSTM are four."""
_SAMPLE = 64
_ALIKE = 0.995
"""How proportional a scaled channel must be, as a correlation."""
_ALIKE_ROUNDED, _STEPS = 0.98, 16
"""The same for 8 bits, and how many steps of them a channel must have: 16 leave more than 0.99."""
_CHANNELS = 8
_LEAST_FREE = 3
_CROWD = 1000
"""Arrays of one shape among which a scaled one is looked for; with more it could take all day."""


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """What an initializer holds: the names of the parameters and buffers, and how that is known."""

    parameters: tuple[str, ...]
    how: str
    """`name`, `value`, `transposed` (the values in another order), `scaled` (proportional channel by channel) or
    `fused` (several parameters in one)."""


def is_distinctive(array: Array) -> bool:
    """Say whether an array can hardly be equal to another by chance: enough numbers, and more than a pattern of few."""
    if array.dtype.kind != "f" or array.size < FEW:
        return False
    sample = array.ravel()[:: max(1, array.size // 256)]
    return np.unique(sample).size > min(FEW, sample.size // 2)


def as_numbers(array: Array) -> Array | None:
    """Return an array of a type that numpy computes with; None for texts."""
    if array.dtype.kind in "biuf":
        return array
    # The types that numpy has from elsewhere: bfloat16, float8, int4.
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.itemsize <= 2 else None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an array's elements in their order."""

    number: int
    start: int
    length: int


class WeightIndex:
    """Named arrays by their first elements, in whole and in parts; and by shape.

    Attributes:
        names: All names of each array; of a parameter the first is the canonical one.
        arrays: The arrays.
    """

    def __init__(self) -> None:
        self.names: list[tuple[str, ...]] = []
        self.arrays: list[Array] = []
        self._numbers: dict[str, int] = {}
        self._whole: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._pieces: dict[bytes, list[_Piece]] = defaultdict(list)
        self._shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._channels: dict[tuple[tuple[int, ...], int, int], Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def add(self, names: tuple[str, ...], array: Array) -> None:
        """Add an array under its names; no copy is made."""
        number = len(self.arrays)
        self.names.append(names)
        self.arrays.append(array)
        self._numbers.update(dict.fromkeys(names, number))
        if array.dtype.kind != "f" or not array.size:
            return
        flat = array.ravel()
        self._whole[array.size, _key(flat)].append(number)
        if is_distinctive(array):
            self._shapes[array.shape].append(number)
            self._channels.clear()
            for piece in _cut_evenly(number, array):
                self._pieces[_key(flat[piece.start :])].append(piece)

    def find_named(self, name: str, array: Array) -> int | None:
        """Return the number of the array of this name, if it has these values too."""
        number = self._numbers.get(name)
        return number if number is not None and self._is(number, array.ravel()) else None

    def find(self, array: Array) -> HeldParameter | None:
        """Find what an array holds by its values."""
        distinctive = is_distinctive(array)
        for turned, how in ((array, "value"), (array.T, "transposed")) if array.dtype.kind == "f" else ():
            flat = turned.ravel()
            number = next((n for n in self._whole.get((array.size, _key(flat)), ()) if self._is(n, flat)), None)
            if number is not None and array.size >= FEW:
                return HeldParameter(self.names[number], how)
            if distinctive and (joined := self._join(flat)):
                numbers = dict.fromkeys(piece.number for piece in joined)
                return HeldParameter(tuple(name for n in numbers for name in self.names[n]), "fused")
            if array.ndim != 2:
                break
        return self._find_scaled(array)

    def _is(self, number: int, flat: Array) -> bool:
        return _same(flat, self.arrays[number].ravel())

    def _join(self, flat: Array) -> list[_Piece]:
        """Cut an array into pieces of known ones; none if it cannot be cut."""
        pieces: list[_Piece] = []
        offset = 0
        while offset < flat.size:
            piece = next((p for p in self._pieces.get(_key(flat[offset:]), ()) if self._fits(p, flat, offset)), None)
            if piece is None:
                return []
            pieces.append(piece)
            offset += piece.length
        return pieces

    def _fits(self, piece: _Piece, flat: Array, offset: int) -> bool:
        part = self.arrays[piece.number].ravel()[piece.start : piece.start + piece.length]
        return _same(flat[offset : offset + piece.length], part)

    # -- scaled channel by channel

    def _find_scaled(self, array: Array) -> HeldParameter | None:
        """Find the array to which another is proportional in several of its channels."""
        if array.ndim < 2:
            return None
        for turned in (array, array.T) if array.ndim == 2 else (array,):
            for axis in range(2 if array.ndim == 2 else 1):
                number = self._find_proportional(turned, axis)
                if number is not None:
                    return HeldParameter(self.names[number], "scaled")
        return None

    def would_find_rounded(self, array: Array) -> bool:
        """Say whether an array in 8 bits would have been found if it were a known one: some have its shape."""
        if not _is_rounded(array) or array.ndim < 2:
            return False
        return any(self._choose_channels(turned, 0) for turned in ((array, array.T) if array.ndim == 2 else (array,)))

    def _choose_channels(self, array: Array, axis: int) -> list[int]:
        """Choose the channels to compare an array by; none if it could be proportional in them by chance."""
        if not 0 < len(self._shapes.get(array.shape, ())) <= _CROWD:
            return []
        count = array.shape[axis]
        chosen = [p for p in range(0, count, max(1, count // _CHANNELS)) if _is_fine(np.take(array, p, axis))]
        # A line of three numbers is proportional to any other now and then, but not several of them at once.
        free = array.size // count - 2
        return chosen if free >= 1 and free * len(chosen) >= _LEAST_FREE else []

    def _find_proportional(self, array: Array, axis: int) -> int | None:
        positions = self._choose_channels(array, axis)
        if not positions:
            return None
        alike = self._shapes[array.shape]
        score = np.ones(len(alike))
        for position in positions:
            channels = self._take_channels(array.shape, axis, position)
            score = np.minimum(score, np.abs(channels @ _channel(array, axis, position)))
        best = int(np.argmax(score))
        return alike[best] if score[best] > (_ALIKE_ROUNDED if _is_rounded(array) else _ALIKE) else None

    def _take_channels(self, shape: tuple[int, ...], axis: int, position: int) -> Array:
        key = (shape, axis, position)
        if key not in self._channels:
            arrays = [self.arrays[number] for number in self._shapes[shape]]
            self._channels[key] = np.stack([_channel(array, axis, position) for array in arrays])
        return self._channels[key]


def _same(ours: Array, theirs: Array) -> bool:
    """Say whether two arrays are equal, up to the precision of the lesser type."""
    if ours.size != theirs.size:
        return False
    if ours.dtype == theirs.dtype:
        return bool(np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"))
    if ours.dtype.kind != "f" or theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    rtol = 1e-5 if min(ours.dtype.itemsize, theirs.dtype.itemsize) >= 4 else 1e-2
    return bool(np.allclose(ours, theirs, rtol=rtol, atol=1e-6, equal_nan=True))


def _key(flat: Array) -> bytes:
    """Key the first elements; rounding to half precision does not matter, nor what converters make of tiny numbers."""
    first = flat[:FEW].astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where(np.abs(first) < 1e-6, 0, first).astype(np.float16).tobytes()


def _cut_evenly(number: int, array: Array) -> Iterator[_Piece]:
    """Cut an array into equal parts along its first axis, the largest first."""
    for parts in _PARTS:
        length = array.size // parts
        if array.shape[0] % parts == 0 and length >= FEW:
            yield from (_Piece(number, part * length, length) for part in range(parts))


def _is_rounded(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.dtype.itemsize == 1


def _is_fine(line: Array) -> bool:
    """Say whether a channel is as it was but for its scale: in few steps of 8 bits too much was lost."""
    return not _is_rounded(line) or int(line.max()) - int(line.min()) >= _STEPS


def _channel(array: Array, axis: int, position: int) -> Array:
    """Return some elements of one channel, their mean taken away and scaled to length 1."""
    line = np.take(array, position, axis).ravel()[:_SAMPLE].astype(np.float64)
    line = line - line.mean()
    size = float(np.linalg.norm(line))
    return line / size if size > 0 and np.isfinite(size) else np.zeros_like(line)
