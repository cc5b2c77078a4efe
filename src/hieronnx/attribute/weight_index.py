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
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

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
    telling: bool = True
    """Whether that says whose it is: neither do equal values of several modules, nor one value throughout."""


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
        self._pieces: dict[bytes, list[tuple[int, int, int]]] = defaultdict(list)
        """Parts of arrays: the number of the array, where in its elements the part begins, and how long it is."""
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
        for key in {_key(flat), _key(flat, bfloat16)}:
            self._whole[array.size, key].append(number)
        if is_distinctive(array):
            self._shapes[array.shape].append(number)
            self._channels.clear()
            for parts in _PARTS:  # along the first axis, the largest first
                length = array.size // parts
                if array.shape[0] % parts == 0 and length >= FEW:
                    for start in range(0, array.size, length):
                        self._pieces[_key(flat[start:])].append((number, start, length))

    def find_named(self, name: str, array: Array, present: Collection[str]) -> HeldParameter | None:
        """Return what an array holds that has the name of a known one, if it has its values too.

        Of known ones with equal contents there may be one array for all: then it is all those whose names are not
        present.
        """
        number = self._numbers.get(name)
        if number is None or not _same(array.ravel(), self.arrays[number].ravel()):
            return None
        return HeldParameter((name, *(other for other in self.names[number] if other not in present)), "name")

    def find(self, array: Array) -> HeldParameter | None:
        """Find what an array holds by its values."""
        distinctive = is_distinctive(array)
        for turned, how in ((array, "value"), (array.T, "transposed")) if array.dtype.kind == "f" else ():
            flat = turned.ravel()
            keys = {_key(flat), _key(flat, bfloat16)} if array.size >= FEW else ()
            alike = sorted({number for key in keys for number in self._whole.get((array.size, key), ())})
            equal = [number for number in alike if _same(flat, self.arrays[number].ravel())]
            if equal:
                names = tuple(name for number in equal for name in self.names[number])
                return HeldParameter(names, how, telling=bool(np.ptp(flat) > 0))
            if distinctive and (joined := self._find_joined(flat)):
                return HeldParameter(tuple(name for n in dict.fromkeys(joined) for name in self.names[n]), "fused")
            if array.ndim != 2:
                break
        return self._find_scaled(array)

    def _find_joined(self, flat: Array) -> list[int]:
        """Cut an array into pieces of known ones, and return these; none if it cannot be cut."""
        numbers: list[int] = []
        while flat.size:
            for number, start, length in self._pieces.get(_key(flat), ()):
                if _same(flat[:length], self.arrays[number].ravel()[start : start + length]):
                    numbers.append(number)
                    flat = flat[length:]
                    break
            else:
                return []
        return numbers

    # -- scaled channel by channel

    def _find_scaled(self, array: Array) -> HeldParameter | None:
        """Find the array to which another is proportional in several of its channels."""
        turned_too = ((array.T, 0), (array.T, 1)) if array.ndim == 2 else ()
        ways = ((array, 0), (array, 1), *turned_too)  # a transposed convolution has its output channels second
        for turned, axis in ways if array.ndim >= 2 else ():
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
        chosen = list(range(0, count, max(1, count // _CHANNELS)))
        if _is_rounded(array):  # in few steps of 8 bits too much is lost
            chosen = [p for p in chosen if np.ptp(np.take(array, p, axis).astype(np.int16)) >= _STEPS]
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
            key = (array.shape, axis, position)
            if key not in self._channels:
                self._channels[key] = np.stack([_channel(self.arrays[n], axis, position) for n in alike])
            score = np.minimum(score, np.abs(self._channels[key] @ _channel(array, axis, position)))
        best = int(np.argmax(score))
        return alike[best] if score[best] > (_ALIKE_ROUNDED if _is_rounded(array) else _ALIKE) else None


def _same(ours: Array, theirs: Array) -> bool:
    """Say whether two arrays are equal, up to the precision of the lesser type."""
    if ours.size != theirs.size:
        return False
    if ours.dtype == theirs.dtype:
        equal = bool(np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"))
        return equal or (ours.dtype == np.float32 and _is_same_in_bfloat16(ours, theirs))
    if ours.dtype.kind != "f" or theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    rtol = 1e-5 if min(ours.dtype.itemsize, theirs.dtype.itemsize) >= 4 else 1e-2
    return bool(np.allclose(ours, theirs, rtol=rtol, atol=1e-6, equal_nan=True))


def _is_same_in_bfloat16(ours: Array, theirs: Array) -> bool:
    """Say whether one of two arrays is the other in bfloat16, which leaves the lower half of a float's bits zero."""
    if not any(is_distinctive(a) and not (np.ascontiguousarray(a).view(np.uint32) << 16).any() for a in (ours, theirs)):
        return False
    return bool(np.allclose(ours, theirs, rtol=2**-7, atol=1e-6, equal_nan=True))


def _key(flat: Array, rounding: npt.DTypeLike = np.float16) -> bytes:
    """Key the first elements, so that rounding them does not matter, nor what converters make of tiny numbers."""
    first = flat[:FEW].astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where(np.abs(first) < 1e-6, 0, first).astype(rounding).tobytes()


def _is_rounded(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.dtype.itemsize == 1


def _channel(array: Array, axis: int, position: int) -> Array:
    """Return some elements of one channel, their mean taken away and scaled to length 1."""
    line = np.take(array, position, axis).ravel()[:_SAMPLE].astype(np.float64)
    line = line - line.mean()
    size = float(np.linalg.norm(line))
    return line / size if size > 0 and np.isfinite(size) else np.zeros_like(line)
