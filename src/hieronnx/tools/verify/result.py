"""The record of a verification: both errors of each call, who is to blame, and what could not be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.results import Result
from hieronnx.tools.verify.deviation import Deviation

Verdict: TypeAlias = Literal["right", "noisy", "wrong"]
Cause: TypeAlias = Literal["", "saturation", "range"]


@dataclass(frozen=True, slots=True)
class _ComparedCall:
    """A call, and both of its errors.

    Attributes:
        module: The module's path.
        call: Which of its runs.
        tag: The call's tag.
        class_name: The module's class.
        introduced: How far what it gives on the reference's own inputs is from what the reference gives; of several
            tensors the worst.
        accumulated: How far what it gives in the running file is, with the errors of all that ran before it.
        noise: The part of its output that the format's own rounding can be blamed for, as `Deviation.relative` is;
            None where the error is so small that nobody asked.
        excess: By how many times the introduced error exceeds that noise, or what single rounding makes.
    """

    module: str
    call: int
    tag: str
    class_name: str
    introduced: Deviation
    accumulated: Deviation
    noise: float | None
    excess: float

    @property
    def id(self) -> CallId:
        """The call as `path@n`."""
        return CallId(self.module, self.call)


@dataclass(frozen=True, slots=True)
class VerifiedCall(_ComparedCall):
    """One call, as the file runs and alone.

    Attributes:
        verdict: `right`, where nothing but rounding is seen; `noisy`, where the format makes it so; `wrong`.
        cause: `saturation`, where most of the introduced error is lost by sums that ONNX Runtime's kernels clip on this
            processor: the file is not to blame. `range`, where most of it is made by numbers outside of the range of a
            scale and zero point: the file was calibrated for others, or these are wrong. Empty where neither is so, or
            nothing is known.
    """

    verdict: Verdict
    cause: Cause = ""


@dataclass(frozen=True, slots=True)
class Culprit(_ComparedCall):
    """A call that makes an error which neither rounding nor a call below it explains.

    Attributes:
        nodes: The nodes between the nearest tensors that are right and the one that is not.
        operators: How many of each operator are among them.
        worst: The error of the tensor to look at, which these nodes lead to; `noise` and `excess` are of it.
        fused_with: Other calls whose work is done in one with that of these nodes: the error may be theirs.
        cause: As of `VerifiedCall`.
    """

    nodes: tuple[Node, ...]
    operators: Mapping[str, int]
    worst: Deviation
    fused_with: tuple[CallId, ...] = ()
    cause: Cause = ""


@dataclass(frozen=True, slots=True)
class SkippedCall:
    """A call that could not be compared, and why."""

    module: str
    call: int
    tag: str
    reason: str
    live: bool
    """Whether the file has nodes of it alone."""


@dataclass(frozen=True, slots=True)
class VerifyResult(Result):
    """Which calls of a file give what they should.

    Attributes:
        file: The file.
        reference: What it was held to.
        calls: The calls that were compared, in the order in which they ran.
        culprits: Those that are wrong themselves, the worst first.
        skipped: Those that could not be compared.
        outputs: How far the outputs of the file are from those of the reference.
        samples: On how many samples.
        undisturbed: Whether looking at inner tensors left the outputs as they are, bit for bit.
        hierarchy: Of the file that ran.
        notes: What the user should know, a line each.
    """

    _derived: ClassVar[tuple[str, ...]] = ("passed", "live", "compared")

    file: str
    reference: str
    calls: tuple[VerifiedCall, ...]
    culprits: tuple[Culprit, ...]
    skipped: tuple[SkippedCall, ...]
    outputs: tuple[Deviation, ...]
    samples: int
    undisturbed: bool
    hierarchy: Hierarchy
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no call is wrong, and no output is of another shape or kind."""
        return not self.culprits and not any(output.mismatch for output in self.outputs)

    @property
    def live(self) -> int:
        """How many calls the file has nodes of that do the work of none beside them."""
        return len(self.calls) + sum(call.live for call in self.skipped)

    @property
    def compared(self) -> float:
        """The share of these that were compared."""
        return len(self.calls) / self.live if self.live else 1.0

    def __repr__(self) -> str:
        first = f", first '{self.culprits[0].id}'" if self.culprits else ""
        found = "passed" if self.passed else f"{len(self.culprits)} culprits{first}"
        return f"VerifyResult({len(self.calls)} of {self.live} calls compared, {found})"
