"""Searching which modules stay in float, so that a quantized model meets a target with as much as possible in 8 bits.

Modules are ordered by the error that each makes alone, for what it costs in float. The shortest beginning of that
order that meets the target is found by halving; then modules that were kept are tried in 8 bits again, those first
that cost most in float. What meets the target is measured each time, never estimated.

    order   d  a  c  e  b        d in float: 24 dB    d, a: 31 dB    d, a, c: 33 dB        target 30 dB: d, a
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hieronnx.tools.precision.measuring import Target
from hieronnx.tools.precision.result import ModuleSensitivity, Trial
from hieronnx.tools.precision.sensitivity import Costs

_WORST, _LEAST = 1e6, 1e-3
Build = Callable[[tuple[str, ...]], float]
"""Builds the candidate with some modules in float, and measures it."""


@dataclass
class Search:
    """A search under way."""

    target: Target
    costs: Costs
    budget: int
    build: Build
    trials: dict[tuple[str, ...], Trial] = field(default_factory=dict)

    def run(self, modules: Sequence[ModuleSensitivity], favour: str) -> Trial | None:
        """Return the best trial that meets the target; None where none does."""
        order = self._order(modules, favour)
        if not self._try(()).met:
            self._halve(order)
            self._give_back(favour)
        met = [trial for trial in self.trials.values() if trial.met]
        return max(met, key=lambda trial: self._gain(trial, favour), default=None)

    def _order(self, modules: Sequence[ModuleSensitivity], favour: str) -> list[str]:
        """Order modules by the error that each makes for what it costs in float; the whole model is no part of it."""
        counts = self.costs.bytes if favour == "bytes" else self.costs.multiply_adds
        whole = max(counts.get("", 0), 1)

        def worth(module: ModuleSensitivity) -> float:
            return min(module.introduced.severity, _WORST) ** 2 / max(counts.get(module.module, 0) / whole, _LEAST)

        return [module.module for module in sorted(modules, key=worth, reverse=True) if module.module]

    def _halve(self, order: Sequence[str]) -> None:
        """Find the shortest beginning of an order that meets the target."""
        low, high = 0, 1
        while high < len(order) and self._has_room() and not self._try(order[:high]).met:
            low, high = high, min(2 * high, len(order))
        if high == len(order) and self._has_room():
            self._try(order)
        while high - low > 1 and self._has_room():
            middle = (low + high) // 2
            if self._try(order[:middle]).met:
                high = middle
            else:
                low = middle

    def _give_back(self, favour: str) -> None:
        """Try modules that were kept in 8 bits again, the dearest first."""
        met = [trial for trial in self.trials.values() if trial.met]
        best = max(met, key=lambda trial: self._gain(trial, favour), default=None)
        counts = self.costs.bytes if favour == "bytes" else self.costs.multiply_adds
        for path in sorted(best.kept if best else (), key=lambda path: -counts.get(path, 0)):
            if best is None or not self._has_room() or len(best.kept) == 1:
                return
            trial = self._try([other for other in best.kept if other != path])
            best = trial if trial.met else best

    def _has_room(self) -> bool:
        return len(self.trials) < self.budget

    def _try(self, kept: Sequence[str]) -> Trial:
        key = tuple(sorted(kept))
        if key not in self.trials:
            value = self.build(key)
            adds, size = (self.costs.share(counts, key) for counts in (self.costs.multiply_adds, self.costs.bytes))
            self.trials[key] = Trial(key, adds, size, value, self.target.is_met(value))
        return self.trials[key]

    def _gain(self, trial: Trial, favour: str) -> tuple[float, float]:
        return (trial.bytes, trial.multiply_adds) if favour == "bytes" else (trial.multiply_adds, trial.bytes)


def default_budget(modules: int, depth: int) -> int:
    """Return how many candidates may be built: a search that finds one module needs no more."""
    return math.ceil(2 * math.sqrt(modules)) + depth
