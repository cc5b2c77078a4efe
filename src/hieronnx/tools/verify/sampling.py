"""One sample: the errors of all calls, alone and as the file runs, each with the noise that the format makes there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Node
from hieronnx.runtime.precise import is_coarse
from hieronnx.runtime.sessions import Array, Runner
from hieronnx.runtime.slices import Slice
from hieronnx.tools.extract.find import explain_no_nodes
from hieronnx.tools.verify.boundaries import find_boundaries
from hieronnx.tools.verify.deviation import Deviation
from hieronnx.tools.verify.judging import Measured, Noise
from hieronnx.tools.verify.observing import Observation
from hieronnx.tools.verify.references import FileReference, NoiseTable, Reference, Sample


@dataclass(frozen=True, slots=True)
class CallErrors:
    """Both errors of a call."""

    introduced: Measured
    accumulated: Deviation

    def on(self, sample: int) -> CallErrors:
        """Return the same as those of a sample."""
        return CallErrors(self.introduced.on(sample), self.accumulated.on(sample))

    def or_worse(self, other: CallErrors) -> CallErrors:
        """Return the worse of two of each."""
        return CallErrors(
            max(self.introduced, other.introduced, key=lambda error: error.rank),
            max(self.accumulated, other.accumulated, key=lambda deviation: deviation.severity),
        )


@dataclass(frozen=True, slots=True)
class SegmentError:
    """The error that nodes make between known tensors.

    Attributes:
        error: The error of the tensor that they lead to.
        nodes: The nodes.
        owner: The lowest call that they are all in.
    """

    error: Measured
    nodes: tuple[Node, ...]
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
    """

    calls: dict[CallId, CallErrors] = field(default_factory=dict)
    segments: dict[str, SegmentError] = field(default_factory=dict)
    skipped: dict[CallId, str] = field(default_factory=dict)
    outputs: dict[str, Deviation] = field(default_factory=dict)
    undisturbed: bool = True

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
        self.undisturbed &= other.undisturbed


class SampleRun:
    """A sample, run through the file and through its reference."""

    def __init__(
        self, runner: Runner, hierarchy: Hierarchy, reference: Reference, sample: Sample, *, buffer: int
    ) -> None:
        self._runner, self._hierarchy, self._reference, self._sample = runner, hierarchy, reference, sample
        self._values = reference.run(sample)
        flat = runner.flatten(sample.feeds)
        self._boundaries = find_boundaries(
            hierarchy, flat, self._values, lambda call: explain_no_nodes(hierarchy, call)
        )
        self._seen = Observation(
            runner, hierarchy, flat, self._boundaries, self._values.values, sample.feeds, buffer=buffer
        )

    def measure(self, chosen: Collection[CallId]) -> SampleErrors:
        """Measure the errors of chosen calls."""
        seen, boundaries = self._seen, self._boundaries
        seen.run()
        plain = self._runner.run(self._sample.feeds)
        undisturbed = all(_is_equal(seen.outputs[name], array) for name, array in plain.items())
        self._leave_mismatched()
        calls = {call: made for call, made in boundaries.returned.items() if call in chosen}
        alone = self._run_alone(calls)
        pieces = self._cut_segments(chosen)
        between = dict(zip(pieces, (found for (found,) in seen.run_slices(list(pieces.values()))), strict=True))
        noise = self._measure_noise(alone, between)
        outputs = {name: seen.accumulated[name] for name in plain if name in seen.accumulated}
        errors = SampleErrors(skipped=boundaries.skipped, outputs=outputs, undisturbed=undisturbed)
        for call, deviations in alone.items():
            judged = [self._judge(d, noise.get((call, calls[call][d.tensor]))) for d in deviations]
            accumulated = max((seen.accumulated[tensor] for tensor in calls[call]), key=lambda d: d.severity)
            errors.calls[call] = CallErrors(max(judged, key=lambda error: error.rank), accumulated)
        for tensor, deviation in between.items():
            error = self._judge(deviation, noise.get(boundaries.known[tensor]))
            if error.excess > 1:
                errors.segments[tensor] = self._describe_segment(pieces[tensor], error)
        return errors

    def _leave_mismatched(self) -> None:
        """Leave out the tensors that have another shape than the reference: no call can be compared by them alone."""
        for call, made in list(self._boundaries.returned.items()):
            if lost := [tensor for tensor in made if tensor not in self._boundaries.known]:
                if len(lost) == len(made):
                    del self._boundaries.returned[call]
                    self._boundaries.skipped[call] = self._seen.accumulated[lost[0]].mismatch
                else:
                    self._boundaries.returned[call] = {t: place for t, place in made.items() if t not in lost}

    def _run_alone(self, calls: Mapping[CallId, Mapping[str, str]]) -> dict[CallId, list[Deviation]]:
        """Run each call alone, those of one depth together."""
        levels: dict[int, list[CallId]] = defaultdict(list)
        for call in calls:
            levels[self._hierarchy.tree.depth(call)].append(call)
        found: dict[CallId, list[Deviation]] = {}
        for level in levels.values():
            slices = [self._seen.cut_call(call, list(calls[call])) for call in level]
            found.update(zip(level, self._seen.run_slices(slices), strict=True))
        return {call: found[call] for call in calls}

    def _cut_segments(self, chosen: Collection[CallId]) -> dict[str, Slice]:
        """Cut the file at all known tensors."""
        known = [tensor for tensor in self._boundaries.known if tensor in self._seen.graph.producers]
        pieces = {tensor: self._seen.cut_segment(tensor) for tensor in known}
        return {tensor: piece for tensor, piece in pieces.items() if self._find_owner(piece) in chosen}

    def _find_owner(self, piece: Slice) -> CallId:
        """Return the lowest call that all nodes of a segment are in: of a merged node the copy that is nearest."""
        tree = self._hierarchy.tree
        nodes = [node for index in piece.nodes if (node := self._seen.nodes[index]) is not None]
        working = [node for node in nodes if node.op_type != "Constant"] or nodes
        owner = working[-1].scope if working else ROOT
        for node in reversed(working):
            above = (tree.lowest_above((owner, origin)) for origin in (node.scope, *node.origins))
            owner = max(above, key=tree.depth)
        return owner

    def _describe_segment(self, piece: Slice, error: Measured) -> SegmentError:
        nodes = tuple(node for index in piece.nodes if (node := self._seen.nodes[index]) is not None)
        return SegmentError(error, nodes, self._find_owner(piece))

    def _measure_noise(
        self, alone: Mapping[CallId, Sequence[Deviation]], between: Mapping[str, Deviation]
    ) -> NoiseTable:
        """Measure the noise where an error is more than single roundings make."""
        calls = [call for call, found in alone.items() if any(self._judge(d).is_suspicious for d in found)]
        tensors = [tensor for tensor, deviation in between.items() if self._judge(deviation).is_suspicious]
        if not calls and not tensors:
            return {}
        noise = dict(self._reference.measure_noise(self._sample, calls))
        singles = isinstance(self._reference, FileReference)
        if not singles and not is_coarse(self._seen.graph.model):
            return noise
        returned = self._boundaries.returned
        slices = [self._seen.cut_call(call, list(returned[call])) for call in calls]
        slices += [self._seen.cut_segment(tensor) for tensor in tensors]
        found = self._seen.measure_noise(slices, singles=singles)
        for call, made in zip(calls, found[: len(calls)], strict=True):
            for tensor, more in made.items():
                key = call, returned[call][tensor]
                noise[key] = _combine(noise.get(key), more)
        for tensor, made in zip(tensors, found[len(calls) :], strict=True):
            for more in made.values():
                value = self._boundaries.known[tensor]
                noise[value] = _combine(noise.get(value), more)
        return noise

    def _judge(self, deviation: Deviation, noise: Noise | None = None) -> Measured:
        return Measured(deviation, self._seen.unit(deviation.tensor), noise)


def _combine(noise: Noise | None, more: Noise) -> Noise:
    """Add up noise of two kinds."""
    return more if noise is None else (math.hypot(noise[0], more[0]), math.hypot(noise[1], more[1]))


def _is_equal(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"))
