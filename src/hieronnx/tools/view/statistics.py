"""What the weights are like: the least, the most, mean, deviation, zeros and a histogram of each constant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hieronnx.files.weights import Contents
from hieronnx.tools.extract.source import Source

_BARS = 24
_CHUNK = 1 << 20
_FloatArray = npt.NDArray[np.float64]


def measure_weights(source: Source) -> dict[str, list[Any]]:
    """Measure every constant that is of numbers, by its number in the view; one is in memory at a time.

    Each is `[least, most, mean, deviation, zeros, not finite, histogram]`; the first four of what is finite, None where
    nothing is.

    Raises:
        HieronnxError: If a weight cannot be read.
    """
    contents, found = Contents.of(source.opened, source.view), {}
    for tensor in source.view.constants:
        if tensor in contents.tensors:
            values = contents.read(tensor)
            if values.dtype.kind not in "OSUc":
                found[str(tensor)] = measure(values.reshape(-1))
    return found


def measure(values: npt.NDArray[Any]) -> list[Any]:
    """Measure the elements of an array of one dimension."""
    least, most, total, number, zeros = np.inf, -np.inf, 0.0, 0, 0
    for chunk in _finite(values):
        if chunk.size:
            least, most = min(least, float(chunk.min())), max(most, float(chunk.max()))
        total, number, zeros = total + float(chunk.sum()), number + chunk.size, zeros + int((chunk == 0).sum())
    if not number:
        return [None, None, None, None, 0, values.size, []]
    mean, squares, bars = total / number, 0.0, np.zeros(_BARS, dtype=np.int64)
    for chunk in _finite(values):
        squares += float(((chunk - mean) ** 2).sum())
        if least < most:
            # By the position between both ends, which no width of a bar makes overflow.
            places = (chunk / 2 - least / 2) / (most / 2 - least / 2) * _BARS
            bars += np.bincount(np.minimum(places.astype(np.int64), _BARS - 1), minlength=_BARS)
    numbers = [least, most, mean, float(np.sqrt(squares / number))]
    return [*(n if np.isfinite(n) else None for n in numbers), zeros, values.size - number, bars.tolist()]


def _finite(values: npt.NDArray[Any]) -> Iterator[_FloatArray]:
    """Yield what is finite, a part at a time, in double precision."""
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK].astype(np.float64)
        yield chunk[np.isfinite(chunk)]
