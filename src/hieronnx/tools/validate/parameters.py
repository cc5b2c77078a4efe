"""Parameters are used by the module that owns them, by one above it, or by one that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Initializer, Node
from hieronnx.tools.validate.findings import Finding, node_place

_REMEDY = "nothing, if the module is handed that parameter as an argument; otherwise the node is in the wrong call"


def check_parameters(hierarchy: Hierarchy, view: View, nodes: Sequence[Node | None]) -> list[Finding]:
    """Check who reads each initializer that is a parameter as it was.

    One that work was folded into is a tensor like any other: what that work may read was settled where it ran.
    """
    held = {item.name: item for item in hierarchy.initializers if item.parameter and not item.origins}
    parameters = {tensor: held[view.names[tensor]] for tensor in view.constants if view.names[tensor] in held}
    usage = _Usage(hierarchy)
    found = []
    for index, node in enumerate(nodes):
        if node is None or node.evidence == "root":
            continue
        for tensor in dict.fromkeys(view.nodes[index].inputs):
            item = parameters.get(tensor)
            if item is not None and not usage.allows((node.scope, *node.origins), item):
                place = node_place(node.graph, node.output, node.name)
                message = f"it runs in '{node.scope}' and reads parameter '{item.parameter}', which is another module's"
                found.append(Finding("parameters", "warning", place, message, _REMEDY))
    return found


class _Usage:
    """Who may use which parameter; answers are kept, for a layer asks again and again."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._borrowers = _find_borrowers(hierarchy)
        self._around: dict[CallId, frozenset[str]] = {}

    def allows(self, calls: Iterable[CallId], item: Initializer) -> bool:
        owner = (item.parameter or "").rpartition(".")[0]
        above = set(_with_all_above(owner))
        for call in calls:
            if call.module in above or call.module in self._borrowers or owner in self._modules_around(call):
                return True
        return False

    def _modules_around(self, call: CallId) -> frozenset[str]:
        """Return the modules in whose calls a call runs: they may hand in what they own."""
        if call not in self._around:
            self._around[call] = frozenset(outer.module for outer in self._hierarchy.tree.ancestors(call))
        return self._around[call]


def _find_borrowers(hierarchy: Hierarchy) -> frozenset[str]:
    """Return the modules with a parameter that is not in the file under its own name, and all modules above them.

    It may be tied to another, or have been merged with an equal one: then they read that other one's.
    """
    present = {item.parameter for item in hierarchy.initializers}
    found = set()
    for path, module in hierarchy.modules.items():
        if any((f"{path}.{name}" if path else name) not in present for name in module.direct_parameters):
            found.update(_with_all_above(path))
    return frozenset(found)


def _with_all_above(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]
