"""Whose time a kernel's is: that of its origins, by the work that each has in it.

FusedConv, origins `conv` (a Conv) and `act` (a Relu)        all of it is conv's: the Relu multiplies nothing
Conv, exported for `conv` and `norm`; weight of `conv`       all of it is conv's: it has the weight that is multiplied
Conv, exported for `conv` and `norm`; whose weight?          all of it counts at the scope, the call above both
SkipLayerNormalization, origins `` (an Add) and `norm`       half each: neither multiplies anything
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from hieronnx.hierarchy.hierarchy import find_owner, walk_up
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.carry.pair import Pair
from hieronnx.tools.profile.counting import ModelCounts, is_blocked, multiplies


class WorkOfOrigins:
    """Weighs the origins of nodes of the optimized graph by the multiply-adds of the nodes that they were made of."""

    def __init__(self, pair: Pair, counts: ModelCounts) -> None:
        self._a, self._hierarchy, self._counts = pair.a, pair.hierarchy, counts
        self._parameters = {item.name: item.parameter for item in pair.hierarchy.initializers}
        self._numbers = {key: index for index, key in enumerate(pair.b.node_keys)}

    def weigh(self, node: Node) -> dict[CallId, float]:
        """Return the part of each origin of a node, or of its scope; the parts add up to 1.

        By multiply-adds, where all are known and any are there; else the same for all. An origin that was merged into
        the node for doing the same as another has no work of its own left in it: it has a part like the others.
        """
        origins = list(dict.fromkeys(node.origins)) or [node.scope]
        work = self._counts.find_work(self._numbers[node.key])
        weights = self._weigh_work(work, origins) if len(origins) > 1 else {}
        if not sum(weights.values()):
            return dict.fromkeys(origins, 1 / len(origins))
        merged = sum(weights.values()) / len(weights)
        weights = {origin: merged for origin in origins if origin not in weights} | weights
        return {call: weight / sum(weights.values()) for call, weight in weights.items()}

    def _weigh_work(self, work: Sequence[int], origins: Sequence[CallId]) -> dict[CallId, float]:
        """Return the multiply-adds of each origin in some nodes of the model; nothing where some are not known."""
        counts = {index: self._counts.count(index) for index in work}
        working = [index for index, count in counts.items() if count != 0]
        if len(working) == 1 and multiplies(self._a.nodes[working[0]]):
            counts[working[0]] = counts[working[0]] or 1  # how much it is does not matter: it is all
        weights: dict[CallId, float] = {}
        for index, count in counts.items():
            known = self._hierarchy.node_by_key.get(self._a.node_keys[index])
            if count is None or known is None:
                return {}
            weights |= {origin: 0.0 for origin in known.origins if origin in origins and origin not in weights}
            owners = self._find_multiplying(index, known, origins) if count else ()
            for owner in owners:
                weights[owner] = weights.get(owner, 0.0) + count / len(owners)
        return weights

    def _find_multiplying(self, index: int, known: Node, origins: Sequence[CallId]) -> Sequence[CallId]:
        """Return the origins whose multiply-adds a node of the model does; its scope where that is not known.

        What its other origins did is in its weight. Where it has none, all of them did just what it does.
        """
        owners = [origin for origin in dict.fromkeys(known.origins) if origin in origins]
        weight = self._find_weight(index)
        if weight is None or len(owners) < 2:
            return owners
        if modules := self._find_modules(weight):
            return _find_nearest(modules, owners) or [known.scope]
        filled_up = is_blocked(self._a.nodes[index])  # then it has more elements than any parameter
        return (not filled_up and self._find_large_enough(weight, owners)) or [known.scope]

    def _find_weight(self, index: int) -> int | None:
        """Return the largest tensor that a node reads and no input has a part in."""
        constants = [t for t in self._a.nodes[index].reads if self._a.flow.constant[t]]
        return max(constants, key=lambda t: self._measure(t) or 0, default=None)

    def _measure(self, tensor: int) -> int | None:
        type_ = self._a.types[tensor]
        sizes = (None,) if type_ is None else type_.shape
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def _find_modules(self, weight: int) -> set[str]:
        """Return the modules whose parameters a weight is made of, as far as these are known."""
        a, pending, names = self._a, [weight], set[str]()
        for tensor in pending:
            producer = a.producers[tensor]
            pending += [] if producer is None else [t for t in a.nodes[producer].reads_values if t not in pending]
            names |= {a.names[tensor]} if producer is None else set()
        paths = {path for name in names if (path := self._parameters.get(name)) is not None}
        return {find_owner(self._hierarchy.modules, path) for path in paths}

    def _find_large_enough(self, weight: int, calls: Sequence[CallId]) -> list[CallId]:
        """Return the calls of the module that has as many parameters as a weight has elements, if all others have less.

        A module without parameters may multiply by what it is handed, whatever its size.
        """
        elements, modules = self._measure(weight), self._hierarchy.modules
        counts = {call: modules[call.module].parameter_count for call in calls}
        if elements is None or not all(counts.values()):
            return []
        large = [call for call, count in counts.items() if (count or 0) >= elements]
        return large if len({call.module for call in large}) == 1 else []


def _find_nearest(modules: Collection[str], calls: Sequence[CallId]) -> list[CallId]:
    """Return the calls of the nearest module that all of some modules are in, or that is one of them."""
    nearest = {next((p for p in walk_up(m) if any(call.module == p for call in calls)), None) for m in modules}
    return [call for call in calls if call.module in nearest] if len(nearest) == 1 else []
