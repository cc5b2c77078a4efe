"""The records of what a profile is compared with: another profile, and calls that ran alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hieronnx.tools.results import Result


@dataclass(frozen=True, slots=True)
class CallChange(Result):
    """A call in two profiles.

    Attributes:
        module: the path of its module.
        call: which run of the module it is.
        before_us: its time in the other profile; None where that has no such call.
        after_us: its time in this one; None where this has no such call.
        before_spread_us: as in `CallTime`.
        after_spread_us: as in `CallTime`.
        percent: by how much it is slower, or faster if less than 0: `after_us` beside `before_us`.
        noise_percent: half of the pairs of runs lie within so much of each other, to either side of their middle.
        changed: whether it is more than noise.
    """

    module: str
    call: int
    before_us: float | None
    after_us: float | None
    before_spread_us: float | None
    after_spread_us: float | None
    percent: float | None
    noise_percent: float | None
    changed: bool


@dataclass(frozen=True, slots=True)
class ProfileComparison(Result):
    """A profile against another: of another export, quantization or level of optimization, or of an earlier day.

    Attributes:
        other: the model's file, or that of the saved profile.
        before_us: the time of the other.
        after_us: the time of this one.
        interleaved: whether the runs of both were taken in turns, so that what disturbs one disturbs both.
        conclusive: whether there were runs enough to tell any change of a call from noise.
        changes: each call that one of them has.
    """

    _derived: ClassVar[tuple[str, ...]] = ("percent",)

    other: str
    before_us: float
    after_us: float
    interleaved: bool
    conclusive: bool
    changes: tuple[CallChange, ...]

    @property
    def percent(self) -> float:
        """By how much the whole is slower, or faster if less than 0, where that is more than noise; else 0."""
        root = next((change for change in self.changes if not change.module and not change.call), None)
        return root.percent or 0.0 if root is not None and root.changed else 0.0

    @property
    def changed(self) -> tuple[CallChange, ...]:
        """The calls whose time changed by more than noise."""
        return tuple(change for change in self.changes if change.changed)


@dataclass(frozen=True, slots=True)
class IsolatedCall(Result):
    """A call that was timed as a part of its own: what its surroundings cost or save.

    Attributes:
        module: the path of its module.
        call: which run of the module it is.
        in_model_us: its time in the model.
        alone_us: its time as a model of its own; None where it could not be timed.
        alone_spread_us: as in `CallTime`.
        kernels_alone: how many kernels it has then.
        problem: what kept it from being timed, if anything.
    """

    _derived: ClassVar[tuple[str, ...]] = ("context_us",)

    module: str
    call: int
    in_model_us: float
    alone_us: float | None
    alone_spread_us: float | None
    kernels_alone: int | None
    problem: str

    @property
    def context_us(self) -> float | None:
        """What the model around it costs: layouts to change, fusions lost, caches; less than 0 where it saves."""
        return None if self.alone_us is None else self.in_model_us - self.alone_us
