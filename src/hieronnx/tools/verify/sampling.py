"""What was seen of a file on samples: the errors of calls and of the nodes between known tensors, the worst of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.verify.deviation import Deviation
from hieronnx.tools.verify.judging import Measured


@dataclass(frozen=True, slots=True)
class CallErrors:
    """Both errors of a call, and the nodes that make the first."""

    introduced: Measured
    accumulated: Deviation
    nodes: frozenset[Node]

    def on(self, sample: int) -> CallErrors:
        """Return the same as those of a sample."""
        return CallErrors(self.introduced.on(sample), self.accumulated.on(sample), self.nodes)

    def or_worse(self, other: CallErrors) -> CallErrors:
        """Return the worse of two of each."""
        return CallErrors(
            max(self.introduced, other.introduced, key=lambda error: error.rank),
            max(self.accumulated, other.accumulated, key=lambda deviation: deviation.severity),
            self.nodes | other.nodes,
        )


@dataclass(frozen=True, slots=True)
class SegmentError:
    """The error that nodes make between known tensors.

    Attributes:
        error: The error of the tensor that they lead to.
        accumulated: The error of that tensor as the file runs.
        nodes: The nodes that may be to blame: those that lead to no tensor which is right.
        working: Those of them that do more than hand on, or compute with sizes, which others may read too.
        owner: The lowest call that these are all in.
    """

    error: Measured
    accumulated: Deviation
    nodes: tuple[Node, ...]
    working: frozenset[Node]
    owner: CallId

    def on(self, sample: int) -> SegmentError:
        """Return the same as that of a sample."""
        return replace(self, error=self.error.on(sample))


@dataclass(slots=True)
class SampleErrors:
    """What was seen on one sample.

    Attributes:
        calls: The errors of each call that could be compared.
        segments: Those between known tensors, by the tensor that they lead to.
        skipped: Why the other calls could not be compared.
        outputs: How far each output of the file is from the reference.
        undisturbed: Whether the outputs are what they are when nobody looks at inner tensors.
        doubted: Why nobody can tell whether calls are wrong that seem to be: they were seen with the work of others.
    """

    calls: dict[CallId, CallErrors] = field(default_factory=dict)
    segments: dict[str, SegmentError] = field(default_factory=dict)
    skipped: dict[CallId, str] = field(default_factory=dict)
    outputs: dict[str, Deviation] = field(default_factory=dict)
    undisturbed: bool = True
    doubted: dict[CallId, str] = field(default_factory=dict)

    def merge(self, other: SampleErrors, sample: int) -> None:
        """Add what was seen on another sample; the worst is kept."""
        for call, errors in other.calls.items():
            placed = errors.on(sample)
            self.calls[call] = self.calls[call].or_worse(placed) if call in self.calls else placed
        for tensor, segment in other.segments.items():
            if tensor not in self.segments or segment.error.rank > self.segments[tensor].error.rank:
                self.segments[tensor] = segment.on(sample)
        for name, deviation in other.outputs.items():
            if name not in self.outputs or deviation.severity > self.outputs[name].severity:
                self.outputs[name] = deviation.on(sample)
        self.skipped.update(other.skipped)
        self.doubted.update(other.doubted)
        self.undisturbed &= other.undisturbed

    def leave_doubted(self) -> None:
        """Count calls that nobody can tell of on some sample as not compared."""
        for call, reason in self.doubted.items():
            self.calls.pop(call, None)
            self.skipped[call] = reason
