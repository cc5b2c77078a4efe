"""How far a tensor is from what it should be: the figures that people know, and what a verdict goes by."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_VISIBLE, _MUCH = 1e-5, 1e-2
"""The error from which on it is told where it is, and the part of the largest difference that counts as one."""
_ALIKE = 0.1
"""How far apart two tensors may be that are the same but for rounding, as a part of how much their numbers vary."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one tensor is from its reference, of several samples the worst.

    Attributes:
        tensor: The tensor of the file.
        max_abs: The largest difference.
        max_rel: The largest difference as a part of the reference at that place; None where all of that is zero.
        rms: The root of the mean square of the differences.
        relative: `rms` as a part of that of the reference; infinite where that is zero and they differ.
        snr_db: The same as a ratio of signal to noise, in decibels; None where nothing differs.
        cosine: The cosine of the angle between both; None where one of them is zero.
        nans: At how many places only one of them is not a number.
        infs: At how many places only one of them is infinite.
        mismatch: What makes them different beyond numbers: another shape, or numbers of another kind.
        sample: The sample that it is worst on.
        where: The part of the tensor outside which nothing differs by a hundredth as much, as an index, `1, 0:3, :`;
            empty where that is the whole, or the error is that of rounding.
    """

    tensor: str
    max_abs: float = 0.0
    max_rel: float | None = 0.0
    rms: float = 0.0
    relative: float = 0.0
    snr_db: float | None = None
    cosine: float | None = None
    nans: int = 0
    infs: int = 0
    mismatch: str = ""
    sample: int = 0
    where: str = ""

    @property
    def is_broken(self) -> bool:
        """Whether no tolerance covers it: another shape, or something that is no number."""
        return bool(self.mismatch or self.nans or self.infs)

    @property
    def severity(self) -> float:
        """What deviations are ranked by."""
        return math.inf if self.is_broken else self.relative

    def on(self, sample: int) -> Deviation:
        """Return the same as that of a sample."""
        return replace(self, sample=sample)


def measure(tensor: str, actual: Array, expected: Array) -> Deviation:
    """Measure how far a tensor is from its reference, as far as its type can hold that."""
    if actual.shape != expected.shape:
        return Deviation(tensor, mismatch=f"its shape is {list(actual.shape)}, not {list(expected.shape)}")
    if (actual.dtype.kind in "fc") != (expected.dtype.kind in "fc"):
        return Deviation(tensor, mismatch=f"it has {actual.dtype}, not {expected.dtype}")
    if not actual.size:
        return Deviation(tensor)
    a, e = _widen(actual), _widen(fit(expected, actual.dtype))
    with np.errstate(invalid="ignore"):  # of what is infinite in both
        apart = np.abs(a - e)
    most = float(apart.max())
    if not math.isfinite(most) or _is_near_limit(a, actual.dtype) or _is_near_limit(e, actual.dtype):
        return _measure_odd(tensor, a, e, actual)
    found = _measure_finite(tensor, a, e, apart, most)
    if found.relative > _VISIBLE:
        return replace(found, where=_describe_place(apart > most * _MUCH, actual.shape))
    return found


def has_same_numbers(actual: Array, expected: Array) -> bool:
    """Say whether two tensors, whatever their shapes, have about the same numbers in the same order.

    They are compared by how much the numbers vary: in another order, these would be as far apart as that.
    """
    if actual.size != expected.size or actual.dtype.kind != "f" or expected.dtype.kind != "f":
        return False
    a, e = _widen(actual), _widen(expected)
    spread = float(e.std()) if np.isfinite(e).all() else 0.0
    return spread > 0 and bool(_take_rms(a - e) < _ALIKE * spread)


def _measure_odd(tensor: str, a: Array, e: Array, actual: Array) -> Deviation:
    """Measure tensors that are not finite everywhere, or nearly not: masks are that, and mean that."""
    a, e = (np.where(_near_limit(array, actual.dtype), np.copysign(np.inf, array.real), array) for array in (a, e))
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    finite = np.isfinite(a) & np.isfinite(e)
    odd = ~finite & ~same
    if odd.any():
        nans = int((np.isnan(a) != np.isnan(e)).sum())
        where = _describe_place(odd, actual.shape)
        return Deviation(tensor, max_abs=math.inf, nans=nans, infs=int(odd.sum()) - nans, where=where)
    if not finite.any():
        return Deviation(tensor)
    a, e = a[finite], e[finite]
    apart = np.abs(a - e)
    return _measure_finite(tensor, a, e, apart, float(apart.max()))


def _measure_finite(tensor: str, a: Array, e: Array, apart: Array, most: float) -> Deviation:
    if not most:
        return Deviation(tensor)
    sizes = np.abs(e)
    rms, signal, size = (_take_rms(array) for array in (apart, sizes, a))
    relative = rms / signal if signal else math.inf
    there = sizes > 0
    ratios = np.divide(apart, sizes, out=np.zeros_like(apart), where=there)
    return Deviation(
        tensor,
        max_abs=most,
        max_rel=float(ratios.max()) if signal else None,
        rms=rms,
        relative=relative,
        snr_db=-20 * math.log10(relative) if signal else -math.inf,
        cosine=float(np.vdot(e, a).real) / a.size / (size * signal) if size and signal else None,
    )


def _describe_place(flat: Array, shape: tuple[int, ...]) -> str:
    """Write the smallest part of a tensor that has all marked places, as an index; nothing where that is the whole."""
    if not shape:
        return ""
    marked, axes = flat.reshape(shape), range(len(shape))
    along = (np.flatnonzero(marked.any(axis=tuple(other for other in axes if other != axis))) for axis in axes)
    spans = [(int(found[0]), int(found[-1]) + 1, size) for found, size in zip(along, shape, strict=True)]
    if all(stop - start == size for start, stop, size in spans):
        return ""
    return ", ".join(_describe_span(*span) for span in spans)


def _describe_span(start: int, stop: int, size: int) -> str:
    if stop - start == size:
        return ":"
    return str(start) if stop - start == 1 else f"{start}:{stop}"


def _take_rms(array: Array) -> float:
    return math.sqrt(float(np.vdot(array, array).real) / array.size)


def _near_limit(array: Array, dtype: np.dtype[Any]) -> Array:
    return np.abs(array) > 0.5 * float(np.finfo(dtype).max) if dtype.kind == "f" else np.zeros(array.shape, bool)


def _is_near_limit(array: Array, dtype: np.dtype[Any]) -> bool:
    limit = 0.5 * float(np.finfo(dtype).max) if dtype.kind == "f" else math.inf
    return bool(array.max() > limit or array.min() < -limit) if dtype.kind != "c" else False


def _widen(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).ravel()


def fit(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a type, those that are too large for it as the largest that it has."""
    if dtype.kind != "f" or values.dtype.kind != "f" or dtype.itemsize >= values.dtype.itemsize:
        return values.astype(dtype, copy=False)
    limits = np.finfo(dtype)
    finite = np.isfinite(values)
    return np.where(finite, np.clip(values, limits.min, limits.max), values).astype(dtype)
