"""Measuring candidates: a quantized file beside the model in float, on samples, against a target."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hieronnx.errors import InputError
from hieronnx.runtime.inputs import read_outputs
from hieronnx.runtime.sessions import Array, open_session

Run: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Array]]
Metric: TypeAlias = Callable[[Run], float]
"""Runs a model on whatever it likes, and returns how good it is."""
_TARGET = re.compile(r"\s*(?P<name>snr|cosine|drop)\s*(?P<sign>>=|<=)\s*(?P<limit>[-+0-9.eE]+)\s*")
_CERTAIN = 1.645
"""How many standard errors below a value chance goes once in twenty times, where the standard error is known."""
_SIGNS = {"snr": ">=", "cosine": ">=", "drop": "<="}


@dataclass(frozen=True, slots=True)
class Target:
    """What a quantized model must reach: `snr>=30`, `cosine>=0.999`, or `drop<=0.01` of a metric."""

    name: str
    limit: float

    @classmethod
    def parse(cls, text: str, metric: Metric | None) -> Target:
        """Read a target.

        Raises:
            InputError: If it has another form, or there is no metric for it.
        """
        match = _TARGET.fullmatch(text)
        if match is None or match["sign"] != _SIGNS[match["name"]]:
            raise InputError(f"cannot read the target '{text}'; expected snr>=30, cosine>=0.999 or drop<=0.01")
        try:
            limit = float(match["limit"])
        except ValueError:
            raise InputError(f"cannot read the target '{text}': '{match['limit']}' is no number") from None
        if (match["name"] == "drop") != (metric is not None):
            raise InputError("the target drop<=… is of a metric, and a metric needs that target: give both, or neither")
        return cls(match["name"], limit)

    def __str__(self) -> str:
        return f"{self.name}{_SIGNS[self.name]}{self.limit:g}"

    def is_met(self, value: float) -> bool:
        """Say whether a value meets the target."""
        return value <= self.limit if self.name == "drop" else value >= self.limit

    def measure_noise(self, value: float) -> float | None:
        """Return the error behind a value, as the square of a part; None for a metric, of which nobody knows it."""
        return None if self.name == "drop" else 10 ** (-value / 10) if self.name == "snr" else 1 - value

    def rate_noise(self, noise: float) -> float:
        """Return the value of an error, as the square of a part."""
        if self.name == "cosine":
            return 1 - noise
        return -10 * math.log10(noise) if noise > 0 else math.inf


class Judge:
    """The model in float, and the samples that candidates are held to it on."""

    def __init__(
        self, path: Path, target: Target, samples: Sequence[Mapping[str, Array]], metric: Metric | None
    ) -> None:
        self._target, self._samples, self._metric = target, samples, metric
        run = _open(path)
        self._expected = [run(sample) for sample in samples] if metric is None else []
        self._best = 0.0 if metric is None else float(metric(run))

    def measure(self, path: Path) -> float:
        """Run a candidate; return the value that the target is of."""
        run = _open(path)
        if self._metric is not None:
            return self._best - float(self._metric(run))
        pairs = [(run(sample), expected) for sample, expected in zip(self._samples, self._expected, strict=True)]
        names = [name for name, array in self._expected[0].items() if np.asarray(array).dtype.kind == "f"]
        return min(self._compare([_sum_up(got[name], expected[name]) for got, expected in pairs]) for name in names)

    def _compare(self, sums: Sequence[Array]) -> float:
        """Compare one output over all samples; return what many others give at least, about nineteen times of twenty.

        That is the error of all, and what it may lack by chance: by how much its logarithm changes as single samples
        are left out. It is so of one candidate. The best of many owes more to chance.
        """
        whole = np.sum(sums, axis=0)
        noise = self._measure_noise(whole)
        without = np.array([self._measure_noise(whole - part) for part in sums])
        free = len(without) - 1
        if free > 0 and math.isfinite(noise) and noise > 0 and np.isfinite(without).all() and (without > 0).all():
            noise *= math.exp(_count_errors(free) * math.sqrt(free) * float(np.std(np.log(without))))
        return self._target.rate_noise(noise)

    def _measure_noise(self, sums: Array) -> float:
        """Return the error as the square of a part, as the target's value has it."""
        signal, size, product, noise = (float(number) for number in sums)
        if not math.isfinite(noise):
            return math.inf
        if self._target.name == "snr":
            return noise / signal if signal > 0 else math.inf if noise > 0 else 0.0
        norms = math.sqrt(max(signal * size, 0.0))
        return 1 - product / norms if norms else float(noise > 0)


def _count_errors(free: int) -> float:
    """Return how many standard errors chance goes below a value once in twenty times, where these were measured, too.

    That is a quantile of Student's t with so many degrees of freedom, by the first terms of its expansion.
    """
    z = _CERTAIN
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / free + second / free**2 + third / free**3


def _sum_up(got: Array, expected: Array) -> Array:
    """Sum up one sample: the squares of what is expected and of what came, their products, the squares of errors."""
    finite = np.isfinite(expected)
    a, e = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    if not np.isfinite(a).all():
        return np.array([0.0, 0.0, 0.0, math.inf])
    return np.array([e @ e, a @ a, a @ e, (a - e) @ (a - e)])


def _open(path: Path) -> Run:
    session, names = open_session(path, providers=["CPUExecutionProvider"], optimized=True), read_outputs(path)
    return lambda feeds: session.run(dict(feeds), names)
