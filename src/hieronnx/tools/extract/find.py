"""Finding the part of a graph that one module call is: its nodes, what comes along, its inputs and outputs.

A part's nodes are the call's region and what it shares with other calls through origins. Constants come along, and
sizes that can be taken from the part's own inputs. All else that is read from outside is an input. It is recorded what
the call received and returned: where that is known, it says where the part ends, and in which order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.errors import HieronnxError
from hieronnx.graph.operators import SIZE_OPS
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.ends import Ends, name_equals, read_ends
from hieronnx.tools.extract.inputs import find_inputs
from hieronnx.tools.extract.source import DATA, Source


@dataclass(frozen=True, slots=True)
class Part:
    """What belongs to a part, by the numbers of the whole model's view, in the order of the file.

    Attributes:
        call: the call that it is.
        region: the nodes of the call, those shared with others included; bodies belong to their nodes.
        brought: constants and sizes from outside that come along, and what changes the form of received tensors alone.
        graphs: the graphs that these nodes are in: the main graph, or bodies inside one another.
        inputs: what is read from outside: first what the call received, in the order of its arguments.
        outputs: what the call returned, in that order, and then what else is read outside.
        initializers: those that are needed.
        sizes: the inputs that are sizes: exporters compute these outside, once for all who need them.
        ends: what the call received and returned.
        arguments: which of them the inputs are.
        places: where in what was returned the outputs are.
        retaken: the nodes that take a size of another tensor than in the whole model: of which input, and which axis.
    """

    call: CallId
    region: tuple[int, ...]
    brought: tuple[int, ...]
    graphs: frozenset[int]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    initializers: tuple[int, ...]
    sizes: tuple[int, ...]
    ends: Ends
    arguments: Mapping[int, tuple[str, ...]]
    places: Mapping[int, tuple[str, ...]]
    retaken: Mapping[int, tuple[int, int]]

    @property
    def nodes(self) -> list[int]:
        """All nodes of the part in the order of the file."""
        return sorted((*self.region, *self.brought))

    @property
    def undeclared_inputs(self) -> list[int]:
        """The inputs that the call did not receive; where that was not recorded, those that are sizes."""
        return [t for t in self.inputs if t not in self.arguments] if self.ends.recorded else list(self.sizes)


# -- the region -------------------------------------------------------------------------------------------


def find_part(source: Source, call: CallId) -> Part | None:
    """Find the part that a call is; None where the file has no node of it, literal constants aside.

    Raises:
        HieronnxError: If its nodes lie in graphs that cannot be one.
    """
    calls = set(source.below(call))
    found = {index for item in calls for index in source.nodes_of.get(item, ())}
    if all(source.view.nodes[index].op == "Constant" for index in found):
        return None  # a literal is no work
    top = _find_top(source, found, call)
    top |= _find_between(source, top, calls, call)
    is_whole = source.hierarchy.call_by_id[call].parent is None
    ends = read_ends(source, call)
    region = sorted(top) if is_whole else _leave_received(source, _leave_sizes(source, sorted(top)), calls, ends)
    outputs = source.view.graphs[0].outputs if is_whole else _find_outputs(source, call, region, ends)
    places = name_equals(source, outputs, ends.returned)
    ordered = outputs if is_whole else tuple(dict.fromkeys((*places, *outputs)))
    return _close(source, call, region, ends, ordered, places)


def _close(
    source: Source,
    call: CallId,
    region: Sequence[int],
    ends: Ends,
    outputs: tuple[int, ...],
    places: Mapping[int, tuple[str, ...]],
) -> Part:
    """Complete a part by what it reads from outside."""
    view = source.view
    graphs = _graphs_around(view, {view.nodes[index].graph for index in region})
    _refuse_functions(view, graphs, call)
    inputs = find_inputs(source, region, (t for t in ends.received if view.tensor_graphs[t] in graphs))
    passed = [t for t in dict.fromkeys(outputs) if view.producers[t] is None]
    fed = (t for t in passed if t not in view.constants)
    entering = dict.fromkeys((*inputs.data, *fed, *inputs.sizes))
    arguments = name_equals(source, entering, ends.received)
    return Part(
        call=call,
        region=tuple(region),
        brought=tuple(sorted(inputs.brought)),
        graphs=frozenset(graphs),
        inputs=tuple(dict.fromkeys((*arguments, *entering))),
        outputs=outputs,
        initializers=_find_initializers(source, sorted((*region, *inputs.brought)), passed),
        sizes=tuple(inputs.sizes),
        ends=ends,
        arguments=arguments,
        places=places,
        retaken=inputs.retaken,
    )


def _find_top(source: Source, found: set[int], call: CallId) -> set[int]:
    """Return the nodes that stand for themselves, not inside a body or function that comes with another of them.

    Where they lie in bodies beside one another, the nodes that have those bodies join them.
    """
    view = source.view
    while True:
        inside = set(source.bodies_below(found))
        top = {index for index in found if view.nodes[index].graph not in inside}
        graphs = {view.nodes[index].graph for index in top}
        deepest = max(graphs, key=lambda graph: len(_graphs_above(view, graph)))
        apart = graphs - set(_graphs_above(view, deepest))
        if not apart:
            return top
        owners = {view.graphs[graph].owner for graph in (*apart, deepest)}
        if None in owners:
            raise HieronnxError(f"call '{call}' lies in several functions of the file and cannot be taken out as one")
        found |= {owner for owner in owners if owner is not None}


def _graphs_above(view: View, graph: int) -> list[int]:
    """Return a graph and those that it lies in."""
    found = [graph]
    while (owner := view.graphs[found[-1]].owner) is not None:
        found.append(view.nodes[owner].graph)
    return found


def _graphs_around(view: View, graphs: Iterable[int]) -> set[int]:
    return {above for graph in graphs for above in _graphs_above(view, graph)}


def _refuse_functions(view: View, graphs: Iterable[int], call: CallId) -> None:
    """Refuse a part of a function: its tensors have no types, and its nodes may take attributes from its callers."""
    for graph in graphs:
        if graph and view.graphs[graph].owner is None:
            raise HieronnxError(
                f"call '{call}' lies inside the function '{view.graphs[graph].key}' of the file and cannot be taken "
                "out of it; extract the call that uses the function, or inline the functions first (onnx.inliner)"
            )


def _find_between(source: Source, top: set[int], calls: Collection[CallId], call: CallId) -> set[int]:
    """Return the nodes of calls above on a way from the call's own nodes back into its part: they ran while it did.

    A node that is only shared is no beginning of such a way: it ran in another call, maybe long before.
    """
    view, above = source.view, set(source.hierarchy.tree.ancestors(call))
    own = {index for index in top if source.attributions[index].scope in calls}
    if not own:
        return set()
    first, seen = min(own), set[int]()
    pending = list(top)
    while pending:
        for tensor in view.nodes[pending.pop()].reads:
            producer = view.producers[tensor]
            if producer is None or producer < first or producer in seen or producer in top:
                continue
            if source.attributions[producer].scope in above:
                seen.add(producer)
                pending.append(producer)
    between: set[int] = set()
    for index in sorted(seen):
        if any(
            view.producers[tensor] in own or view.producers[tensor] in between for tensor in view.nodes[index].reads
        ):
            between.add(index)
    return between


def _leave_sizes(source: Source, region: list[int]) -> list[int]:
    """Leave out the sizes that the exporter takes for all who need them, where they are of tensors not read here.

    Nobody said that such a node belongs here: it was given to those who read it.
    """
    view = source.view
    guessed = {
        index for index in region if view.nodes[index].op in SIZE_OPS and source.attributions[index].confidence == "low"
    }
    others = [index for index in region if index not in guessed]
    here = {t for index in others for t in (*view.nodes[index].reads, *view.nodes[index].outputs)}
    return [index for index in region if index not in guessed or here.issuperset(view.nodes[index].reads)] or region


def _leave_received(source: Source, region: list[int], calls: Collection[CallId], ends: Ends) -> list[int]:
    """Leave out the nodes of others that only make what the call received: the part begins after them."""
    view = source.view
    own = {index for index in region if source.attributions[index].scope in calls}
    received = {t for t in ends.received if view.producers[t] not in own}
    makers = {view.producers[t] for t in received}
    if makers.isdisjoint(region):
        return region
    members, read = set(region), {t for index in region for t in view.nodes[index].reads}
    last = (i for i in region if i not in makers and read.isdisjoint(view.nodes[i].outputs))
    needed, pending = set[int](), [*own, *last]
    while pending:
        index = pending.pop()
        if index not in needed:
            needed.add(index)
            before = (view.producers[t] for t in view.nodes[index].reads if t not in received)
            pending += (producer for producer in before if producer is not None and producer in members)
    return [index for index in region if index in needed] or region


# -- the boundary -----------------------------------------------------------------------------------------


def _find_initializers(source: Source, nodes: Iterable[int], passed: Iterable[int]) -> tuple[int, ...]:
    view = source.view
    read = (t for index in nodes for t in view.nodes[index].reads)
    return tuple(sorted({t for t in (*read, *passed) if t in view.constants}))


def _find_outputs(source: Source, call: CallId, region: Sequence[int], ends: Ends) -> tuple[int, ...]:
    """Return what a region makes for others; where others make it all themselves, whatever they read.

    Constants and sizes are nothing to be passed on, unless a call received or returned them: they come along with
    whoever reads them.
    """
    inside = {*region, *(i for graph in source.bodies_below(region) for i in source.nodes_in.get(graph, ()))}
    made = [t for index in region for t in source.view.nodes[index].outputs if t != NO_TENSOR]
    outer = {tensor: list(_outer_readers(source, tensor, inside)) for tensor in made}
    given = [t for t in made if any(r is None or not _makes_itself(source, r, t, call) for r in outer[t])]
    returned = [t for t in made if t in ends.returned]
    computed = [t for t in given if source.kinds[t] == DATA or t in source.returned_by or t in source.received]
    unread = [t for t in made if not source.readers[t]]
    found = returned + computed or given or [t for t in made if outer[t]] or unread or made
    asked = _asked_by_sharers(source, call, region).union(found)
    return tuple(t for t in made if t in asked)


def _asked_by_sharers(source: Source, call: CallId, region: Sequence[int]) -> set[int]:
    """Return what nodes shared with other branches of the call tree read of what those did not make too.

    The part of the other branch has the shared node as well, and begins with it.
    """
    view, members = source.view, set(region)
    shared = {*source.below(call), *source.hierarchy.tree.ancestors(call)}
    found: set[int] = set()
    for index in region:
        others = _branches(source, index, shared)
        for tensor in view.nodes[index].reads if others else ():
            producer = view.producers[tensor]
            if producer in members and source.kinds[tensor] == DATA:
                assert producer is not None  # it is a member
                if not others <= _branches(source, producer, shared):
                    found.add(tensor)
    return found


def _branches(source: Source, index: int, shared: Collection[CallId]) -> set[CallId]:
    """Return the other branches of the call tree that a node belongs to, by their outermost calls."""
    node = source.attributions[index]
    tops = (_branch_top(source, origin, shared) for origin in (node.scope, *node.origins))
    return {top for top in tops if top is not None}


def _branch_top(source: Source, call: CallId, shared: Collection[CallId]) -> CallId | None:
    """Return the outermost call above a call that is not among the shared ones; None if it is one of these itself."""
    branch = [above for above in source.hierarchy.tree.ancestors(call) if above not in shared]
    return branch[-1] if branch else None


def _outer_readers(source: Source, tensor: int, inside: Collection[int]) -> Iterator[int | None]:
    """Yield the nodes outside that read a tensor; None for whoever runs the model or the function."""
    yield from (reader for reader in source.readers[tensor] if reader not in inside)
    for graph in source.returned_by.get(tensor, ()):
        owner = source.view.graphs[graph].owner
        if owner is None or owner not in inside:
            yield owner


def _makes_itself(source: Source, reader: int, tensor: int, call: CallId) -> bool:
    """Say whether a reader's own branch of the call tree made the tensor too, before the two copies became one.

    So too where the reader is in a call above: that call has itself among the origins.
    """
    producer = source.view.producers[tensor]
    assert producer is not None  # only tensors of the region are asked for
    origins = source.attributions[producer].origins
    if len(origins) < 2:
        return False
    scope = source.attributions[reader].scope
    shared = set(source.hierarchy.tree.ancestors(call))
    top = _branch_top(source, scope, shared)
    if top is None:
        return scope in origins
    return any(top in source.hierarchy.tree.ancestors(origin) for origin in origins)
