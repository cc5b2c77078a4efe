"""Where the work of a call is that its own nodes do not do: fused with others', done once for several, or folded.

Conv (in ""), origins `conv` and `norm`          `norm` has no nodes: its work is in that Conv
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId


@dataclass(frozen=True, slots=True)
class WorkElsewhere:
    """A node or an initializer outside a call that holds work of it.

    Attributes:
        how: `fused` into a node that does the work of several calls, `shared` with a node that does the same for
            another call, `folded` into an initializer.
        name: of the node, or its output where it has no name; of the initializer.
        op_type: of the node; nothing for an initializer.
        scope: the call that the node is in; None for an initializer.
    """

    how: str
    name: str
    op_type: str
    scope: CallId | None

    def __str__(self) -> str:
        if self.scope is None:
            return f"{self.how}: {self.name}"
        return f"{self.how}: {self.op_type} {self.name} in {str(self.scope) or '(root)'}"


def find_work_elsewhere(hierarchy: Hierarchy) -> Mapping[CallId, list[WorkElsewhere]]:
    """Find the work of calls that lies outside their regions.

    What was fused is told of every call. What is shared or folded is told only of calls that have no nodes: a weight
    that was transposed at export, or a mask that is computed once, is no news of a call that does its work itself.
    """
    tree = hierarchy.tree
    full = {above for scope in {node.scope for node in hierarchy.nodes} for above in tree.ancestors(scope)}
    found: dict[CallId, dict[WorkElsewhere, None]] = defaultdict(dict)
    for origin, scope, work in _list_work(hierarchy):
        around = set() if scope is None else set(tree.ancestors(scope))
        for call in tree.ancestors(origin):
            if call in around or (work.how != "fused" and call in full):
                break
            found[call][work] = None
    return {call: list(works) for call, works in found.items()}


def _list_work(hierarchy: Hierarchy) -> Iterator[tuple[CallId, CallId | None, WorkElsewhere]]:
    for node in hierarchy.nodes:
        others = [origin for origin in node.origins if origin != node.scope]
        how = "shared" if node.scope in node.origins else "fused"
        for origin in others:
            yield origin, node.scope, WorkElsewhere(how, node.name or node.output, node.op_type, node.scope)
    for item in hierarchy.initializers:
        for origin in item.origins:
            yield origin, None, WorkElsewhere("folded", item.name, "", None)
