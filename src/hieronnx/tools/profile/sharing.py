"""Whose time a kernel's is: that of its origins, by the work that each has in it.

FusedConv, origins `conv` (a Conv) and `act` (a Relu)        all of it is conv's: the Relu multiplies nothing
SkipLayerNormalization, origins `` (an Add) and `norm`       half each: neither multiplies anything
"""

from __future__ import annotations

from collections.abc import Sequence

from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.carry.pair import Pair
from hieronnx.tools.profile.counting import ModelCounts


class WorkOfOrigins:
    """Weighs the origins of nodes of the optimized graph by the multiply-adds of the nodes that they were made of."""

    def __init__(self, pair: Pair, counts: ModelCounts) -> None:
        self._counts = counts
        self._scopes = pair.hierarchy.node_by_key
        self._keys = pair.a.node_keys
        self._numbers = {key: index for index, key in enumerate(pair.b.node_keys)}

    def weigh(self, node: Node) -> dict[CallId, float]:
        """Return the part of each origin of a node; the parts add up to 1.

        By multiply-adds, where all are known and any are there; else the same for all. An origin that was merged into
        the node for doing the same as another has no work of its own left in it: it has a part like the others.
        """
        origins = list(dict.fromkeys(node.origins)) or [node.scope]
        work = self._counts.find_work(self._numbers[node.key])
        weights = self._weigh_work(work, origins) if len(origins) > 1 else {}
        if not sum(weights.values()):
            return dict.fromkeys(origins, 1 / len(origins))
        merged = sum(weights.values()) / len(weights)
        weights = {origin: weights.get(origin, merged) for origin in origins}
        return {origin: weight / sum(weights.values()) for origin, weight in weights.items()}

    def _weigh_work(self, work: Sequence[int], origins: Sequence[CallId]) -> dict[CallId, float]:
        """Return the multiply-adds of each origin in some nodes of the original; nothing where some are not known."""
        weights: dict[CallId, float] = {}
        for index in work:
            count, known = self._counts.count(index), self._scopes.get(self._keys[index])
            if count is None or known is None:
                return {}
            owners = [origin for origin in dict.fromkeys(known.origins) if origin in origins]
            for owner in owners:
                weights[owner] = weights.get(owner, 0.0) + count / len(owners)
        return weights
