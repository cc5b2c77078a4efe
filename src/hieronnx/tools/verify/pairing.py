"""Which call of the reference is which of the file, where a module was called in another order than at export.

A model may loop over a set, and the order of that is another one in each process. Calls of one module are told apart by
their numbers, so the numbers of two runs need not mean the same. Who reads what a call returned tells::

    file        rotary@0 → layer.0    rotary@1 → layer.1        layer.0 receives what rotary@0 returned
    reference   rotary@0 → layer.1    rotary@1 → layer.0        there it is what rotary@1 returned: they are one call
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.verify.boundaries import ReferenceValues

_ROUNDS = 8
"""How deep calls that read one another may be, each in another order."""


def pair_calls(hierarchy: Hierarchy, reference: ReferenceValues) -> tuple[dict[CallId, CallId], ReferenceValues]:
    """Pair the calls of a file with those of the reference.

    Returns:
        For calls of the file the call of the reference that each is, where that has another number; and what the
        reference's calls exchanged, under the numbers that they have in the file.
    """
    pairs: dict[CallId, CallId] = {}
    renumbered = reference
    for _ in range(_ROUNDS):  # who is paired now tells of those whom it reads
        moved = _find_moved(hierarchy, renumbered)
        if not moved:
            break
        pairs |= {call: pairs.get(other, other) for call, other in moved.items()}
        there = {call: reference.calls[other] for call, other in pairs.items() if other in reference.calls}
        renumbered = replace(reference, calls={**reference.calls, **there})
    return pairs, renumbered


def _find_moved(hierarchy: Hierarchy, reference: ReferenceValues) -> dict[CallId, CallId]:
    """Return the calls that are others in the reference, with all below them."""
    readers = _find_by_readers(hierarchy, reference)
    moved = {call: next(iter(found)) for call, found in readers.items() if len(found) == 1 and call not in found}
    for module in {call.module for call in moved}:
        of_module = {call: other for call, other in moved.items() if call.module == module}
        if set(of_module) != set(of_module.values()):  # what readers say is no order of the calls
            for call in of_module:
                del moved[call]
    for call, other in list(moved.items()):
        below, others = hierarchy.tree.below(call), hierarchy.tree.below(other)
        if [inner.module for inner in below] == [inner.module for inner in others]:
            for inner, same in zip(below, others, strict=True):
                moved.setdefault(inner, same)
    return moved


def _find_by_readers(hierarchy: Hierarchy, reference: ReferenceValues) -> dict[CallId, set[CallId]]:
    """Find for each call of the file the calls of the reference that returned what its readers receive there."""
    makers: dict[Hashable, list[tuple[CallId, str]]] = defaultdict(list)
    for call_id, exchanged in reference.calls.items():
        for place, key in exchanged.returned.items():
            makers[key].append((call_id, place))
    made: dict[tuple[str, str | None], list[tuple[CallId, str]]] = defaultdict(list)
    for call in hierarchy.calls:
        for bound in call.returned or ():
            made[bound.graph, bound.tensor].append((call.id, bound.name))
    found: dict[CallId, set[CallId]] = defaultdict(set)
    for call in hierarchy.calls:
        received = reference.calls[call.id].received if call.id in reference.calls else {}
        for bound in call.received or ():
            of_file = made.get((bound.graph, bound.tensor), ()) if bound.tensor is not None else ()
            of_reference = makers.get(received[bound.name], ()) if bound.name in received else ()
            for maker, place in of_file:
                others = {other for other, at in of_reference if at == place and other.module == maker.module}
                if maker.module != call.id.module:
                    found[maker].update({maker} if maker in others else others)
    return found
