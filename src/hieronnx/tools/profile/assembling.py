"""From what was measured to a profile: kernels with their nodes and shares, calls with their times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
import onnx_ir as ir

from hieronnx.graph.building import view_model
from hieronnx.graph.shapes import bind_axes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, Call, CallId, Node
from hieronnx.tools.carry.carrying import Transfer, transfer
from hieronnx.tools.carry.pair import Pair
from hieronnx.tools.profile.counting import ModelCounts, is_blocked, multiplies
from hieronnx.tools.profile.elsewhere import tell_elsewhere
from hieronnx.tools.profile.joining import JoinedKernel, join_kernels
from hieronnx.tools.profile.measuring import Measured
from hieronnx.tools.profile.result import KINDS, CallTime, Kernel, KernelShare, Machine
from hieronnx.tools.profile.roofline import find_bound
from hieronnx.tools.profile.sharing import WorkOfOrigins
from hieronnx.tools.profile.work import KernelWork, find_input_shapes, measure_kernel

_MEMCPY = frozenset({"MemcpyFromHost", "MemcpyToHost"})
_Samples = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The kernels and calls of a model, and the hierarchy of the graph that ran."""

    kernels: tuple[Kernel, ...]
    calls: tuple[CallTime, ...]
    by_kind: Mapping[str, float]
    total_us: float
    hierarchy: Hierarchy


def assemble(measured: Measured, machine: Machine | None) -> Assembled:
    """Make a profile of what was measured."""
    pair = measured.pair
    moved = transfer(pair)
    joined = join_kernels(measured.trace, pair.b)
    nodes = _find_nodes(pair)
    shapes = {name: tuple(array.shape) for name, array in measured.feeds.items()}
    if not shapes:  # it ran elsewhere
        ran = ((nodes[kernel.node], kernel.events) for kernel in joined if kernel.node is not None)
        shapes = find_input_shapes(pair.after.model, ran)
    counts = ModelCounts(pair, moved, bind_axes(pair.before.model, shapes))
    maker = _KernelMaker(pair, moved, counts, nodes)
    samples = np.array([kernel.samples for kernel in joined], np.float64)
    quartiles = np.quantile(samples, (0.25, 0.5, 0.75), axis=1).T.tolist()
    kernels = [maker.make(kernel, times) for kernel, times in zip(joined, quartiles, strict=True)]
    sums = _CallSums(moved.hierarchy, kernels)
    spreads = _Spreads(sums, samples, measured.sessions)
    timing = _CallTiming(sums, spreads, tell_elsewhere(pair.hierarchy, moved.hierarchy, kernels), machine)
    calls = [timing.time(call) for call in moved.hierarchy.calls]
    by_kind = {kind: fsum(kernel.us for kernel in kernels if kernel.kind == kind) for kind in KINDS}
    total = fsum(kernel.us for kernel in kernels)
    return Assembled(tuple(kernels), tuple(calls), by_kind, total, moved.hierarchy)


# -- kernels ----------------------------------------------------------------------------------------------


def _find_nodes(pair: Pair) -> dict[int, ir.Node]:
    """Return the nodes of the graph that ran, by their numbers in its view."""
    nodes: dict[int, ir.Node] = {}
    view_model(pair.after.model, nodes.__setitem__, content=lambda _, name: name)
    return nodes


class _KernelMaker:
    """Makes the records of kernels, of what was joined to each node."""

    def __init__(self, pair: Pair, moved: Transfer, counts: ModelCounts, nodes: Mapping[int, ir.Node]) -> None:
        self._view, self._hierarchy, self._counts, self._nodes = pair.b, moved.hierarchy, counts, nodes
        self._origins = WorkOfOrigins(pair, counts)

    def make(self, joined: JoinedKernel, quartiles: Sequence[float]) -> Kernel:
        """Make the record of a kernel."""
        number = joined.node
        node = None if number is None else self._hierarchy.node_by_key[self._view.node_keys[number]]
        of_graph = None if number is None else self._nodes[number]
        weights = {ROOT: 1.0} if node is None else self._origins.weigh(node)
        work = self._measure(joined)
        low, middle, high = quartiles
        return Kernel(
            name=joined.name,
            op_type=joined.op_type or ("" if of_graph is None else of_graph.op_type),
            domain="" if of_graph is None else of_graph.domain,
            provider=joined.provider,
            kind=_find_kind(node),
            us=middle,
            spread_us=(high - low) / 2,
            count=joined.counts[joined.run],
            node=node,
            origins=() if node is None else tuple(dict.fromkeys(node.origins)) or (node.scope,),
            shares=tuple(_divide(middle, weights)),
            multiply_adds=work.multiply_adds,
            bytes=work.bytes,
            peak_memory=work.peak_memory,
            allocated=work.allocated,
        )

    def _measure(self, joined: JoinedKernel) -> KernelWork:
        """Measure what a kernel does."""
        if joined.node is None:
            return measure_kernel(None, joined.events)
        viewed, number = self._view.nodes[joined.node], joined.node
        filled_up = is_blocked(viewed) and multiplies(viewed)
        of_model = self._counts.count_kernel(number) if filled_up else None
        return measure_kernel(self._nodes[number], joined.events, filled_up=filled_up, of_model=of_model)


def _find_kind(node: Node | None) -> str:
    if node is None:
        return "runtime"
    if node.op_type in _MEMCPY:
        return "memcpy"
    if node.evidence == "root":
        return "unattributed"
    return "inserted" if node.rule in ("handed on", "consumers") else "module"


def _divide(us: float, weights: Mapping[CallId, float]) -> list[KernelShare]:
    """Divide a kernel's time; the largest part is what is left, so that the parts add up."""
    times = {call: us * part for call, part in weights.items()}
    largest = max(weights, key=lambda call: weights[call])
    times[largest] = us - fsum(time for call, time in times.items() if call != largest)
    return [KernelShare(call.module, call.number, part, times[call]) for call, part in weights.items()]


# -- calls ------------------------------------------------------------------------------------------------


class _CallSums:
    """Adds up what kernels have for each call: of its own, or with all calls below it."""

    def __init__(self, hierarchy: Hierarchy, kernels: Sequence[Kernel]) -> None:
        self.hierarchy, self.kernels = hierarchy, kernels
        self.parts: dict[CallId, list[tuple[int, float]]] = defaultdict(list)
        """For each call the kernels that it has a part in, and the part."""
        self.shares: dict[CallId, list[float]] = defaultdict(list)
        """For each call its times in these kernels."""
        for place, kernel in enumerate(kernels):
            for share in kernel.shares:
                self.parts[CallId(share.module, share.call)].append((place, share.part))
                self.shares[CallId(share.module, share.call)].append(share.us)

    def add_own(self, values: Sequence[float] | _Samples) -> dict[CallId, Any]:
        """Return for each call the sum of its parts of what kernels have."""
        nothing = 0.0 * values[0] if len(values) else 0.0
        return {
            call.id: sum((values[place] * part for place, part in self.parts.get(call.id, ())), nothing)
            for call in self.hierarchy.calls
        }

    def add_below(self, own: Mapping[CallId, Any]) -> dict[CallId, Any]:
        """Add to what each call has of its own what those below it have."""
        total = dict(own)
        for call in reversed(self.hierarchy.calls):  # every call comes after the one above it
            if call.parent is not None:
                total[call.parent] = total[call.parent] + total[call.id]
        return total


class _Spreads:
    """How the times of calls vary from run to run, and what they are at least in each session."""

    def __init__(self, sums: _CallSums, samples: _Samples, sessions: Sequence[int]) -> None:
        ends = np.cumsum(sessions)
        floors = [samples[:, end - runs : end].min(axis=1) for runs, end in zip(sessions, ends, strict=True) if runs]
        self.samples = sums.add_below(sums.add_own(samples))
        self.floors = sums.add_below(sums.add_own(np.stack(floors, axis=1)))
        low, high = np.quantile(np.stack(list(self.samples.values())), (0.25, 0.75), axis=1)
        self.halves: dict[CallId, float] = dict(zip(self.samples, ((high - low) / 2).tolist(), strict=True))
        """Half of the range that the middle half of the runs lies in."""


class _CallTiming:
    """Times calls, by what was added up for each."""

    def __init__(
        self, sums: _CallSums, spreads: _Spreads, elsewhere: Mapping[CallId, str], machine: Machine | None
    ) -> None:
        kernels = sums.kernels
        self._sums, self._spreads, self._elsewhere, self._machine = sums, spreads, elsewhere, machine
        self._own = {call.id: fsum(sums.shares.get(call.id, ())) for call in sums.hierarchy.calls}
        self._whole = fsum(self._own.values())
        self._own_work = sums.add_own([float(kernel.multiply_adds or 0) for kernel in kernels])
        self._own_bytes = sums.add_own([float(kernel.bytes) for kernel in kernels])
        self._work, self._bytes = sums.add_below(self._own_work), sums.add_below(self._own_bytes)
        self._total = _add_exactly(sums.hierarchy, self._own)
        self._below = _collect(sums)

    def time(self, call: Call) -> CallTime:
        """Return the times of a call."""
        own_parts = self._sums.parts.get(call.id, ())
        kernels = [self._sums.kernels[place] for place in self._below[call.id]]
        shares = zip(own_parts, self._sums.shares.get(call.id, ()), strict=True)
        peaks = [kernel.peak_memory for kernel in kernels if kernel.peak_memory is not None]
        asked = [kernel.allocated for kernel in kernels if kernel.allocated is not None]
        own, total = self._own[call.id], self._total[call.id]
        own_work, own_bytes = round(self._own_work[call.id]), round(self._own_bytes[call.id])
        work, moved = round(self._work[call.id]), round(self._bytes[call.id])
        return CallTime(
            module=call.id.module,
            call=call.id.number,
            parent=call.parent,
            tag=call.tag,
            tagged=call.tagged,
            class_name=self._sums.hierarchy.modules[call.id.module].class_name,
            own_us=own,
            total_us=total,
            share=total / self._whole if self._whole else 0.0,
            spread_us=self._spreads.halves[call.id],
            kernels=len(kernels),
            own_kernels=len(own_parts),
            shared_us=fsum(us for (place, _), us in shares if self._sums.kernels[place].shared),
            count=max((self._sums.kernels[place].count for place, _ in own_parts), default=0),
            multiply_adds=work,
            own_multiply_adds=own_work,
            bytes=moved,
            own_bytes=own_bytes,
            peak_memory=max(peaks, default=None),
            allocated=sum(asked) if asked else None,
            bound=find_bound(total, work, moved, self._machine),
            own_bound=find_bound(own, own_work, own_bytes, self._machine),
            elsewhere=self._elsewhere.get(call.id, ""),
            samples_us=tuple(self._spreads.samples[call.id].tolist()),
            floor_us=tuple(self._spreads.floors[call.id].tolist()),
        )


def _add_exactly(hierarchy: Hierarchy, own: Mapping[CallId, float]) -> dict[CallId, float]:
    """Add to the time of each call those below it, rounding once."""
    below: dict[CallId, list[float]] = {call.id: [own[call.id]] for call in hierarchy.calls}
    for call in reversed(hierarchy.calls):  # every call comes after the one above it
        if call.parent is not None:
            below[call.parent] += below[call.id]
    return {call: fsum(times) for call, times in below.items()}


def _collect(sums: _CallSums) -> dict[CallId, set[int]]:
    """Return for each call the kernels that it or a call below it has a part in."""
    below = {call.id: {place for place, _ in sums.parts.get(call.id, ())} for call in sums.hierarchy.calls}
    for call in reversed(sums.hierarchy.calls):
        if call.parent is not None:
            below[call.parent] |= below[call.id]
    return below
