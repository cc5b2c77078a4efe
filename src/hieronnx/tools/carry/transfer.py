"""Making the hierarchy of the graph after from that of the graph before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hieronnx.attribute.carried import Carried, Folded, carry_scopes
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Attribution, BoundTensor, Call, Initializer
from hieronnx.tools.carry.views import Pair


@dataclass(frozen=True, slots=True)
class Transfer:
    """What carry found, and the hierarchy that was made of it."""

    carried: Carried
    hierarchy: Hierarchy


def transfer(pair: Pair) -> Transfer:
    """Carry the scopes over, fill what is left open, and make the hierarchy of the graph after."""
    before = pair.hierarchy
    carried = carry_scopes(pair.a, _find_scopes(pair.a, before), pair.b, before.tree, pair.known)
    filled = fill_gaps(pair.b, carried.nodes, before.tree)
    hierarchy = Hierarchy(
        modules=before.modules,
        calls=_carry_calls(pair, carried),
        nodes=make_nodes(pair.b, filled),
        initializers=tuple(_carry_initializers(pair, carried)),
        model=before.model,
    )
    return Transfer(carried, hierarchy)


def _find_scopes(view: View, hierarchy: Hierarchy) -> list[Attribution | None]:
    """Return what is known of each node; a fallback to the root is none: the graph after may tell more."""
    known = {(node.graph, node.output): node for node in hierarchy.nodes}
    found = (known[view.node_key(index)] for index in range(len(view.nodes)))
    return [
        None if node.evidence == "root" else Attribution(node.scope, node.origins, node.evidence, node.rule)
        for node in found
    ]


# -- initializers -----------------------------------------------------------------------------------------


def _carry_initializers(pair: Pair, carried: Carried) -> Iterator[Initializer]:
    """Yield the initializers: what they hold, and whose work, that of earlier tools included."""
    before = {held.name: held for held in pair.hierarchy.initializers}
    for tensor in pair.b.constants:
        folded = carried.initializers.get(tensor, Folded((), ()))
        sources = [before[name] for name in folded.sources if name in before]
        parameters = {held.parameter for held in sources if held.parameter is not None}
        origins = dict.fromkeys((*folded.origins, *(origin for held in sources for origin in held.origins)))
        yield Initializer(pair.b.names[tensor], parameters.pop() if len(parameters) == 1 else None, tuple(origins))


# -- calls ------------------------------------------------------------------------------------------------


def _carry_calls(pair: Pair, carried: Carried) -> tuple[Call, ...]:
    """Return the calls, with what they took and gave by the names that it has in the graph after."""
    a, b = pair.a, pair.b
    numbers = {(a.graphs[graph].key, a.names[t]): t for t, graph in enumerate(a.tensor_graphs)}

    def move(passed: BoundTensor) -> BoundTensor:
        number = None if passed.tensor is None else numbers.get((passed.graph, passed.tensor))
        held = None if number is None else carried.tensors[number]
        if held is None:
            return BoundTensor(passed.name, None)
        return BoundTensor(passed.name, b.names[held], b.graphs[b.tensor_graphs[held]].key)

    return tuple(
        replace(
            call,
            received=None if call.received is None else tuple(map(move, call.received)),
            returned=None if call.returned is None else tuple(map(move, call.returned)),
        )
        for call in pair.hierarchy.calls
    )
