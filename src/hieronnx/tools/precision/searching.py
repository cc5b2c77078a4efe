"""Searching which modules stay in float, so that a quantized model meets a target with as much as possible in 8 bits.

The error of the outputs is taken for a sum of what each module adds to it, in squares. What each adds is estimated at
first (see `units.py`), and corrected by every candidate that was built and measured: those in 8 bits in it add up to
its error. The next candidate is the one with most in 8 bits that should meet the target by all that is known; when
there is none with more than the best, those that should miss it by little are tried, for estimates are no more than
that. Where nothing meets it, each module is tried in 8 bits alone. What meets the target is measured each time, never
estimated::

                 a    b    c    d    sum       target 20
    estimated   30   30   20   20    100       keep a, b, c: then d makes 70, not 20
    corrected   11   11    8   70    100       keep d and b

For a metric of the user's nothing adds up. The estimates stay, and what is halved is how much of them may be left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from hieronnx.tools.precision.measuring import Target
from hieronnx.tools.precision.result import Trial
from hieronnx.tools.precision.units import Units

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Kept: TypeAlias = frozenset[str]
Build = Callable[[tuple[str, ...]], float]
"""Builds the candidate with some modules in float, and measures it."""

_STEPS = 4000
_SWEEPS = 20
_LEAST, _WORST = 1e-9, 1e9
_LIKELY = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)
_UNLIKELY = (1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
_LITTLE = 0.5
_HALVES = (0.5, 0.75, 0.25, 0.875, 0.125)


@dataclass
class Search:
    """A search under way."""

    target: Target
    units: Units
    budget: int
    build: Build
    favour: str = "multiply-adds"
    patience: int = 1
    """How many times the budget may be spent as long as what meets the target leaves little in 8 bits."""
    trials: dict[Kept, Trial] = field(default_factory=dict)

    def run(self, whole: float) -> Trial | None:
        """Return the best trial that meets the target; None where none does.

        Args:
            whole: What was measured with everything in 8 bits, the first trial.
        """
        self._add(frozenset(), (), whole)
        while self._needs_more() and (kept := self._propose()) is not None:
            names = self.units.name(kept)
            self._add(kept, names, self.build(names))
        return self._best

    @property
    def _best(self) -> Trial | None:
        met = (trial for trial in self.trials.values() if trial.met)
        return max(met, key=self._rank, default=None)

    @property
    def allowed(self) -> int:
        """How many candidates may be measured, by what was found so far."""
        best = self._best
        return self.budget * (self.patience if best is not None and self._rank(best)[0] < _LITTLE else 1)

    def _needs_more(self) -> bool:
        return not self.trials[frozenset()].met and len(self.trials) < self.allowed

    def _rank(self, trial: Trial) -> tuple[float, float, int]:
        shares = (trial.bytes, trial.multiply_adds) if self.favour == "bytes" else (trial.multiply_adds, trial.bytes)
        return (*shares, -len(trial.kept))

    def _add(self, kept: Kept, names: tuple[str, ...], value: float) -> None:
        adds, size = (self._share([getattr(u, n) for u in self.units.all if u.module not in kept], n) for n in _COSTS)
        self.trials[kept] = Trial(names, adds, size, value, self.target.is_met(value))

    def _share(self, counts: Sequence[int], name: str) -> float:
        whole = getattr(self.units, name)
        return min(sum(counts) / whole, 1.0) if whole else 1.0

    # -- what to try next

    def _propose(self) -> Kept | None:
        """Return the modules to keep in the next candidate; None where nothing better is in sight."""
        noise = self._estimate_noise()
        least = max((self._sum_gains(kept) for kept, trial in self.trials.items() if trial.met), default=-1.0)
        for limit in self._list_limits(noise):
            kept = self._choose(noise, limit)
            if kept not in self.trials and self._sum_gains(kept) > least:
                return kept
        singles = (self._keep_others({int(number)}) for number in np.argsort(noise)) if least < 0 else ()
        return next((kept for kept in singles if kept not in self.trials), None)

    def _estimate_noise(self) -> Numbers:
        """Estimate what each unit adds to the error, so that all that was measured is explained."""
        noise = np.array([max(unit.noise, _LEAST) for unit in self.units.all])
        measured = [(self._mask(kept), self.target.measure_noise(trial.value)) for kept, trial in self.trials.items()]
        for _ in range(_SWEEPS):
            for inside, found in measured:
                if found is not None and inside.any():
                    noise[inside] *= min(max(found, _LEAST), _WORST) / noise[inside].sum()
        return noise

    def _list_limits(self, noise: Numbers) -> Iterator[float]:
        """Yield how much noise a candidate may have, by what is known of it, the likeliest first."""
        limit = self.target.measure_noise(self.target.limit)
        met = [noise[self._mask(kept)].sum() for kept, trial in self.trials.items() if trial.met]
        if limit is not None:
            trust = 1.0 if met else self._trust(limit)
            yield from (limit * trust * part for part in (*_LIKELY, *(_UNLIKELY if met else (0.0,))))
            return
        missed = [noise[self._mask(kept)].sum() for kept, trial in self.trials.items() if not trial.met]
        low, high = math.log(max(met, default=float(noise.min()) / 2)), math.log(min(missed))
        yield from (math.exp(low + part * (high - low)) for part in _HALVES)

    def _trust(self, limit: float) -> float:
        """Return what estimates are worth where nothing met the target yet: the less the longer it takes."""
        last = self.target.measure_noise(list(self.trials.values())[-1].value) or limit
        return float(min(limit / last, 1.0) ** max(len(self.trials) - 2, 0))

    def _choose(self, noise: Numbers, limit: float) -> Kept:
        """Return the units to keep so that the others gain most and add no more noise than a limit.

        The units in 8 bits are a knapsack, filled in the best way that there is. One at least stays in it: a model
        without any is not quantized.
        """
        steps = np.minimum(np.rint(noise / max(limit, _LEAST**2) * _STEPS), _STEPS + 1).astype(int)
        best = np.zeros(_STEPS + 1)
        taken = np.zeros((len(steps), _STEPS + 1), bool)
        for number, (step, gain) in enumerate(zip(steps, self._gains, strict=True)):
            if step <= _STEPS:
                filled = np.concatenate([np.full(step, -np.inf), best[: _STEPS + 1 - step] + gain])
                taken[number] = filled > best
                best = np.maximum(best, filled)
        inside, room = set(), _STEPS
        for number in reversed(range(len(steps))):
            if taken[number, room]:
                inside.add(number)
                room -= steps[number]
        return self._keep_others(inside or {int(np.argmin(noise))})

    def _keep_others(self, inside: Collection[int]) -> Kept:
        return frozenset(unit.module for number, unit in enumerate(self.units.all) if number not in inside)

    @cached_property
    def _gains(self) -> Numbers:
        """What each unit is worth in 8 bits: the cost that counts, and a trace of the other one and of being there."""
        first, second = (np.array([getattr(unit, name) for unit in self.units.all], float) for name in _COSTS)
        if self.favour == "bytes":
            first, second = second, first
        gains: Numbers = first / max(first.sum(), 1) + 1e-5 * second / max(second.sum(), 1) + 1e-9
        return gains

    def _sum_gains(self, kept: Kept) -> float:
        return float(self._gains[self._mask(kept)].sum())

    def _mask(self, kept: Kept) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.array([unit.module not in kept for unit in self.units.all], bool)


_COSTS = ("multiply_adds", "bytes")


def default_budget(units: int, depth: int) -> int:
    """Return how many candidates may be measured: a search that finds one module needs no more."""
    return int(2 * math.sqrt(units)) + depth
