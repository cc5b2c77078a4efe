"""The check `layers`: whether the calls could have run so that their nodes make and read what they do.

A call is a stretch of time. Calls below one parent run one after the other, in the order in which the hierarchy lists
them; what a call received was there before it began, and what it returned before it ended. So, with no exception:

circle     data that leaves a call does not come back into it: it would have to be left and entered again
order      a later call feeds no earlier one, and makes nothing that an earlier one received or returned
received   no node of a call makes what the call received
literal    a literal, which does nothing by itself, is in a call that has to do with one that reads it; what a tool
           folded into one (`carried`) is work

    x ─ Add [layer.0] ─ h ─ MatMul [layer.1] ─ y       layer.0 returned h, layer.1 received it: Add is not layer.1's

Left out are nodes of which nothing is known, or only a name, which does not tell the calls of a module apart. A node
that stands for several calls, or follows from its neighbours or a parameter, ran somewhere in the lowest call above.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from hieronnx.errors import list_some
from hieronnx.files.claims import Finding, call_place, node_place
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node

_Step: TypeAlias = "CallId | int"
"""A call, or a node of the parent call itself."""


class Placed(NamedTuple):
    """A node, the call that it ran in or below, and whether it is known to have run in that call itself."""

    node: Node
    call: CallId
    exact: bool

    def __str__(self) -> str:
        return f"{self.node.op_type} '{self.node.name or self.node.output}' of '{self.node.scope}'"


class _Use(NamedTuple):
    """A node, and who needs what it makes: another node, or a call that received or returned it."""

    maker: int
    by: int | CallId
    how: str = "feeds"


_Flow: TypeAlias = dict[_Step, dict[_Step, _Use]]
"""From step to step, with one use between them."""
_EXACT = frozenset({"captured", "carried", "value", "near"})
"""Evidence of the very call that a node ran in."""
_UNKNOWN = frozenset({"name", "root"})
_NO_LITERAL = frozenset({"carried", "root"})
_SEEN_RUNNING = frozenset({"captured", "value", "near"})
"""Evidence of a run: without one the order of calls is that of the file, which is only one of many."""
_SHOWN = 4
_MISPLACED = "look at the nodes named: one of them is in the wrong call; export the model again, or report it"


def check_layers(hierarchy: Hierarchy, view: View) -> Iterator[Finding]:
    """Check that no node is in a call that could not have run it; in a time that grows with the graph alone."""
    yield from _check_literals(hierarchy, view)
    nodes = place_nodes(hierarchy, view)
    passed = list(_walk_passed(hierarchy, view))
    yield from _check_received(hierarchy, passed, nodes)
    flows = _find_flows(hierarchy, [*_walk_edges(view), *passed], nodes)
    order = _find_order(hierarchy)
    for call in hierarchy.calls:
        flow = flows.get(call.id, {})
        problems = [f"{_describe_use(use, nodes)}, and runs later" for use in _find_disorder(flow, order)]
        if not problems:  # a circle of calls has an edge against their order, if that is known
            circles = (circle for circle in _find_circles(flow) if any(isinstance(step, CallId) for step in circle))
            problems = [_describe_circle(circle, flow, nodes) for circle in circles]
        for message in problems:
            yield Finding("layers", "error", call_place(call.id), message, _MISPLACED)


def place_nodes(hierarchy: Hierarchy, view: View) -> list[Placed | None]:
    """Return where each node ran; None for literals, which do not run, and for those of which nothing is known."""
    placed: list[Placed | None] = []
    for index, key in enumerate(view.node_keys):
        node = hierarchy.node_by_key.get(key)
        if node is None or node.evidence in _UNKNOWN or index in view.literals:
            placed.append(None)
        elif len(node.origins) == 1:
            placed.append(Placed(node, node.scope, node.evidence in _EXACT))
        else:
            placed.append(Placed(node, hierarchy.tree.lowest_above((node.scope, *node.origins)), False))
    return placed


def _check_literals(hierarchy: Hierarchy, view: View) -> Iterator[Finding]:
    """Check that a literal is in a call that has to do with one that reads it."""
    nodes = [hierarchy.node_by_key.get(key) for key in view.node_keys]
    returned = {tensor for graph in view.graphs for tensor in graph.outputs}
    fork = cache(hierarchy.tree.fork)
    for index in sorted(view.literals):
        node, outputs = nodes[index], view.nodes[index].makes
        if node is None or node.evidence in _NO_LITERAL or not returned.isdisjoint(outputs):
            continue
        readers = [nodes[reader] for tensor in outputs for reader in view.consumers[tensor]]
        known = [reader for reader in readers if reader is not None and reader.evidence != "root"]
        calls = dict.fromkeys(call for reader in known for call in (reader.scope, *reader.origins))
        if calls and all(None not in fork(node.scope, call) for call in calls):
            names = list_some([f"'{call}'" for call in calls], _SHOWN)
            message = f"it is a literal in '{node.scope}', which has nothing to do with {names}, where it is read"
            yield Finding("layers", "error", node_place(*node.key, node.name), message, _MISPLACED)


def _check_received(hierarchy: Hierarchy, passed: Sequence[_Use], nodes: Sequence[Placed | None]) -> Iterator[Finding]:
    """Check that no node of a call makes what the call received."""
    for use in passed:
        node = nodes[use.maker] if use.how == "received" else None
        if node is not None and isinstance(use.by, CallId) and use.by in hierarchy.tree.ancestors(node.call):
            message = f"{_describe_use(use, nodes)}: that was there before the call"
            yield Finding("layers", "error", call_place(use.by), message, _MISPLACED)


# -- dataflow between the calls below each call -----------------------------------------------------------


def _walk_edges(view: View) -> Iterator[_Use]:
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
                yield _Use(producer, index)


def _walk_passed(hierarchy: Hierarchy, view: View) -> Iterator[_Use]:
    """Yield the nodes that make what calls received and returned, with the call.

    Not what is made of sizes and literals alone: a part of a model makes it anew, for whoever needs it.
    """
    for call in hierarchy.calls:
        for how, passed in (("received", call.received), ("returned", call.returned)):
            for item in passed or ():
                tensor = view.find_tensor(item.graph, item.tensor)
                producer = None if tensor is None or view.flow.constant[tensor] else view.producers[tensor]
                if producer is not None:
                    yield _Use(producer, call.id, how)


def _find_flows(hierarchy: Hierarchy, uses: Sequence[_Use], nodes: Sequence[Placed | None]) -> dict[CallId, _Flow]:
    """Give each edge of the dataflow to the lowest call above both its ends."""
    fork = cache(hierarchy.tree.fork)
    flows: dict[CallId, _Flow] = {}
    inside: list[tuple[CallId, _Use]] = []
    for use in uses:
        node, target = nodes[use.maker], None if isinstance(use.by, CallId) else nodes[use.by]
        reader = use.by if isinstance(use.by, CallId) else None if target is None else target.call
        if node is None or reader is None:
            continue
        lowest, before, after = fork(node.call, reader)
        # A call's own node is a step of its own; where it may be below the call, it is not known which.
        if (before is None and not node.exact) or (after is None and target is not None and not target.exact):
            continue
        if before is None and after is None:
            inside.append((lowest, use))
        elif target is not None or after is not None:  # what a call returns may be made in it
            steps = use.maker if before is None else before, use.by if after is None else after
            flows.setdefault(lowest, {}).setdefault(steps[0], {}).setdefault(steps[1], use)
    for call, use in inside:  # what flows within a call's own nodes matters only where it is left
        if call in flows and not isinstance(use.by, CallId):
            flows[call].setdefault(use.maker, {}).setdefault(use.by, use)
    return flows


def _find_order(hierarchy: Hierarchy) -> Mapping[CallId, int]:
    """Return the place of each call in the order of execution; nothing where no run was seen."""
    recorded = any(call.received is not None for call in hierarchy.calls[1:])
    if not recorded and not any(node.evidence in _SEEN_RUNNING for node in hierarchy.nodes):
        return {}
    return {call.id: place for place, call in enumerate(hierarchy.calls)}


def _find_disorder(flow: _Flow, order: Mapping[CallId, int]) -> Iterator[_Use]:
    """Find what a later call makes and an earlier one needs."""
    for before, afters in flow.items():
        for after, use in afters.items():
            if isinstance(before, CallId) and isinstance(after, CallId) and order.get(before, 0) > order.get(after, 0):
                yield use


def _find_circles(flow: _Flow) -> list[list[_Step]]:
    """Find the sets of steps that can be reached from each other (Kosaraju's way, without recursion)."""
    backward: dict[_Step, list[_Step]] = defaultdict(list)
    for before, afters in flow.items():
        for after in afters:
            backward[after].append(before)
    circles, seen = [], set[_Step]()
    for start in reversed(_finish_order(flow)):
        circle = [] if start in seen else [start]
        seen.add(start)
        for step in circle:
            circle += (new := dict.fromkeys(before for before in backward[step] if before not in seen))
            seen.update(new)
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


def _describe_circle(circle: list[_Step], flow: _Flow, nodes: Sequence[Placed | None]) -> str:
    """Describe a circle by its calls and by a shortest way around."""
    calls = sorted(step for step in circle if isinstance(step, CallId))
    edges = _shortest_way_round(calls[0], set(circle), flow)
    named = list_some([f"'{call}'" for call in calls], _SHOWN)
    ways = "; ".join(_describe_use(use, nodes) for use in edges[:_SHOWN])
    more = f"; and {len(edges) - _SHOWN} more steps back" if len(edges) > _SHOWN else ""
    return f"data leaves {named} and comes back: {ways}{more}"


def _shortest_way_round(start: CallId, circle: set[_Step], flow: _Flow) -> list[_Use]:
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


def _describe_use(use: _Use, nodes: Sequence[Placed | None]) -> str:
    if isinstance(use.by, CallId):
        return f"{nodes[use.maker]} makes what '{use.by}' {use.how}"
    return f"{nodes[use.maker]} feeds {nodes[use.by]}"
