"""Which tensors of a file the reference has values of, and which calls can be compared by them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from hieronnx.errors import list_some
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, BoundTensor, Call, CallId
from hieronnx.runtime.flattening import Flat
from hieronnx.tools.verify.untold import Readers, Untold

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Layout: TypeAlias = tuple[int, ...]
"""The axes of the reference's value, in the order in which the file has them."""
NamedValues: TypeAlias = Mapping[str, Hashable]
"""What a call received or returned: by the argument or place the key of the value."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What one call of the reference received and returned."""

    received: NamedValues
    returned: NamedValues


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """What the calls of one run of the reference exchanged, and the values by their keys.

    Attributes:
        calls: What each call exchanged.
        values: The values.
        uncalled: What it means that a call is not among the calls.
        explain_missing: Says of a call, and a place in what it returned, why there is no value; also given is whether
            it is an output of the model.
    """

    calls: Mapping[CallId, Exchanged]
    values: Mapping[Hashable, Array]
    uncalled: str = "the reference does not call it on these inputs"
    explain_missing: Callable[[CallId, str, bool], str] = lambda *_: "the reference returned no tensor there"


@dataclass(slots=True)
class Boundaries:
    """What is known of a file's tensors on one sample.

    Attributes:
        known: The key of the value that each tensor of the flat model should have.
        received: The tensors that each call received, of those that are known at first, and the arguments they are.
        returned: What each call returned: the tensor, and its place there.
        skipped: Why calls cannot be compared.
        layouts: For tensors that have the reference's numbers in another layout the order of its axes.
    """

    known: dict[str, Hashable] = field(default_factory=dict)
    received: dict[CallId, dict[str, str]] = field(default_factory=dict)
    returned: dict[CallId, dict[str, str]] = field(default_factory=dict)
    skipped: dict[CallId, str] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)


def find_boundaries(
    hierarchy: Hierarchy,
    flat: Flat,
    reference: ReferenceValues,
    explain: Callable[[CallId], str],
    find_readers: Callable[[], Readers],
) -> Boundaries:
    """Find the tensors of a flat model that the reference has values of, and say why other calls have none.

    Args:
        hierarchy: The hierarchy of the file.
        flat: The file as one graph.
        reference: The reference's values.
        explain: Says why a call has no nodes.
        find_readers: Finds for each node of the file those that read what it makes.
    """
    names = {(e.graph, e.name): e.exposed for e in flat.exposures if not e.repeats}
    names.update((("", value.name), value.name) for value in flat.model.graph.input)
    produced = {name for node in flat.model.graph.node for name in node.output}
    found = Boundaries()
    working, own = hierarchy.working_calls, find_own(hierarchy)
    untold = Untold("file", hierarchy, find_readers)
    explain_lost = _LostValues(untold, flat, reference, names).explain
    for call in hierarchy.calls:
        exchanged = reference.calls.get(call.id)
        if exchanged is not None:
            received = _bind(call.received, exchanged.received, names)
            found.received[call.id] = {tensor: name for tensor, name, _ in received}
            returned = _bind(call.returned, exchanged.returned, names)
            if call.parent is None:
                returned = _bind_outputs(flat, exchanged.returned) or returned
            for tensor, _, key in (*received, *returned):
                found.known.setdefault(tensor, key)
            made = {t: place for t, place, _ in returned if t in produced and t not in found.received[call.id]}
            if made and call.id in own:
                found.returned[call.id] = made
                continue
        if call.id not in working:
            found.skipped[call.id] = explain(call.id)
        elif call.id not in own:
            found.skipped[call.id] = _explain_fused(hierarchy, call.id)
        elif exchanged is None:
            found.skipped[call.id] = reference.uncalled
        else:
            found.skipped[call.id] = explain_lost(call, found.received[call.id].keys())
    return found


def find_own(hierarchy: Hierarchy) -> set[CallId]:
    """Return the calls that have nodes which are in them alone, their own or of calls below them."""
    scopes = {node.scope for node in hierarchy.nodes if node.is_attributed()}
    return {above for call in scopes for above in hierarchy.tree.ancestors(call)}


def _explain_fused(hierarchy: Hierarchy, call: CallId) -> str:
    """Say who has the nodes that do a call's work."""
    below = set(hierarchy.tree.below(call))
    nodes = [node for node in hierarchy.nodes if not below.isdisjoint(node.origins)]
    named = list_some([f"'{node.name or node.output}'" for node in nodes], 2)
    return f"its work is done in one with that of '{str(nodes[0].scope) or 'the root'}', by {named}"


def _bind(
    bound: Sequence[BoundTensor] | None, values: NamedValues, names: Mapping[tuple[str, str], str]
) -> list[tuple[str, str, Hashable]]:
    """Return the tensors of the flat model that the reference has values of, each with its name and the value's key."""
    pairs = ((item, values.get(item.name)) for item in bound or () if item.tensor is not None)
    placed = ((names.get((item.graph, item.tensor or "")), item.name, key) for item, key in pairs if key is not None)
    return [(tensor, name, key) for tensor, name, key in placed if tensor is not None]


def _bind_outputs(flat: Flat, values: NamedValues) -> list[tuple[str, str, Hashable]]:
    """Return the outputs of the file as what the model returned, in order; nothing where these are not as many."""
    outputs = [value.name for value in flat.model.graph.output]
    if len(outputs) != len(values):
        return []
    return [(tensor, name, key) for tensor, (name, key) in zip(outputs, values.items(), strict=True)]


class _LostValues:
    """Says why nothing that a call with nodes returned can be compared: what the file lacks, what the reference."""

    def __init__(
        self, untold: Untold, flat: Flat, reference: ReferenceValues, names: Mapping[tuple[str, str], str]
    ) -> None:
        self._untold, self._reference, self._names = untold, reference, names
        graph = flat.model.graph
        self._looped = {(e.graph, e.name) for e in flat.exposures if e.repeats}
        self._constants = {tensor.name for tensor in graph.initializer}
        self._inputs, self._outputs = ({value.name for value in values} for values in (graph.input, graph.output))
        exchanged = reference.calls.get(ROOT)
        self._returned_last = set() if exchanged is None else set(exchanged.returned.values())

    def explain(self, call: Call, received: Set[str]) -> str:
        """Say why of a call, by the tensors that it received; of each place, where the reasons are several."""
        if call.returned is None:
            return "what it returned was not recorded: export records it, and annotate by value, outside loops"
        if not call.returned:
            return "it returns no tensor"
        reasons = {item.name: self._explain_place(call, item, received) for item in call.returned}
        first = next(iter(reasons.values()))
        if all(reason == first for reason in reasons.values()):
            return first
        return "; ".join(f"'{place}': {reason}" for place, reason in reasons.items())

    def _explain_place(self, call: Call, item: BoundTensor, received: Set[str]) -> str:
        key = self._reference.calls[call.id].returned.get(item.name)
        if item.tensor is None:
            return self._untold.explain(call.id, call.id == ROOT or key in self._returned_last)
        place = item.graph, item.tensor
        tensor = self._names.get(place)
        if tensor is None:
            if place in self._looped:
                return "it runs in a loop of the file"
            if not item.graph:
                is_constant = item.tensor in self._constants
                return f"what it returned is {'a constant' if is_constant else 'no tensor'} of the file"
            return "what it returned is in a branch of the file that is not taken, or out of reach in a function"
        if tensor in received:
            return "it returns what it received"
        if tensor in self._inputs:
            return "it returns an input of the file"
        return self._reference.explain_missing(call.id, item.name, tensor in self._outputs)
