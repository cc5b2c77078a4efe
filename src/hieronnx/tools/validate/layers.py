"""Layer consistency: no call may need what it has itself made possible.

A call is an interval of execution time. Seen from its parent, each call is one step, and so is each node of the
parent's own; data flows from step to step. Where it flows in a circle, a call would run both before and after
another, or would have to be left and entered again, which no execution does: some node is in the wrong call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from hieronnx.errors import list_some
from hieronnx.files.claims import Finding, call_place
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Node

_Step: TypeAlias = "CallId | int"
"""A call, or a node of the parent call itself."""
_Flow: TypeAlias = dict[_Step, dict[_Step, tuple[int, int]]]
"""From step to step, with two nodes between which data flows."""

_REMEDY = "look at the nodes named: one of them is in the wrong call; export the model again, or report it"
_SHOWN = 4


def check_layers(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> Iterator[Finding]:
    """Check the dataflow between the calls below each call.

    Nodes that stand for several calls are left out, and so are those of which nothing is known.
    """
    certain = [node if node and len(node.origins) == 1 and node.evidence != "root" else None for node in nodes]
    flows = _find_flows(hierarchy, view, certain)
    for call in hierarchy.calls:
        flow = flows.get(call.id, {})
        for circle in _find_circles(flow):
            if any(isinstance(step, CallId) for step in circle):
                yield Finding("layers", "warning", call_place(call.id), _describe(circle, flow, certain), _REMEDY)


# -- dataflow between calls -------------------------------------------------------------------------------


def _find_flows(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> dict[CallId, _Flow]:
    """Give each edge of the dataflow to the lowest call above both its ends."""
    flows: dict[CallId, _Flow] = {}
    for source, target in _walk_edges(view):
        a, b = nodes[source], nodes[target]
        if a is None or b is None or a.scope == b.scope:
            continue
        lowest, before, after = _steps(a.scope, b.scope, source, target, hierarchy)
        flow = flows.setdefault(lowest, {})
        flow.setdefault(before, {}).setdefault(after, (source, target))
    for source, target in _walk_edges(view):  # what flows within a call's own nodes matters only where it is left
        a, b = nodes[source], nodes[target]
        if a is not None and b is not None and a.scope == b.scope and a.scope in flows:
            flows[a.scope].setdefault(source, {}).setdefault(target, (source, target))
    return flows


def _walk_edges(view: View) -> Iterator[tuple[int, int]]:
    """Yield the pairs of nodes of which the second needs what the first makes."""
    # The inputs of bodies are what their node passes in at the same position.
    passed_in = {
        inner: outer
        for node in view.nodes
        for body in node.bodies
        for inner, outer in zip(view.graphs[body].inputs, node.inputs, strict=False)
    }
    for index, node in enumerate(view.nodes):
        needed = [*node.inputs, *(tensor for body in node.bodies for tensor in view.graphs[body].outputs)]
        for tensor in needed:
            while tensor in passed_in:
                tensor = passed_in[tensor]
            producer = view.producers[tensor] if tensor != NO_TENSOR else None
            if producer is not None:
                yield producer, index


def _steps(a: CallId, b: CallId, source: int, target: int, hierarchy: Hierarchy) -> tuple[CallId, _Step, _Step]:
    """Return the lowest call above two, and the steps of it that they lie in."""
    before: _Step = source
    after: _Step = target
    depth, calls = hierarchy.tree.depth, hierarchy.call_by_id
    while a != b:  # two calls of one tree meet at the root at the latest
        if depth(a) >= depth(b):
            before, a = a, calls[a].parent or ROOT
        else:
            after, b = b, calls[b].parent or ROOT
    return a, before, after


# -- circles ----------------------------------------------------------------------------------------------


def _find_circles(flow: _Flow) -> list[list[_Step]]:
    """Find the sets of steps that can be reached from each other (Kosaraju's way, without recursion)."""
    backward: dict[_Step, list[_Step]] = defaultdict(list)
    for before, afters in flow.items():
        for after in afters:
            backward[after].append(before)
    circles, seen = [], set[_Step]()
    for start in reversed(_finish_order(flow)):
        if start not in seen:
            circle = _gather(start, backward, seen)
            if len(circle) > 1:
                circles.append(circle)
    return circles


def _finish_order(flow: _Flow) -> list[_Step]:
    """Return the steps in the order in which a search from depth to depth is done with them."""
    order: list[_Step] = []
    seen: set[_Step] = set()
    for root in flow:
        path = [] if root in seen else [(root, iter(flow[root]))]
        seen.add(root)
        while path:
            after = next((step for step in path[-1][1] if step not in seen), None)
            if after is None:
                order.append(path.pop()[0])
            else:
                seen.add(after)
                path.append((after, iter(flow.get(after, {}))))
    return order


def _gather(start: _Step, backward: Mapping[_Step, list[_Step]], seen: set[_Step]) -> list[_Step]:
    seen.add(start)
    gathered = [start]
    for step in gathered:
        for before in backward.get(step, ()):
            if before not in seen:
                seen.add(before)
                gathered.append(before)
    return gathered


def _describe(circle: list[_Step], flow: _Flow, nodes: Sequence[Node | None]) -> str:
    """Describe a circle by its calls and by a shortest way around."""
    calls = sorted(step for step in circle if isinstance(step, CallId))
    edges = _shortest_way_round(calls[0], set(circle), flow)
    named = list_some([f"'{call}'" for call in calls], _SHOWN)
    ways = "; ".join(f"{_name(nodes[a])} feeds {_name(nodes[b])}" for a, b in edges[:_SHOWN])
    more = f"; and {len(edges) - _SHOWN} more steps back" if len(edges) > _SHOWN else ""
    return f"data leaves {named} and comes back: {ways}{more}"


def _shortest_way_round(start: CallId, circle: set[_Step], flow: _Flow) -> list[tuple[int, int]]:
    came_from: dict[_Step, _Step] = {}
    waiting: deque[_Step] = deque([start])
    while start not in came_from:
        step = waiting.popleft()
        for after in flow.get(step, {}):
            if after in circle and after not in came_from:
                came_from[after] = step
                waiting.append(after)
    way: list[_Step] = [start]
    while len(way) == 1 or way[-1] != start:
        way.append(came_from[way[-1]])
    return [flow[before][after] for after, before in pairwise(way)][::-1]


def _name(node: Node | None) -> str:
    assert node is not None  # nodes that are left out have no edges
    return f"{node.op_type} '{node.name or node.output}' of '{node.scope}'"
