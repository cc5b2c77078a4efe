"""One sample: every call alone and as the file runs, each error with the noise that the format makes there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hieronnx.graph.operators import DATA_MOVEMENT_OPS, PASSTHROUGH_OPS, SIZE_JOINING_OPS, SIZE_OPS, SIZE_PICKING_OPS
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Node
from hieronnx.runtime.sessions import Array, Runner
from hieronnx.runtime.slices import Slice
from hieronnx.tools.extract.find import explain_no_nodes
from hieronnx.tools.verify.boundaries import find_boundaries
from hieronnx.tools.verify.deviation import Deviation
from hieronnx.tools.verify.judging import UNKNOWN, Measured, Noise
from hieronnx.tools.verify.layouts import bind_lost, find_lost
from hieronnx.tools.verify.observing import Observation
from hieronnx.tools.verify.pairing import pair_calls
from hieronnx.tools.verify.ranges import LARGE, find_lifted, measure_ranges
from hieronnx.tools.verify.references import FileReference, Reference, Sample
from hieronnx.tools.verify.sampling import CallErrors, SampleErrors, SegmentError

_NO_WORK = frozenset({"Constant", *PASSTHROUGH_OPS})
_OF_SIZES = SIZE_PICKING_OPS | SIZE_JOINING_OPS
_DRAWS, _FEW = 6, 64
"""How often noise is drawn that may have been small by chance, and how few numbers are few."""
_MOST_OF_FEW, _MOST_OF_MANY = 100.0, 10.0
"""What is no chance any more: of few numbers, and of what many steps make."""


@dataclass(slots=True)
class _Probe:
    """A slice that runs on the reference's values, and the errors of its targets.

    Attributes:
        piece: The slice.
        deviations: The errors.
        own_noise: For each target what the reference's own rounding does to it.
        format_noise: What the rounding of the file's format does.
        clipped: What is lost by sums that the runtime clips, the root of the mean square.
        beyond: What is lost by numbers outside of the ranges of the file, the same.
        keeps_ranges: Whether that is no noise.
        errors: The errors, held to the noise.
    """

    piece: Slice
    deviations: list[Deviation] = field(default_factory=list)
    own_noise: Mapping[str, Noise | None] = field(default_factory=dict)
    format_noise: dict[str, Noise] = field(default_factory=dict)
    clipped: Mapping[str, float] = field(default_factory=dict)
    beyond: Mapping[str, float] = field(default_factory=dict)
    keeps_ranges: bool = False
    errors: list[Measured] = field(default_factory=list)

    @property
    def worst(self) -> Measured:
        return max(self.errors, key=lambda error: error.rank)

    @property
    def is_wrong(self) -> bool:
        return self.worst.excess > 1

    @property
    def is_large(self) -> bool:
        """Whether the error is more than a format makes of itself, as much as is known of that."""
        return self.is_wrong or any(LARGE < error.deviation.severity < math.inf for error in self.errors)


class SampleRun:
    """A sample, run through the file and through its reference."""

    def __init__(
        self, runner: Runner, hierarchy: Hierarchy, reference: Reference, sample: Sample, *, buffer: int
    ) -> None:
        self._runner, self._hierarchy, self._reference, self._sample = runner, hierarchy, reference, sample
        self._ran: dict[Slice, list[Deviation]] = {}
        self._pairs, self._values = pair_calls(hierarchy, reference.run(sample))
        flat, values = runner.flatten(sample.feeds), self._values
        self._boundaries = find_boundaries(
            hierarchy, flat, values, lambda call: explain_no_nodes(hierarchy, call), runner.find_readers
        )
        self._seen = Observation(runner, hierarchy, flat, self._boundaries, values.values, sample.feeds, buffer=buffer)

    def observe(self) -> None:
        """Run the file, and compare all that is known with the reference."""
        self._seen.run()
        self._leave_mismatched()
        lost = find_lost(self._hierarchy, self._seen.graph, self._seen.nodes, self._boundaries, self._values)
        for tensor, array in self._seen.compute([self._seen.cut_segment(tensor) for tensor in lost]):
            bind_lost(tensor, array, lost[tensor], self._boundaries, self._values)
        if self._boundaries.layouts:
            self._seen.run()
            self._leave_mismatched()

    def measure(self, chosen: Collection[CallId], *, judged: bool = True) -> SampleErrors:
        """Measure the errors of chosen calls; those that are not judged are held to single roundings alone."""
        self.observe()
        plain = self._runner.run(self._sample.feeds)
        calls = self._probe_calls(chosen)
        segments = self._probe_segments(chosen) if judged else {}
        self._judge(calls, segments, measured=judged)
        doubted = self._leave_doubted(calls, judged=judged)
        accumulated = self._seen.accumulated
        errors = SampleErrors(
            skipped=self._boundaries.skipped,
            outputs={name: accumulated[name] for name in plain if name in accumulated},
            undisturbed=all(_is_equal(self._seen.outputs[name], array) for name, array in plain.items()),
            doubted=doubted,
        )
        for call, probe in calls.items():
            worst = max((accumulated[tensor] for tensor in probe.piece.targets), key=lambda d: d.severity)
            errors.calls[call] = CallErrors(probe.worst, worst, frozenset(self._list_nodes(probe.piece.nodes)))
        right: dict[int, set[int]] = defaultdict(set)
        for number, probe in enumerate((*calls.values(), *segments.values())):
            for index in () if probe.is_wrong else probe.piece.nodes:
                right[index].add(number)
        for tensor, probe in segments.items():
            if probe.is_wrong:
                errors.segments[tensor] = self._describe_segment(probe, right)
        return errors

    def collect(self, tensors: Sequence[str]) -> dict[str, Array]:
        """Return the values of tensors of the main graph: as they should be, where that is known."""
        return self._seen.collect(tensors)

    def collect_expected(self, tensors: Sequence[str]) -> dict[str, Array]:
        """Return what tensors of the main graph should hold, of those that the reference knows."""
        return self._seen.collect([tensor for tensor in tensors if tensor in self._boundaries.known])

    def _leave_mismatched(self) -> None:
        """Leave out the tensors that have another shape than the reference: no call can be compared by them alone."""
        for call, made in list(self._boundaries.returned.items()):
            if lost := [tensor for tensor in made if tensor not in self._boundaries.known]:
                if len(lost) == len(made):
                    del self._boundaries.returned[call]
                    self._boundaries.skipped[call] = self._seen.accumulated[lost[0]].mismatch
                else:
                    self._boundaries.returned[call] = {t: place for t, place in made.items() if t not in lost}

    # -- what runs alone

    def _probe_calls(self, chosen: Collection[CallId]) -> dict[CallId, _Probe]:
        """Run each call alone, those of one depth together."""
        levels: dict[int, dict[CallId, _Probe]] = defaultdict(dict)
        for call, made in self._boundaries.returned.items():
            if call in chosen:
                levels[self._hierarchy.tree.depth(call)][call] = _Probe(self._seen.cut_call(call, list(made)))
        for level in levels.values():
            self._run(level.values())
        return {call: probe for level in levels.values() for call, probe in level.items()}

    def _leave_doubted(self, calls: dict[CallId, _Probe], *, judged: bool) -> dict[CallId, str]:
        """Leave out the calls that cannot be seen without the work of others, and why.

        Where nothing of that is wrong, they are not; otherwise nobody can tell. Those that are measured alone are left
        out where the file has lost something.
        """
        doubted = {}
        for call, probe in list(calls.items()):
            reason = self._explain_more(call, probe.piece, judged=judged) if probe.is_wrong or not judged else ""
            if reason:
                doubted[call] = reason
                del calls[call]
        return doubted

    def _explain_more(self, call: CallId, piece: Slice, *, judged: bool) -> str:
        """Say whose work a call cannot be seen without, for the file does not have what it received."""
        received = self._hierarchy.call_by_id[call].received or ()
        given, exchanged = self._boundaries.received[call], self._values.calls[call].received
        # Those that have another shape there, and other numbers, are lost as well.
        lost = [name for tensor, name in given.items() if tensor not in self._boundaries.known]
        lost += [bound.name for bound in received if bound.tensor is None and bound.name not in given.values()]
        # A model may leave out a mask that hides nothing, and tell its layers so.
        unknown = (bound.name for bound in received if bound.tensor is not None and bound.name not in exchanged)
        absent = list(unknown) if judged else []
        below = set(self._hierarchy.tree.below(call))
        nodes = self._list_nodes(index for index in piece.nodes if index not in self._sizes)
        others = (node for node in nodes if self._works_for_others(node, below) and node.op_type not in _NO_WORK)
        other = next(others, None) if lost or absent else None
        if other is None:
            return ""
        why = (
            f"the reference gives it no '{absent[0]}' on these inputs"
            if absent
            else f"the file does not have its argument '{lost[0]}'"
        )
        return f"{why}: '{str(other.scope) or 'the root'}' comes with it"

    def _works_for_others(self, node: Node, calls: Collection[CallId]) -> bool:
        """Say whether a node does work that is not of these calls: all of it, or a part where a tool made one of many.

        Where the same work of several calls is done once, it is each one's. Such a node has the scope of one of them; a
        node that does the work of several, that of the call above them.
        """
        if node.scope == self._hierarchy.tree.lowest_above(node.origins) and node.evidence == "carried":
            return node.scope not in calls
        return not any(call in calls for call in (node.scope, *node.origins))

    @cached_property
    def _sizes(self) -> set[int]:
        """The nodes that take sizes of tensors and compute with these: whoever they are of, they do no work."""
        graph, sizes, made = self._seen.graph, set[int](), set[str]()
        constants = {name for node in graph.nodes if node.op_type == "Constant" for name in node.output}
        for index, node in enumerate(graph.nodes):
            computed = [name for name in graph.reads[index] if name not in constants and not graph.is_held(name)]
            is_of_sizes = node.op_type in _OF_SIZES and bool(computed) and made.issuperset(computed)
            if is_of_sizes or node.op_type in SIZE_OPS:
                sizes.add(index)
                made.update(node.output)
        return sizes

    def _probe_segments(self, chosen: Collection[CallId]) -> dict[str, _Probe]:
        """Run what leads to each known tensor from those nearest to it, all together."""
        known = [tensor for tensor in self._boundaries.known if tensor in self._seen.graph.producers]
        probes = {tensor: _Probe(self._seen.cut_segment(tensor)) for tensor in known}
        probes = {t: p for t, p in probes.items() if any(n.scope in chosen for n in self._list_nodes(p.piece.nodes))}
        self._run(probes.values())
        return probes

    def _run(self, probes: Iterable[_Probe]) -> None:
        """Run slices, but for those that ran already: the segment of a call without others below it is the call."""
        wanted = [probe for probe in probes if probe.piece not in self._ran]
        found = self._seen.run_slices([probe.piece for probe in wanted])
        self._ran.update((probe.piece, deviations) for probe, deviations in zip(wanted, found, strict=True))
        for probe in probes:
            probe.deviations = self._ran[probe.piece]

    # -- noise

    def _judge(self, calls: Mapping[CallId, _Probe], segments: Mapping[str, _Probe], *, measured: bool) -> None:
        """Hold errors to the noise: measured where they are more than single roundings make."""
        probes = (*calls.values(), *segments.values())
        for probe in probes:
            probe.errors = [Measured(found, self._seen.unit(found.tensor)) for found in probe.deviations]
        suspicious = [probe for probe in probes if any(error.is_suspicious for error in probe.errors)]
        if not suspicious or not measured:
            return
        wanted = [self._pairs.get(c, c) for c, p in calls.items() if any(error.is_suspicious for error in p.errors)]
        reference = self._reference.measure_noise(self._sample, wanted, self._boundaries.known.values())
        for call, probe in calls.items():
            places, paired = self._boundaries.returned[call], self._pairs.get(call, call)
            probe.own_noise = {tensor: reference.get((paired, places[tensor])) for tensor in probe.piece.targets}
        for tensor, probe in segments.items():
            probe.own_noise = {tensor: reference.get(self._boundaries.known[tensor])}
        clipping = self._seen.measure_clipping([probe.piece for probe in suspicious])
        for probe, lost in zip(suspicious, clipping, strict=True):
            probe.clipped = lost
        singles = isinstance(self._reference, FileReference)
        self._hold(suspicious, singles=singles)
        self._explain_large([probe for probe in suspicious if probe.is_large], segments.values(), singles=singles)
        steps = {probe.piece for probe in segments.values()}
        chance = [probe for probe in suspicious if self._may_be_chance(probe, single=probe.piece in steps)]
        self._hold(chance, singles=True, draws=_DRAWS)

    def _explain_large(self, probes: Sequence[_Probe], steps: Collection[_Probe], *, singles: bool) -> None:
        """Measure what of large errors is made by numbers outside of the ranges that the file was calibrated for.

        On inputs that were made up, nobody is to blame for what these explain: it is noise. On those that were given,
        it is not: the file was calibrated for others, or a scale is wrong.
        """
        probes = [probe for probe in probes if self._seen.has_ranges(probe.piece)]
        if not probes:
            return
        self._seen.lifted = find_lifted(self._seen, [p.piece for p in steps if p in probes])
        for probe, lost in zip(probes, measure_ranges(self._seen, [p.piece for p in probes]), strict=True):
            probe.beyond = lost
        self._hold(probes, singles=singles)
        for probe in probes:
            probe.keeps_ranges = self._sample.is_given or probe.worst.cause != "range"
        self._hold([probe for probe in probes if probe.keeps_ranges], singles=singles)

    def _may_be_chance(self, probe: _Probe, *, single: bool) -> bool:
        """Say whether what seems to be wrong may be a noise that was small by chance.

        That of few numbers may be; and in many steps a choice may fall that is no matter of size, as of an expert.
        """
        few = self._seen.count_numbers(probe.worst.deviation.tensor) <= _FEW
        return 1 < probe.worst.excess < (_MOST_OF_FEW if few else 1.0 if single else _MOST_OF_MANY)

    def _hold(self, probes: Sequence[_Probe], *, singles: bool, draws: int = 1) -> None:
        """Hold the errors of probes to the noise of the reference and of the file's own format together."""
        found: list[tuple[_Probe, dict[str, Noise]]] = []
        for keeps in (False, True):
            chosen = [probe for probe in probes if probe.keeps_ranges == keeps]
            pieces = [probe.piece for probe in chosen]
            noise = self._seen.measure_noise(pieces, singles=singles, draws=draws, keeps_ranges=keeps)
            found += zip(chosen, noise, strict=True)
        for probe, formats in found:
            # Weights that are moved again may leave nothing that is finite.
            probe.format_noise |= {t: noise for t, noise in formats.items() if draws == 1 or noise != UNKNOWN}
            probe.errors = [
                Measured(
                    d,
                    self._seen.unit(d.tensor),
                    _combine(probe.own_noise.get(d.tensor), probe.format_noise.get(d.tensor)),
                    probe.clipped.get(d.tensor, 0.0),
                    probe.beyond.get(d.tensor, 0.0),
                )
                for d in probe.deviations
            ]

    # -- who

    def _describe_segment(self, probe: _Probe, right: Mapping[int, Set[int]]) -> SegmentError:
        """Describe nodes that give something wrong: what leads to a tensor that is right is right itself.

        What is right although the wrong tensor leads to it, as where noise hides that, clears nobody::

            Range ─┬─ Mul ─ Cos ─→ wrong ─ MatMul in few bits ─→ right, as far as can be seen: Mul may be wrong
                   └─ LessOrEqual ─→ right: so is Range

        Args:
            probe: The slice that they are, and its error.
            right: For each node the slices, by number, that it is in and that give what is right.
        """
        (tensor,) = probe.piece.targets
        behind = right.get(self._seen.graph.producers[tensor], frozenset())
        suspects = [i for i in probe.piece.nodes if right.get(i, frozenset()) <= behind] or probe.piece.nodes
        nodes = self._list_nodes(suspects)
        working = self._list_nodes(index for index in suspects if index not in self._sizes) or nodes
        return SegmentError(
            error=probe.worst,
            accumulated=self._seen.accumulated[tensor],
            nodes=tuple(nodes),
            working=frozenset(node for node in working if node.op_type not in _NO_WORK) or frozenset(working),
            owner=self._find_owner(working),
        )

    def _find_owner(self, nodes: list[Node]) -> CallId:
        """Return the lowest call that all nodes are in: of a merged node the copy that is nearest."""
        working = [node for node in nodes if node.op_type not in _NO_WORK] or nodes
        if not working:
            return ROOT
        # The last one may be merged with work of those behind. Where that only moves elements, it does nothing wrong: a
        # call that has others of the nodes to itself may.
        moves = working[-1].op_type in DATA_MOVEMENT_OPS
        alone = {node.scope for node in working if moves and node.origins == (node.scope,)}
        last = (working[-1].scope, *(origin for origin in working[-1].origins if origin in alone))
        return max((self._find_above(call, working) for call in last), key=self._hierarchy.tree.depth)

    def _find_above(self, call: CallId, nodes: Sequence[Node]) -> CallId:
        """Return the lowest call above one that nodes before it are in, too."""
        tree = self._hierarchy.tree
        for node in reversed(nodes):
            above = (tree.lowest_above((call, origin)) for origin in (node.scope, *node.origins))
            call = max(above, key=tree.depth)
        return call

    def _list_nodes(self, indices: Iterable[int]) -> list[Node]:
        return [node for index in indices if (node := self._seen.nodes[index]) is not None]


def _combine(noise: Noise | None, more: Noise | None) -> Noise | None:
    """Add up noise of two kinds."""
    if noise is None or more is None:
        return noise or more
    return math.hypot(noise[0], more[0]), math.hypot(noise[1], more[1])


def _is_equal(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"))
