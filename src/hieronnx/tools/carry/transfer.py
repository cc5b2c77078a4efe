"""Making the hierarchy of graph B from that of graph A."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hieronnx.attribute.carried import Carried, Folded, carry_scopes, read_scopes
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import BoundTensor, Call, Initializer
from hieronnx.tools.carry.views import Pair


@dataclass(frozen=True, slots=True)
class Transfer:
    """What carry found, and the hierarchy that was made of it."""

    carried: Carried
    hierarchy: Hierarchy


def transfer(pair: Pair) -> Transfer:
    """Carry the scopes over, fill what is left open, and make the hierarchy of graph B."""
    before = pair.hierarchy
    carried = carry_scopes(pair.a, read_scopes(pair.a, before), pair.b, before.tree, pair.known)
    filled = fill_gaps(pair.b, carried.nodes, before.tree)
    hierarchy = Hierarchy(
        modules=before.modules,
        calls=_carry_calls(pair, carried),
        nodes=make_nodes(pair.b, filled),
        initializers=tuple(_carry_initializers(pair, carried)),
        model=before.model,
    )
    return Transfer(carried, hierarchy)


# -- initializers -----------------------------------------------------------------------------------------


def _carry_initializers(pair: Pair, carried: Carried) -> Iterator[Initializer]:
    """Yield the initializers: what they hold, and whose work, that of earlier tools included."""
    initializers = {initializer.name: initializer for initializer in pair.hierarchy.initializers}
    for tensor in pair.b.constants:
        folded = carried.initializers.get(tensor, Folded((), ()))
        sources = [initializers[name] for name in folded.sources if name in initializers]
        parameters = {source.parameter for source in sources if source.parameter is not None}
        origins = dict.fromkeys((*folded.origins, *(origin for source in sources for origin in source.origins)))
        yield Initializer(pair.b.names[tensor], parameters.pop() if len(parameters) == 1 else None, tuple(origins))


# -- calls ------------------------------------------------------------------------------------------------


def _carry_calls(pair: Pair, carried: Carried) -> tuple[Call, ...]:
    """Return the calls, with the tensors that they received and returned by their names in graph B."""

    def move(bound: BoundTensor) -> BoundTensor:
        of_a = None if bound.tensor is None else pair.a.find_tensor(bound.graph, bound.tensor)
        of_b = None if of_a is None else carried.tensors[of_a]
        if of_b is None:
            return BoundTensor(bound.name, None)
        graph, name = pair.b.tensor_key(of_b)
        return BoundTensor(bound.name, name, graph)

    return tuple(
        replace(
            call,
            received=None if call.received is None else tuple(map(move, call.received)),
            returned=None if call.returned is None else tuple(map(move, call.returned)),
        )
        for call in pair.hierarchy.calls
    )
