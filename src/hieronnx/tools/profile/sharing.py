"""Whose time a kernel's is: that of its origins, by the work that each has in it.

FusedConv, origins `conv` (a Conv) and `act` (a Relu)        all of it is conv's: the Relu multiplies nothing
SkipLayerNormalization, origins `` (an Add) and `norm`       half each: neither multiplies anything
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from hieronnx.graph.building import view_model
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.analyze.shapes import count_nodes
from hieronnx.tools.carry.carrying import Transfer
from hieronnx.tools.carry.pair import Pair


class WorkOfOrigins:
    """Weighs the origins of nodes of the optimized graph by the multiply-adds of the nodes that they were made of."""

    def __init__(self, pair: Pair, moved: Transfer, dims: Mapping[str, int]) -> None:
        self._work = moved.carried.work
        self._scopes = pair.hierarchy.node_by_key
        self._keys = pair.a.node_keys
        shared = [node for node in moved.hierarchy.nodes if len(set(node.origins)) > 1]
        numbers = {key: index for index, key in enumerate(pair.b.node_keys)}
        needed = {n for node in shared for n in self._work.get(numbers[node.key], ())}
        self._numbers = numbers
        self._counts = _count(pair.before.model, needed, dims) if needed else {}

    def weigh(self, node: Node) -> dict[CallId, float]:
        """Return the part of each origin of a node; the parts add up to 1.

        By multiply-adds, where all are known and any are there; else the same for all. An origin that was merged into
        the node for doing the same as another has no work of its own left in it: it has a part like the others.
        """
        origins = list(dict.fromkeys(node.origins)) or [node.scope]
        weights = self._weigh_work(self._work.get(self._numbers[node.key], ()), origins) if len(origins) > 1 else {}
        if not sum(weights.values()):
            return dict.fromkeys(origins, 1 / len(origins))
        merged = sum(weights.values()) / len(weights)
        weights = {origin: weights.get(origin, merged) for origin in origins}
        return {origin: weight / sum(weights.values()) for origin, weight in weights.items()}

    def _weigh_work(self, work: Sequence[int], origins: Sequence[CallId]) -> dict[CallId, float]:
        """Return the multiply-adds of each origin in some nodes of the original; nothing where some are not known."""
        weights: dict[CallId, float] = {}
        for index in work:
            count, known = self._counts.get(index), self._scopes.get(self._keys[index])
            if count is None or known is None:
                return {}
            owners = [origin for origin in dict.fromkeys(known.origins) if origin in origins]
            for owner in owners:
                weights[owner] = weights.get(owner, 0.0) + count / len(owners)
        return weights


def _count(model: ir.Model, needed: set[int], dims: Mapping[str, int]) -> dict[int, int | None]:
    """Count the multiply-adds of nodes, given by their numbers in the view."""
    nodes: dict[int, ir.Node] = {}

    def visit(index: int, node: ir.Node) -> None:
        if index in needed:
            nodes[index] = node

    view_model(model, visit, content=lambda _, name: name)
    counts, _ = count_nodes(model, list(nodes.values()), dims)
    whole = (count if isinstance(count, int) else None for count in counts)
    return dict(zip(nodes, whole, strict=True))
