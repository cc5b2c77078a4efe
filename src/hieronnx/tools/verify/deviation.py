"""How far a tensor is from what it should be: the figures that people know, and what a verdict goes by."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


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
    a, e = _without_limits(a, actual.dtype), _without_limits(e, actual.dtype)
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    finite = np.isfinite(a) & np.isfinite(e)
    odd = ~finite & ~same
    if odd.any():
        nans = int((np.isnan(a) != np.isnan(e)).sum())
        return Deviation(tensor, max_abs=math.inf, nans=nans, infs=int(odd.sum()) - nans)
    return _measure_finite(tensor, a[finite], e[finite])


def _measure_finite(tensor: str, a: Array, e: Array) -> Deviation:
    apart = np.abs(a - e)
    if not apart.size or not (most := float(apart.max())):
        return Deviation(tensor)
    sizes = np.abs(e)
    # Of a scale of their own: what is squared may be as large as a mask's least number.
    rms, signal = (_take_rms(array) for array in (apart, sizes))
    relative = rms / signal if signal else math.inf
    there = sizes > 0
    norms = _take_rms(np.abs(a)) * signal
    return Deviation(
        tensor,
        max_abs=most,
        max_rel=float((apart[there] / sizes[there]).max()) if there.any() else None,
        rms=rms,
        relative=relative,
        snr_db=-20 * math.log10(relative) if signal else -math.inf,
        cosine=float(np.real((a / (norms or 1) * np.conj(e)).mean())) if norms else None,
    )


def _take_rms(array: Array) -> float:
    scale = float(array.max())
    return scale * float(np.sqrt(np.square(array / scale).mean())) if scale else 0.0


def _widen(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _without_limits(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array with what is nearly as large as its type allows as infinite: masks are that, and mean that."""
    if dtype.kind != "f":
        return array
    return np.where(np.abs(array) > 0.5 * float(np.finfo(dtype).max), np.copysign(np.inf, array), array)


def fit(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a type, those that are too large for it as the largest that it has."""
    if dtype.kind != "f" or values.dtype.kind != "f" or dtype.itemsize >= values.dtype.itemsize:
        return values.astype(dtype, copy=False)
    limits = np.finfo(dtype)
    finite = np.isfinite(values)
    return np.where(finite, np.clip(values, limits.min, limits.max), values).astype(dtype)
