"""The nodes of a part: those of the call and the calls below it, and those that it shares with others through origins.

Shared nodes come along whole. Left out is what only makes the tensors that the call received::

    scope   ""        a         a, b      b
    node    Cast  →   Mul   →   Add   →   Relu        a: Mul, Add    b: Add, Relu
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hieronnx.errors import HieronnxError
from hieronnx.graph.operators import SIZE_OPS
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.source import Source


def find_region(source: Source, call: CallId, received: Iterable[int]) -> list[int]:
    """Find the nodes of a call, in the order of the file; none where it has literal constants alone.

    Args:
        source: The whole model.
        call: The call.
        received: The tensors that it received.

    Raises:
        HieronnxError: If they lie in graphs that cannot be one.
    """
    calls = set(source.hierarchy.tree.below(call))
    nodes = {index for item in calls for index in source.nodes_of.get(item, ())}
    if all(source.view.nodes[index].op == "Constant" for index in nodes):
        return []  # a literal is no work
    top = _find_top(source, nodes, call)
    top |= _find_between(source, top, calls, call)
    if source.hierarchy.call_by_id[call].parent is None:
        return sorted(top)
    return _leave_received(source, _leave_sizes(source, sorted(top)), calls, received)


def _find_top(source: Source, nodes: set[int], call: CallId) -> set[int]:
    """Return the nodes that stand for themselves, not inside a body or function that comes with another of them.

    Where they lie in bodies beside one another, the nodes that have those bodies join them.
    """
    view = source.view
    while True:
        inside = set(source.bodies_below(nodes))
        top = {index for index in nodes if view.nodes[index].graph not in inside}
        graphs = {view.nodes[index].graph for index in top}
        deepest = max(graphs, key=lambda graph: len(_graphs_above(view, graph)))
        apart = graphs - set(_graphs_above(view, deepest))
        if not apart:
            return top
        owners = {view.graphs[graph].owner for graph in (*apart, deepest)}
        if None in owners:
            raise HieronnxError(f"call '{call}' lies in several functions of the file and cannot be taken out as one")
        nodes = nodes.union(owner for owner in owners if owner is not None)


def _graphs_above(view: View, graph: int) -> list[int]:
    """Return a graph and those that it lies in."""
    graphs = [graph]
    while (owner := view.graphs[graphs[-1]].owner) is not None:
        graphs.append(view.nodes[owner].graph)
    return graphs


def find_graphs(view: View, region: Iterable[int], call: CallId) -> frozenset[int]:
    """Return the graphs that a region lies in: the main graph, or bodies inside one another.

    Raises:
        HieronnxError: If one is a function: its tensors have no types, and its nodes may take attributes from callers.
    """
    inner = {view.nodes[index].graph for index in region}
    graphs = frozenset(above for graph in inner for above in _graphs_above(view, graph))
    for graph in sorted(graphs):
        if graph and view.graphs[graph].owner is None:
            raise HieronnxError(
                f"call '{call}' lies inside the function '{view.graphs[graph].key}' of the file and cannot be taken "
                "out of it; extract the call that uses the function, or inline the functions first (onnx.inliner)"
            )
    return graphs


def _find_between(source: Source, top: set[int], calls: Collection[CallId], call: CallId) -> set[int]:
    """Return the nodes of calls above on a way from the call's own nodes back into its part: they ran while it did.

    A node that is only shared is no beginning of such a way: it ran in another call, maybe long before.
    """
    view, above = source.view, set(source.hierarchy.tree.ancestors(call))
    own = {index for index in top if source.attributions[index].scope in calls}
    if not own:
        return set()
    first, before = min(own), set[int]()
    pending = list(top)
    while pending:
        for tensor in view.nodes[pending.pop()].reads:
            producer = view.producers[tensor]
            if producer is None or producer < first or producer in before or producer in top:
                continue
            if source.attributions[producer].scope in above:
                before.add(producer)
                pending.append(producer)
    between: set[int] = set()
    for index in sorted(before):
        producers = {view.producers[tensor] for tensor in view.nodes[index].reads}
        if not (producers.isdisjoint(own) and producers.isdisjoint(between)):
            between.add(index)
    return between


def _leave_sizes(source: Source, region: list[int]) -> list[int]:
    """Leave out the sizes that the exporter takes for all who need them, where they are of tensors not read here.

    Nobody said that such a node belongs here: it was given to those who read it.
    """
    nodes = source.view.nodes
    guessed = {i for i in region if nodes[i].op in SIZE_OPS and source.attributions[i].confidence == "low"}
    here = {t for index in region if index not in guessed for t in (*nodes[index].reads, *nodes[index].outputs)}
    return [index for index in region if index not in guessed or here.issuperset(nodes[index].reads)] or region


def _leave_received(source: Source, region: list[int], calls: Collection[CallId], received: Iterable[int]) -> list[int]:
    """Leave out the nodes of others that only make what the call received: the part begins after them."""
    nodes, producers = source.view.nodes, source.view.producers
    own = {index for index in region if source.attributions[index].scope in calls}
    given = {t for t in received if producers[t] not in own}
    makers = {producers[t] for t in given}
    if makers.isdisjoint(region):
        return region
    members, read = set(region), {t for index in region for t in nodes[index].reads}
    last = (i for i in region if i not in makers and read.isdisjoint(nodes[i].outputs))
    needed, pending = set[int](), [*own, *last]
    while pending:
        index = pending.pop()
        if index not in needed:
            needed.add(index)
            before = (producers[t] for t in nodes[index].reads if t not in given)
            pending += (producer for producer in before if producer is not None and producer in members)
    return [index for index in region if index in needed] or region
