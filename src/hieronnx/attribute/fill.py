"""The rules for nodes that the exporter left without a scope, each named and with its own evidence.

between     what it reads was made by one call, what it makes is read by another: it ran between the two, so
            inside the lowest call above both. That may be coarse, but is never a sibling's.
parameter   it is a parameter under its own name, for the module that owns it: exporters write weights that are
            equal only once, and the others as copies
consumers   it reads constants and shapes alone and serves those who read it: the lowest call above them all
root        nothing is known; an honest fallback that never counts as covered

A graph's output is read by whoever returns it: the root, or the node that has the body. A body's inputs are
made by the node that has the body. No node of a body belongs to a call above that node's: the body ran in that call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId, Node


def fill_gaps(
    view: View, scopes: Sequence[Attribution | None], tree: CallTree, parameters: Collection[str] = ()
) -> list[Attribution]:
    """Return the attributions with every gap filled by the first rule that applies.

    Args:
        view: The graph.
        scopes: What is known; None for a gap.
        tree: The calls.
        parameters: The names of the model's parameters.
    """
    if None not in scopes:
        return [found for found in scopes if found is not None]
    owners = [graph.owner for graph in view.graphs]
    around = [_scope_around(view, node.graph, owners, scopes) for node in view.nodes]
    after = _look(view, scopes, tree, _readers(view, owners), around, backwards=True)
    before = _look(view, scopes, tree, _feeders(view), around, backwards=False)
    return [
        found or _fill(tree, before[index], after[index], around[index], _owner(view, index, parameters))
        for index, found in enumerate(scopes)
    ]


def make_nodes(view: View, attributions: Sequence[Attribution]) -> tuple[Node, ...]:
    """Make the nodes of a hierarchy, in the order of the file."""
    return tuple(_make_node(view, index, attributions[index]) for index in view.file_order)


def _make_node(view: View, index: int, attribution: Attribution) -> Node:
    node = view.nodes[index]
    graph, output = view.node_key(index)
    domain, _, op_type = node.op.rpartition("::")
    return Node(
        graph=graph,
        name=node.name,
        op_type=op_type,
        domain=domain,
        output=output,
        scope=attribution.scope,
        origins=attribution.origins,
        evidence=attribution.evidence,
        rule=attribution.rule,
    )


def _fill(
    tree: CallTree, before: CallId | None, after: CallId | None, around: CallId, owner: str | None
) -> Attribution:
    if after is None:
        return Attribution(ROOT, (ROOT,), "root", "root")
    if before is None and after.module == owner:
        return Attribution(after, (after,), "parameter", "parameter")
    if before is None:
        return Attribution(after, (after,), "dataflow", "consumers")
    scope = tree.lowest_above((before, after))
    if tree.lowest_above((scope, around)) == scope:  # the body's node is in a call at or below it
        scope = around
    if scope == ROOT:  # that it ran somewhere in the model is no news
        return Attribution(ROOT, (ROOT,), "root", "root")
    return Attribution(scope, (scope,), "dataflow", "between")


def _owner(view: View, index: int, parameters: Collection[str]) -> str | None:
    """Return the module whose parameter a node's output is, by name."""
    _, output = view.node_key(index)
    return output.rpartition(".")[0] if output in parameters else None


def _look(
    view: View,
    scopes: Sequence[Attribution | None],
    tree: CallTree,
    neighbours: Sequence[Sequence[int | None]],
    around: Sequence[CallId],
    *,
    backwards: bool,
) -> list[CallId | None]:
    """For each node without a scope, the lowest call above its neighbours; through those that have none either."""
    found: list[CallId | None] = [None if scope is None else scope.scope for scope in scopes]
    seen: list[CallId | None] = [None] * len(found)
    order: Iterable[int] = range(len(view.nodes))
    for index in reversed(list(order)) if backwards else order:
        if scopes[index] is None:
            near = [around[index] if n is None else found[n] or seen[n] for n in neighbours[index]]
            known = [scope for scope in near if scope is not None]
            seen[index] = tree.lowest_above(known) if known else None
    return seen


def _readers(view: View, owners: Sequence[int | None]) -> list[list[int | None]]:
    """For each node those that read it; None stands for what is around its graph."""
    consumers = view.consumers
    returned: dict[int, set[int]] = defaultdict(set)
    for number, graph in enumerate(view.graphs):
        returned[number].update(graph.outputs)
    readers: list[list[int | None]] = []
    for node in view.nodes:
        made = [t for t in node.outputs if t != NO_TENSOR]
        leaves = any(t in returned[node.graph] for t in made)
        readers.append([*(reader for t in made for reader in consumers[t]), *([None] if leaves else [])])
    return readers


def _feeders(view: View) -> list[list[int | None]]:
    """For each node those that feed it; None, for what is around its graph, where it reads an input of a graph."""
    given = {tensor for graph in view.graphs for tensor in graph.inputs} - set(view.constants)
    feeders: list[list[int | None]] = []
    for node in view.nodes:
        read = node.reads_values
        found = [view.producers[tensor] for tensor in read if view.producers[tensor] is not None or tensor in given]
        feeders.append(found)
    return feeders


def _scope_around(view: View, graph: int, owners: Sequence[int | None], scopes: Sequence[Attribution | None]) -> CallId:
    """Return the scope of the nearest node around a graph that has one: whose body the graph is; else the root."""
    owner = owners[graph]
    while owner is not None:
        scope = scopes[owner]
        if scope is not None:
            return scope.scope
        owner = owners[view.nodes[owner].graph]
    return ROOT
