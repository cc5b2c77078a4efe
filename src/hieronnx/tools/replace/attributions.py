"""Whose the nodes and weights of a model with parts in it are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace as change

import onnx

from hieronnx.graph.walks import body_key, first_name, function_key, proto_bodies, walk_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId, Initializer, Node
from hieronnx.tools.replace.hierarchy import GraftedCalls, graft_calls, rebind
from hieronnx.tools.replace.work import Change, Work


def describe(work: Work, structure: onnx.ModelProto) -> Hierarchy:
    """Return the hierarchy of the new model, of which the structure is given."""
    whole, part = work.source.hierarchy, work.part.hierarchy
    grafted = graft_calls(whole, [old.call for old in work.replaced], part)
    alive = [work.source.attributions[index] for index in _alive_everywhere(work)]
    nodes = [_move(node, grafted.old_ids) for node in alive]
    for number, item in enumerate(work.changes):
        ids, call = grafted.part_ids[number], grafted.old_ids[item.old.call]
        nodes += _describe_nodes(work, item, ids, call, first=number == 0)
    roots: list[tuple[str, onnx.GraphProto | onnx.FunctionProto]] = [("", structure.graph)]
    roots += ((function_key(f.domain, f.name, f.overload), f) for f in structure.functions)
    order = {key: place for place, key in enumerate(k for root in roots for k in _list_keys(*root))}
    return Hierarchy(
        modules=grafted.modules,
        calls=tuple(_describe_calls(work, grafted)),
        nodes=tuple(sorted(nodes, key=lambda node: order[node.key])),
        initializers=tuple(_describe_initializers(work, grafted)),
        policy=whole.policy,
        strategy=whole.strategy,
    )


def _alive_everywhere(work: Work) -> list[int]:
    """Return the nodes that stay, those in bodies and functions too."""
    view = work.source.view
    inner = {graph for index in work.alive for graph in work.source.bodies_below([index])}
    inner |= set(work.source.functions.values())
    return [*sorted(work.alive), *(index for graph in sorted(inner) for index in view.nodes_in[graph])]


def _describe_nodes(
    work: Work, item: Change, ids: Mapping[CallId, CallId], call: CallId, *, first: bool
) -> Iterator[Node]:
    """Yield the nodes of a part in the model: by its own hierarchy, else as the call's."""
    hierarchy = work.part.hierarchy
    known = {} if hierarchy is None else hierarchy.node_by_key
    pairs = ((None if at is None else work.nodes[at], node) for at, node in item.grafted.nodes)
    keys = ((old, key) for before, after in pairs for old, key in _pair_keys(before, after))
    for (graph, output), (key, node) in keys:
        old = known.get((graph, output))
        if old is None or not ids:
            origin = (call,)
            yield Node(key, node.name, node.op_type, node.domain, first_name(node.output), call, origin, "carried")
        else:
            moved = _move(old, ids)
            yield change(moved, graph=key, name=node.name, output=first_name(node.output))
    if first:
        inner = {function_key(*key) for key in work.part.model.functions if key not in work.source.functions}
        own = () if hierarchy is None else hierarchy.nodes
        yield from (_move(n, ids) for n in own if any(n.graph == k or n.graph.startswith(f"{k}/") for k in inner))


def _describe_calls(work: Work, grafted: GraftedCalls) -> Iterator[Call]:
    """Yield the calls with what they received and returned, as far as it is there."""
    view = work.source.view
    known = {view.names[t] for index in work.alive for t in (*view.nodes[index].makes, *view.nodes[index].reads)}
    known |= {view.names[t] for t in (*view.graphs[0].inputs, *view.graphs[0].outputs)}
    known |= {n for item in work.changes for _, node in item.grafted.nodes for n in (*node.output, *node.input)}
    before = {new: work.source.hierarchy.call_by_id[old] for old, new in grafted.old_ids.items()}
    inside: dict[CallId, tuple[Call, Mapping[str, str]]] = {}
    for item, ids in zip(work.changes, grafted.part_ids, strict=True):
        for call in () if work.part.hierarchy is None else work.part.hierarchy.calls:
            if call.parent is not None and call.id in ids:
                inside[ids[call.id]] = call, item.grafted.tensors
    for call in grafted.calls:
        bound, names = inside.get(call.id) or (before[call.id], {})
        yield rebind(change(call, received=bound.received, returned=bound.returned), names, known)


def _describe_initializers(work: Work, grafted: GraftedCalls) -> Iterator[Initializer]:
    gone = set(work.removed_weights())
    for item in work.source.hierarchy.initializers:
        if item.name not in gone:
            origins = tuple(grafted.old_ids[o] for o in item.origins if o in grafted.old_ids)
            yield Initializer(item.name, item.parameter, origins)
    added = {weight.header.name for weight in work.new_weights}
    parameters = {} if work.part.hierarchy is None else {i.name: i for i in work.part.hierarchy.initializers}
    if not work.source.hierarchy.initializers and not parameters:
        return
    for item_, ids in zip(work.changes, grafted.part_ids, strict=True):
        for name, new in item_.weights.items():
            if new in added:
                added.discard(new)
                old = parameters.get(name, Initializer(name, None, ()))
                path = f"{item_.old.call.module}.{old.parameter}".strip(".") if old.parameter else None
                yield Initializer(new, path, tuple(ids[o] for o in old.origins if o in ids))


def _move(node: Node, ids: Mapping[CallId, CallId]) -> Node:
    """Return a node under the new names of its calls; origins that are gone are left out."""
    origins = tuple(ids[origin] for origin in node.origins if origin in ids)
    scope = ids.get(node.scope) or (origins[0] if origins else ids[min(ids, key=lambda call: call != ("", 0))])
    return change(node, scope=scope, origins=origins or (scope,), consumers=None)


def _pair_keys(
    before: onnx.NodeProto | None, after: onnx.NodeProto
) -> Iterator[tuple[tuple[str, str], tuple[str, onnx.NodeProto]]]:
    """Yield a node and those in its bodies, by what identified them in the part, with their new keys."""
    old = walk_bodies(onnx.GraphProto(node=[after if before is None else before]))
    new = walk_bodies(onnx.GraphProto(node=[after]))
    for (old_key, old_graph), (new_key, new_graph) in zip(old, new, strict=True):
        for a, b in zip(old_graph.node, new_graph.node, strict=True):
            yield (old_key, first_name(a.output)), (new_key, b)


def _list_keys(key: str, graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, str]]:
    """Yield what identifies the nodes of a graph, each followed by those in its bodies."""
    for node in graph.node:
        output = first_name(node.output)
        yield key, output
        for label, body in proto_bodies(node):
            yield from _list_keys(body_key(key, output, label), body)
