"""The checks of a hierarchy against its graph: scopes and dataflow that it allows, parameters, coverage."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import TypeAlias

from hieronnx.errors import list_some
from hieronnx.files.claims import Finding, call_place, node_place
from hieronnx.files.document import summarize
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.categories import CATEGORIES
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
from hieronnx.hierarchy.records import CallId, Node

_Step: TypeAlias = "CallId | int"
"""A call, or a node of the parent call itself."""
_Flow: TypeAlias = dict[_Step, dict[_Step, tuple[int, int]]]
"""From step to step, with two nodes between which data flows."""
_SHOWN = 4
_MISPLACED = "look at the nodes named: one of them is in the wrong call; export the model again, or report it"
_COVER = "export the model again with 'hieronnx export', or lower the threshold with --threshold"
_REPORT = "export the model again; if it stays, the attribution is wrong: please report it"
_BORROWED = "nothing, if the module is given that parameter as an argument; otherwise the node is in the wrong call"
_RENAMED = "export the model again; a tool that renamed the tensor should have carried the hierarchy along"


def check_enclosing(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> Iterator[Finding]:
    """Check that each node of a body or function runs within the call that its graph runs in.

    Not those that stand for several calls, or of which nothing is known.
    """
    enclosing = _enclosing_scopes(hierarchy, view, nodes)
    for index, node in enumerate(nodes):
        outer = enclosing.get(view.nodes[index].graph)
        if node is None or outer is None or node.evidence == "root" or len(node.origins) > 1:
            continue
        if hierarchy.tree.lowest_above((node.scope, outer)) != outer:
            message = f"its scope '{node.scope}' is not within '{outer}', the call that its graph runs in"
            yield Finding("enclosing-scope", "warning", node_place(*node.key, node.name), message, _REPORT)


def _enclosing_scopes(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> dict[int, CallId]:
    """Return the call that each graph runs in: of a body its node's, of a function the lowest above all its uses."""
    functions = {graph.key: number for number, graph in enumerate(view.graphs) if graph.key and graph.owner is None}
    sites: dict[int, list[CallId | None]] = defaultdict(list)
    for index, node in enumerate(nodes):
        scope = node.scope if node is not None and node.evidence != "root" else None
        for graph in view.nodes[index].bodies:
            sites[graph].append(scope)
        if (called := functions.get(view.nodes[index].op)) is not None:
            sites[called].append(scope)
    return {
        graph: hierarchy.tree.lowest_above(scope for scope in scopes if scope is not None)
        for graph, scopes in sites.items()
        if None not in scopes
    }


def check_coverage(hierarchy: Hierarchy, limits: Mapping[str, float]) -> Iterator[Finding]:
    """Check that of each category of operators enough nodes are attributed."""
    statistics = summarize(hierarchy).category_statistics
    for name, counts in statistics.items():
        total, attributed, threshold = counts.total, counts.attributed, limits[name]
        if 100 * attributed < threshold * total:
            share = 100 * attributed / total
            message = f"{attributed:,} of {total:,} nodes attributed ({share:.1f} %), under {threshold:g} %"
            severity = "error" if CATEGORIES[name].critical else "warning"
            yield Finding("coverage", severity, f"category '{name}'", message, _COVER)


def check_parameters(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> Iterator[Finding]:
    """Check who reads each initializer that is a parameter as it was: its module, one above that, or one that it calls.

    One that work was folded into is a tensor like any other: what that work may read was settled where it ran.
    """
    unfolded = {item.name: item.parameter for item in hierarchy.initializers if item.parameter and not item.origins}
    parameters = {tensor: unfolded[view.names[tensor]] for tensor in view.constants if view.names[tensor] in unfolded}
    may_use = _make_usage(hierarchy)
    for index, node in enumerate(nodes):
        if node is None or node.evidence == "root":
            continue
        for parameter in dict.fromkeys(parameters[t] for t in view.nodes[index].inputs if t in parameters):
            owner = parameter.rpartition(".")[0]
            if not any(may_use(call, owner) for call in (node.scope, *node.origins)):
                message = f"it runs in '{node.scope}' and reads parameter '{parameter}', which is another module's"
                yield Finding("parameters", "warning", node_place(*node.key, node.name), message, _BORROWED)


def _make_usage(hierarchy: Hierarchy) -> Callable[[CallId, str], bool]:
    """Return what says whether a call may read a parameter of a module; it keeps its answers: layers ask again."""
    # Modules with a parameter that is not in the file under its own name, and all modules above them: it may be tied to
    # another, or have been merged with an equal one; then they read that other one's.
    present = {item.parameter for item in hierarchy.initializers}
    borrowers: set[str] = set()
    for path, module in hierarchy.modules.items():
        if any((f"{path}.{name}" if path else name) not in present for name in module.direct_parameters):
            borrowers.update(_with_all_above(path))

    @cache
    def may_use(call: CallId, owner: str) -> bool:
        if call.module in borrowers or call.module in _with_all_above(owner):
            return True
        # The modules in whose calls this one runs may pass in what they own.
        return any(outer.module == owner for outer in hierarchy.tree.ancestors(call))

    return may_use


def _with_all_above(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


def check_passed(hierarchy: Hierarchy, view: View) -> Iterator[Finding]:
    """Check that every tensor that a call received or returned is one of the file."""
    for call in hierarchy.calls:
        for what, passed in (("received", call.received), ("returned", call.returned)):
            for item in passed or ():
                if item.tensor is not None and view.find_tensor(item.graph, item.tensor) is None:
                    message = f"it {what} '{item.tensor}', which is no tensor of the file"
                    yield Finding("passed-tensors", "error", call_place(call.id), message, _RENAMED)


def check_layers(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> Iterator[Finding]:
    """Check the dataflow between the calls below each call: none may need what it has itself made possible.

    A call is an interval of execution time. Seen from its parent, each call is one step, and so is each node of the
    parent's own; data flows from step to step. Where it flows in a circle, a call would run both before and after
    another, or would have to be left and entered again, which no execution does: some node is in the wrong call.
    Nodes that stand for several calls are left out, and so are those of which nothing is known.
    """
    certain = [node if node and len(node.origins) == 1 and node.evidence != "root" else None for node in nodes]
    flows = _find_flows(hierarchy, view, certain)
    for call in hierarchy.calls:
        flow = flows.get(call.id, {})
        for circle in _find_circles(flow):
            if any(isinstance(step, CallId) for step in circle):
                message = _describe_circle(circle, flow, certain)
                yield Finding("layers", "warning", call_place(call.id), message, _MISPLACED)


def _find_flows(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> dict[CallId, _Flow]:
    """Give each edge of the dataflow to the lowest call above both its ends."""
    flows: dict[CallId, _Flow] = {}
    edges = list(_walk_edges(view))
    for source, target in edges:
        a, b = nodes[source], nodes[target]
        if a is None or b is None or a.scope == b.scope:
            continue
        lowest = hierarchy.tree.lowest_above((a.scope, b.scope))
        before = _find_step(hierarchy.tree, lowest, a.scope, source)
        after = _find_step(hierarchy.tree, lowest, b.scope, target)
        flows.setdefault(lowest, {}).setdefault(before, {}).setdefault(after, (source, target))
    for source, target in edges:  # what flows within a call's own nodes matters only where it is left
        a, b = nodes[source], nodes[target]
        if a is not None and b is not None and a.scope == b.scope and a.scope in flows:
            flows[a.scope].setdefault(source, {}).setdefault(target, (source, target))
    return flows


def _find_step(tree: CallTree, above: CallId, scope: CallId, node: int) -> _Step:
    """Return the step right below a call that a node of this scope lies in."""
    calls = list(takewhile(above.__ne__, tree.ancestors(scope)))
    return calls[-1] if calls else node


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


def _describe_circle(circle: list[_Step], flow: _Flow, nodes: Sequence[Node | None]) -> str:
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
