"""What is told of modules and precision: how sensitive each is, and what a search for a target tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hieronnx.tools.results import Result
from hieronnx.tools.verify.deviation import Deviation


@dataclass(frozen=True, slots=True)
class ModuleSensitivity:
    """What quantization does to one module.

    Attributes:
        module: The module's path.
        class_name: Its class.
        introduced: The error that it alone makes on inputs in float, of several calls the worst.
        multiply_adds: Of all its calls and what is below; 0 where they are not known.
        bytes: Of its parameters and those below, in float; 0 where they are not known.
    """

    module: str
    class_name: str
    introduced: Deviation
    multiply_adds: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SensitivityResult(Result):
    """All modules with quantized work, the most sensitive first.

    Attributes:
        file: The model.
        tool: The quantizer.
        modules: The innermost modules that were quantized, the most sensitive first.
        output: How far the outputs are with everything quantized.
        samples: On how many samples.
        notes: What to know about it.
    """

    file: str
    tool: str
    modules: tuple[ModuleSensitivity, ...]
    output: Deviation
    samples: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        first = f", first '{self.modules[0].module}'" if self.modules else ""
        return f"SensitivityResult({len(self.modules)} modules{first})"


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate that was built and run.

    Attributes:
        kept: The modules in float.
        multiply_adds: The share of multiply-adds in 8 bits.
        bytes: The share of parameter bytes in 8 bits.
        value: What was measured: decibels or a cosine that other samples should reach nineteen times of twenty, or the
            drop of a metric.
        met: Whether that meets the target.
    """

    kept: tuple[str, ...]
    multiply_adds: float
    bytes: float
    value: float
    met: bool


@dataclass(frozen=True, slots=True)
class TargetSearch(Result):
    """What a search for a target tried.

    Attributes:
        target: What was asked for.
        trials: What was tried, in order.
        chosen: The one that was chosen; None where none meets the target.
        samples: How many samples it was measured on.
        held_back: Whether the calibration saw none of these.
    """

    _derived: ClassVar[tuple[str, ...]] = ("met", "frontier")

    target: str
    trials: tuple[Trial, ...]
    chosen: Trial | None
    samples: int
    held_back: bool

    @property
    def met(self) -> bool:
        """Whether the target was met."""
        return self.chosen is not None and self.chosen.met

    @property
    def frontier(self) -> tuple[Trial, ...]:
        """The trials than which none has both more in 8 bits and a better value."""
        return tuple(t for t in self.trials if not any(_beats(other, t, self.target) for other in self.trials))

    def __repr__(self) -> str:
        kept = "nothing" if self.chosen is None else f"{len(self.chosen.kept)} modules in float"
        return f"TargetSearch('{self.target}', {len(self.trials)} trials, {kept}, met={self.met})"


def _beats(one: Trial, other: Trial, target: str) -> bool:
    sign = -1 if "<=" in target else 1
    better, more = sign * (one.value - other.value), one.multiply_adds - other.multiply_adds
    return better >= 0 and more >= 0 and (better > 0 or more > 0)
