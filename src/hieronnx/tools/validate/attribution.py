"""The checks of a hierarchy against its graph: scopes of bodies, parameters, passed tensors, coverage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache

from hieronnx.files.claims import Finding, call_place, node_place
from hieronnx.files.document import summarize
from hieronnx.graph.view import View
from hieronnx.hierarchy.categories import CATEGORIES, category_of
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node

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
    sites: dict[int, list[CallId | None]] = defaultdict(list)
    for index, node in enumerate(nodes):
        scope = node.scope if node is not None and node.evidence != "root" else None
        for graph in view.nodes[index].bodies:
            sites[graph].append(scope)
        if (called := view.functions.get(view.nodes[index].op)) is not None:
            sites[called].append(scope)
    return {
        graph: hierarchy.tree.lowest_above(scope for scope in scopes if scope is not None)
        for graph, scopes in sites.items()
        if None not in scopes
    }


def check_coverage(hierarchy: Hierarchy, limits: Mapping[str, float]) -> Iterator[Finding]:
    """Check that of each category of operators enough nodes are attributed."""
    statistics = summarize(hierarchy).category_statistics
    below = Counter(category_of(node.op_type, node.domain) for node in hierarchy.list_below())
    for name, counts in statistics.items():
        total, attributed, threshold = counts.total, counts.attributed, limits[name]
        if 100 * attributed < threshold * total:
            share = 100 * attributed / total
            message = f"{attributed:,} of {total:,} nodes attributed ({share:.1f} %), under {threshold:g} %"
            if below[name]:
                message += f"; {below[name]:,} more with less than {hierarchy.min_confidence} confidence"
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
            if not any(may_use(call, parameter) for call in (node.scope, *node.origins)):
                message = f"it runs in '{node.scope}' and reads parameter '{parameter}', which is another module's"
                yield Finding("parameters", "warning", node_place(*node.key, node.name), message, _BORROWED)


def _make_usage(hierarchy: Hierarchy) -> Callable[[CallId, str], bool]:
    """Return what says whether a call may read a parameter or buffer; it keeps its answers: layers ask again."""
    # Modules with a parameter that is not in the file under its own name, and all modules above them: it may be tied to
    # another, or have been merged with an equal one; then they read that other one's.
    present = {item.parameter for item in hierarchy.initializers}
    borrowers: set[str] = set()
    for path, module in hierarchy.modules.items():
        if any(f"{path}.{name}".lstrip(".") not in present for name in module.direct_parameters):
            borrowers.update(_with_all_above(path))

    @cache
    def may_use(call: CallId, parameter: str) -> bool:
        owner, _, name = parameter.rpartition(".")
        if call.module in borrowers or _reads_of(hierarchy, call, owner):
            return True
        return any(_reads_of(hierarchy, call, path) for path in _find_merged(hierarchy, owner, name, present))

    return may_use


def _reads_of(hierarchy: Hierarchy, call: CallId, owner: str) -> bool:
    """Say whether a call may read what a module owns: one below it, or one in whose calls it runs, which passes it."""
    return call.module in _with_all_above(owner) or any(
        outer.module == owner for outer in hierarchy.tree.ancestors(call)
    )


def _find_merged(hierarchy: Hierarchy, owner: str, name: str, present: Collection[str | None]) -> Iterator[str]:
    """Find the modules whose buffer may have been merged with an equal one: it is not in the file under its own name.

    Which buffers a module has is not recorded; but one of the owner's class has those of the owner.
    """
    module = hierarchy.modules.get(owner)
    if module is not None and name not in module.direct_parameters:
        for path, other in hierarchy.modules.items():
            if other.qualified_class == module.qualified_class and f"{path}.{name}".lstrip(".") not in present:
                yield path


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
