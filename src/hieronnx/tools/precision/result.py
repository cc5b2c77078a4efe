"""What is told of modules and precision: what is in 8 bits, how sensitive each is, what a search for a target tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hieronnx.hierarchy.records import CallId
from hieronnx.tools.results import Result
from hieronnx.tools.verify.deviation import Deviation


@dataclass(frozen=True, slots=True)
class FloatNodes:
    """Nodes of one operator that stayed in float for one reason.

    Attributes:
        reason: `excluded`; `constant`: what it computes depends on no input, or on sizes alone; `no quantized kernel`:
            the tool has no quantized form of the operator; `operator not chosen`: it was not asked for that; `in
            control flow`: in a body, which the tool does not enter; `no constant weight`: it multiplies with what is
            computed; `input in float`: it moves, selects or bounds values, which the tool quantizes only where these
            are; `left by the tool`, for a reason of its own.
        op_type: Their operator.
        nodes: How many.
    """

    reason: str
    op_type: str
    nodes: int


@dataclass(frozen=True, slots=True)
class CallPrecision:
    """What a quantizer did to the nodes of one call and of all below it, counted in the model as it was.

    Attributes:
        module: The module's path.
        call: Which of its runs.
        tag: The call's tag.
        class_name: The module's class.
        quantized: How many nodes compute in fewer bits, or with weights in fewer bits.
        in_float: How many stayed as they were.
        other: How many compute no floats: shapes, indices, conditions.
        reasons: Of those in float how many stayed so for each reason, the most frequent first.
        bytes_before: Of the initializers of the module and those below; None where the file does not tell whose
            they are.
        bytes_after: The same in the quantized model, with scales and zero points.
    """

    module: str
    call: int
    tag: str
    class_name: str
    quantized: int
    in_float: int
    other: int
    reasons: Mapping[str, int]
    bytes_before: int | None
    bytes_after: int | None

    @property
    def id(self) -> CallId:
        """The call as `path@n`."""
        return CallId(self.module, self.call)


@dataclass(frozen=True, slots=True)
class PrecisionReport(Result):
    """What a quantizer did: how much of a model is in fewer bits, and why the rest is not.

    Attributes:
        tool: The quantizer.
        bits: How many bits a quantized weight has, or a number in half precision.
        calls: All calls, the root first, which has the totals.
        kept: The nodes that stayed in float, by reason and operator, the most frequent first.
    """

    _derived: ClassVar[tuple[str, ...]] = ("quantized", "in_float", "other", "bytes_before", "bytes_after")

    tool: str
    bits: int
    calls: tuple[CallPrecision, ...]
    kept: tuple[FloatNodes, ...]

    @property
    def quantized(self) -> int:
        """How many nodes of the model compute in fewer bits."""
        return self.calls[0].quantized

    @property
    def in_float(self) -> int:
        """How many stayed in float."""
        return self.calls[0].in_float

    @property
    def other(self) -> int:
        """How many compute no floats."""
        return self.calls[0].other

    @property
    def bytes_before(self) -> int | None:
        """The bytes of all initializers before."""
        return self.calls[0].bytes_before

    @property
    def bytes_after(self) -> int | None:
        """The bytes of all initializers now."""
        return self.calls[0].bytes_after

    def __repr__(self) -> str:
        return f"PrecisionReport({self.quantized} nodes in {self.bits} bits, {self.in_float} in float)"


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
        value: What was measured, less what chance may have added: decibels or a cosine that many other samples should
            give at least, about nineteen times of twenty, were it the only candidate; or the drop of a metric.
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
        command: The words of the command that leaves the same in float without a search.
        ended: Whether it ended by itself, not because no more trials were allowed.
    """

    _derived: ClassVar[tuple[str, ...]] = ("met", "frontier")

    target: str
    trials: tuple[Trial, ...]
    chosen: Trial | None
    samples: int
    held_back: bool
    command: tuple[str, ...] = ()
    ended: bool = True

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
