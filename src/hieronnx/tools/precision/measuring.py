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
        return min(self._compare([(got[name], expected[name]) for got, expected in pairs]) for name in names)

    def _compare(self, pairs: Sequence[tuple[Array, Array]]) -> float:
        """Compare one output over all samples."""
        got, expected = (np.concatenate([p[side].ravel().astype(np.float64) for p in pairs]) for side in (0, 1))
        finite = np.isfinite(expected)
        got, expected = got[finite], expected[finite]
        if not np.isfinite(got).all():
            return -math.inf
        signal, noise = float(expected @ expected), float((got - expected) @ (got - expected))
        if self._target.name == "snr":
            return math.inf if not noise else 10 * math.log10(signal / noise) if signal else -math.inf
        norms = math.sqrt(signal * float(got @ got))
        return float(got @ expected) / norms if norms else float(not noise)


def _open(path: Path) -> Run:
    session, names = open_session(path, providers=["CPUExecutionProvider"], optimized=True), read_outputs(path)
    return lambda feeds: session.run(dict(feeds), names)
