"""A hierarchy against its file: the same nodes, in scopes that their graphs allow, enough of them known."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from hieronnx.graph.view import View
from hieronnx.hierarchy.categories import CATEGORIES, category_of
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.validate.findings import Finding, node_place

_SHOWN = 3
"""So many nodes are named in a message."""
_OTHER_FILE = (
    "give the model its own sidecar: move this one away; then 'hieronnx validate --fix' writes one from the metadata "
    "inside, if any, without parameters"
)
_OTHER_OPERATOR = "write it from the metadata inside the model with 'hieronnx validate --fix', or export the model anew"
_BETTER = "export the model anew with 'hieronnx export', or lower the threshold with --threshold"
_ANEW = "export the model anew; if it stays, the attribution is wrong: please report it"


def check_belongs(nodes: Sequence[Node], view: View) -> list[Finding]:
    """Check that a sidecar speaks of the nodes of this file: all of them, no other, each once."""
    there = Counter(map(view.node_key, range(len(view.nodes))))
    told = Counter((node.graph, node.output) for node in nodes)
    missing, extra = list(there - told), list(told - there)
    if not missing and not extra:
        return []
    names = [f"not in the sidecar: {node_place(*key)}" for key in missing]
    names += [f"not in the model{' as often' * (key in there)}: {node_place(*key)}" for key in extra]
    shown = "; ".join([*names[:_SHOWN], f"and {len(names) - _SHOWN:,} more"] if len(names) > _SHOWN else names)
    message = (
        f"it does not tell of this file: {len(missing):,} of the model's {len(view.nodes):,} nodes are not in it, "
        f"{len(extra):,} of its {len(nodes):,} are not in the model ({shown})"
    )
    return [Finding("sidecar-nodes", "error", "sidecar: $.nodes", message, _OTHER_FILE, tuple(names))]


def check_operators(nodes: Sequence[Node], view: View) -> list[Finding]:
    """Check that the nodes of a sidecar, if they are in the file, are of the operators that they are there."""
    operators = {view.node_key(index): node.op for index, node in enumerate(view.nodes)}
    found = []
    for node in nodes:
        key = node.graph, node.output
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if operators.get(key, operator) != operator:
            place = f"sidecar: {node_place(*key, node.name)}"
            reason = f"it is {operator} there, {operators[key]} in the model"
            found.append(Finding("sidecar-nodes", "error", place, reason, _OTHER_OPERATOR))
    return found


def attributed_nodes(hierarchy: Hierarchy, view: View) -> list[Node | None]:
    """Return what the hierarchy says of each node of a view; None where it says nothing."""
    by_key = {(node.graph, node.output): node for node in hierarchy.nodes}
    return [by_key.get(view.node_key(index)) for index in range(len(view.nodes))]


# -- scopes and graphs ------------------------------------------------------------------------------------


def check_enclosing(hierarchy: Hierarchy, view: View, nodes: list[Node | None]) -> list[Finding]:
    """Check that each node of a body or function runs within the call that its graph runs in."""
    enclosing = _enclosing_scopes(hierarchy, view, nodes)
    found = []
    for index, node in enumerate(nodes):
        outer = enclosing.get(view.nodes[index].graph)
        if node is None or outer is None or not _claims_one_call(node):
            continue
        if not _is_below(hierarchy, node.scope, outer):
            message = f"its scope '{node.scope}' is not within '{outer}', the call that its graph runs in"
            place = node_place(node.graph, node.output, node.name)
            found.append(Finding("enclosing-scope", "warning", place, message, _ANEW))
    return found


def _enclosing_scopes(hierarchy: Hierarchy, view: View, nodes: list[Node | None]) -> dict[int, CallId]:
    """Return the call that each graph runs in: of a body its node's, of a function the lowest above all its uses."""
    functions = {graph.key: number for number, graph in enumerate(view.graphs) if graph.key and graph.owner is None}
    sites: dict[int, list[CallId | None]] = defaultdict(list)
    for index, node in enumerate(nodes):
        scope = node.scope if node is not None and node.evidence != "root" else None
        for graph in view.nodes[index].bodies:
            sites[graph].append(scope)
        if (called := functions.get(view.nodes[index].op)) is not None:
            sites[called].append(scope)
    known = {graph: [scope for scope in scopes if scope is not None] for graph, scopes in sites.items()}
    return {graph: hierarchy.tree.lowest_above(known[graph]) for graph, scopes in sites.items() if None not in scopes}


def _claims_one_call(node: Node) -> bool:
    """Say whether a node claims to have run in one call: not if it stands for several, or nothing is known."""
    return node.evidence != "root" and len(node.origins) == 1


def _is_below(hierarchy: Hierarchy, scope: CallId, outer: CallId) -> bool:
    return hierarchy.tree.lowest_above((scope, outer)) == outer


# -- coverage ---------------------------------------------------------------------------------------------


def check_coverage(hierarchy: Hierarchy, limits: Mapping[str, float]) -> Iterator[Finding]:
    """Check that of each category of operators enough nodes are attributed."""
    totals: Counter[str] = Counter()
    attributed: Counter[str] = Counter()
    for node in hierarchy.nodes:
        kind = category_of(node.op_type, node.domain)
        totals[kind] += 1
        attributed[kind] += node.evidence != "root"
    for name, category in CATEGORIES.items():
        threshold = limits[name]
        if 100 * attributed[name] < threshold * totals[name]:
            severity = "error" if category.critical else "warning"
            share = 100 * attributed[name] / totals[name]
            message = (
                f"{attributed[name]:,} of {totals[name]:,} nodes attributed ({share:.1f} %), under {threshold:g} %"
            )
            yield Finding("coverage", severity, f"category '{name}'", message, _BETTER)
