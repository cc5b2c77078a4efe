"""Arguments and results that a file has in another layout than the reference, found by their numbers.

Exporters and optimizers make one of two Transposes, and what a call received is then in the file in no layout but
another::

    model   relu ─→ transpose ─→ [ transpose ─→ GRU ]        the call receives what the first transpose gives
    file    Relu ─→ Transpose ─→ GRU                         that has the same numbers as what Relu gives

Or they compute with matrices where the model has more axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.runtime.slices import SliceGraph
from hieronnx.tools.verify.boundaries import Boundaries, Layout, ReferenceValues, find_own
from hieronnx.tools.verify.deviation import measure
from hieronnx.tools.verify.judging import SUSPICIOUS

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Crossing: TypeAlias = Mapping[CallId, Mapping[str, None]]

_LEAST, _MOST_AXES = 8, 5
"""Fewer numbers may be equal by chance; of more axes there are too many orders."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that a call received or returned and the file is not known to have."""

    call: CallId
    name: str
    key: Hashable
    received: bool


def find_lost(
    hierarchy: Hierarchy, graph: SliceGraph, nodes: Sequence[Node | None], found: Boundaries, reference: ReferenceValues
) -> dict[str, list[Lost]]:
    """Return the tensors of a flat model that may be what calls received or returned: those that enter or leave them.

    What a call without nodes of its own returned is the work of others as well.
    """
    wanted: dict[str, list[Lost]] = defaultdict(list)
    values = ((lost, reference.values[lost.key]) for lost in _list_lost(hierarchy, found, reference))
    searched = [
        lost
        for lost, value in values
        if value.dtype.kind == "f" and value.size >= _LEAST and 1 < value.ndim <= _MOST_AXES
    ]
    entering, leaving = _find_crossing(hierarchy, graph, nodes) if searched else ({}, {})
    for lost in searched:
        for tensor in (entering if lost.received else leaving).get(lost.call, ()):
            if tensor not in found.known:
                wanted[tensor].append(lost)
    return wanted


def _list_lost(hierarchy: Hierarchy, found: Boundaries, reference: ReferenceValues) -> Iterator[Lost]:
    own = find_own(hierarchy)
    for call in hierarchy.calls:
        exchanged = reference.calls.get(call.id)
        if exchanged is None or call.id not in own:
            continue
        for bound in call.received or ():
            if bound.tensor is None and bound.name in exchanged.received:
                yield Lost(call.id, bound.name, exchanged.received[bound.name], received=True)
        for bound in (call.returned or ()) if call.id not in found.returned else ():
            if bound.tensor is None and bound.name in exchanged.returned:
                yield Lost(call.id, bound.name, exchanged.returned[bound.name], received=False)


def _find_crossing(
    hierarchy: Hierarchy, graph: SliceGraph, nodes: Sequence[Node | None]
) -> tuple[_Crossing, _Crossing]:
    """Return for each call the tensors that enter it, and those that leave it, in the order of the graph."""
    entering: dict[CallId, dict[str, None]] = defaultdict(dict)
    leaving: dict[CallId, dict[str, None]] = defaultdict(dict)
    for reader, reads in zip(nodes, graph.reads, strict=True):
        for name in reads:
            producer = graph.producers.get(name)
            maker = None if producer is None else nodes[producer]
            if reader is None or maker is None or reader.scope == maker.scope:
                continue
            around_reader, around_maker = (set(hierarchy.tree.ancestors(node.scope)) for node in (reader, maker))
            for call in around_reader - around_maker:
                entering[call][name] = None
            for call in around_maker - around_reader:
                leaving[call][name] = None
    return entering, leaving


def bind_lost(tensor: str, array: Array, lost: Iterable[Lost], found: Boundaries, reference: ReferenceValues) -> None:
    """Add a tensor to what is known if its values, made of the reference's own, are those of what was lost."""
    for item in lost:
        layout = _find_layout(array, reference.values[item.key])
        if layout is None or found.known.setdefault(tensor, item.key) != item.key:
            continue
        found.layouts[tensor] = layout
        if item.received:
            found.received[item.call][tensor] = item.name
        else:
            found.returned.setdefault(item.call, {})[tensor] = item.name
            found.skipped.pop(item.call, None)


def _find_layout(actual: Array, expected: Array) -> Layout | None:
    """Return the order of axes in which a value has the numbers of a tensor, perhaps of other sizes; None without one.

    Both may be apart by less than what anybody is blamed for: a tensor that only looks like it would be blamed.
    """
    if actual.dtype != expected.dtype or actual.size != expected.size:
        return None
    same = SUSPICIOUS / 2 * min(float(np.finfo(actual.dtype).eps), float(np.finfo(np.float32).eps))
    sizes = [float(np.linalg.norm(array.astype(np.float64))) for array in (actual, expected)]
    if not abs(sizes[0] - sizes[1]) <= same * sizes[1]:  # in no order are they the same numbers
        return None
    as_it_is = tuple(range(expected.ndim))
    for axes in permutations(as_it_is):
        turned = expected.transpose(axes)
        fits = turned.shape == actual.shape or axes == as_it_is
        if fits and measure("", actual, turned.reshape(actual.shape)).severity <= same:
            return axes
    return None
