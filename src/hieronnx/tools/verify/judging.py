"""Who is to blame: errors held to the noise of the format, and the innermost call that explains each.

A call is wrong if what it gives on the reference's own inputs is farther from the reference than rounding can take it.
Who in it is wrong is seen between the nearest tensors that the reference knows: from those that are given as they
should be to the first that is not as it should be are only the nodes of one call, mostly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from hieronnx.tools.verify.deviation import Deviation
from hieronnx.tools.verify.result import Cause, Verdict

Noise: TypeAlias = tuple[float, float]
"""The root of the mean square of what rounding does to a tensor, and the most of it."""

UNKNOWN: Noise = (math.inf, math.inf)
"""The noise of a format that nobody can tell: no error is more."""

SUSPICIOUS = 16.0
"""The error that nobody need explain, in half units of the last place: sums in another order make more."""
LIMIT = 6.0
"""By how many times an error may exceed the noise that was measured: two ways to compute round in different places."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The error of one tensor, and the noise that the format makes there.

    Attributes:
        deviation: The error.
        unit: Half a unit in the last place of the tensor's type, as a part of its size.
        noise: The root of the mean square of the noise and the most of it, where it was measured.
        clipped: The root of the mean square of what is lost by sums that the runtime clips.
        beyond: The same of what is lost by numbers outside of the ranges that the file can hold.
    """

    deviation: Deviation
    unit: float
    noise: Noise | None = None
    clipped: float = 0.0
    beyond: float = 0.0

    @property
    def cause(self) -> Cause:
        """What makes most of the error, where that is known."""
        if 2 * self.clipped**2 > self.deviation.rms**2:
            return "saturation"
        return "range" if 2 * self.beyond**2 > self.deviation.rms**2 else ""

    @property
    def is_suspicious(self) -> bool:
        """Whether the error is more than single roundings make."""
        return self._over(self.unit * SUSPICIOUS) > 1

    @property
    def excess(self) -> float:
        """By how many times the error exceeds the noise, or what nobody need explain where that is more."""
        if self.deviation.is_broken:
            return math.inf
        over = self._over(self.unit * SUSPICIOUS)
        if self.noise is None:
            return over
        by_mean = _divide(self.deviation.rms, self.noise[0])
        by_most = _divide(self.deviation.max_abs, self.noise[1])
        return min(over, max(by_mean, by_most) / LIMIT)

    @property
    def relative_noise(self) -> float | None:
        """The noise as a part of the tensor's size; None where it was not measured."""
        if self.noise is None or self.noise == UNKNOWN or not self.deviation.rms:
            return None
        return self.noise[0] * self.deviation.relative / self.deviation.rms

    def on(self, sample: int) -> Measured:
        """Return the same as that of a sample."""
        return replace(self, deviation=self.deviation.on(sample))

    @property
    def rank(self) -> tuple[float, float]:
        """What errors are ranked by: first by what is left unexplained."""
        return max(self.excess, 1.0), self.deviation.severity

    @property
    def verdict(self) -> Verdict:
        """What the error is."""
        return "wrong" if self.excess > 1 else "noisy" if self.is_suspicious else "right"

    def _over(self, part: float) -> float:
        if self.deviation.is_broken:
            return math.inf
        return _divide(self.deviation.relative, part)


def _divide(error: float, limit: float) -> float:
    return error / limit if limit else math.inf if error else 0.0
