"""The multiply-adds of the model's own nodes, at the sizes that its inputs had, and which kernels do them.

What ONNX Runtime computes in blocks of channels it fills up with zeros, which are no work of the model:

    model: x [1,3,8,8] ─ Conv (weight [12,3,3,3]) ─ y                                    20,736 multiply-adds
    ran:   x [1,3,8,8] ─ nchwc::Conv (filter [16,3,3,3]) ─ t [1,16,8,8] ─ …              27,648 by its own sizes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from hieronnx.graph.building import view_model
from hieronnx.graph.operators import BLOCKED_DOMAIN
from hieronnx.graph.view import ViewNode
from hieronnx.tools.analyze.multiply_adds import needs_shapes
from hieronnx.tools.analyze.shapes import count_nodes
from hieronnx.tools.carry.carrying import Transfer
from hieronnx.tools.carry.pair import Pair


class ModelCounts:
    """Counts the multiply-adds of nodes of the model: of those that a kernel does for several calls, or in blocks."""

    def __init__(self, pair: Pair, moved: Transfer, dims: Mapping[str, int]) -> None:
        self._a, self._work = pair.a, moved.carried.work
        keys = enumerate(zip(pair.b.nodes, pair.b.node_keys, strict=True))
        nodes = moved.hierarchy.node_by_key
        wanted = [n for n, (node, key) in keys if len(set(nodes[key].origins)) > 1 or is_blocked(node)]
        needed = {of_model for ran in wanted for of_model in self.find_work(ran)}
        self._counts = _count(pair.before.model, needed, dims) if needed else {}
        multiplying = (n for n, node in enumerate(pair.b.nodes) if multiplies(node))
        self._kernels = Counter(of_model for ran in multiplying for of_model in set(self.find_work(ran)))

    def find_work(self, ran: int) -> Sequence[int]:
        """Return the nodes of the model whose work a node that ran does."""
        return self._work.get(ran, ())

    def count(self, of_model: int) -> int | None:
        """Return the multiply-adds of a node of the model, each time that it runs; None where they are not known."""
        return self._counts.get(of_model)

    def count_kernel(self, ran: int) -> int | None:
        """Return the multiply-adds of the model that a node does each time; None where they are not known to be its.

        A node that ran may multiply where the model's node does not: a scale by channel is run as a convolution.
        """
        work = set(self.find_work(ran))
        counts = [self.count(n) for n in work if self._kernels[n] == 1]
        known = [count for count in counts if count is not None]
        return sum(known) if work and len(known) == len(work) else None


def multiplies(node: ViewNode) -> bool:
    """Say whether a node is known to multiply and add."""
    domain, _, op_type = node.op.rpartition("::")
    return needs_shapes(op_type, domain)


def is_blocked(node: ViewNode) -> bool:
    """Say whether a node reads and writes channels in blocks: its tensors are larger than those of the model."""
    return node.op.startswith(f"{BLOCKED_DOMAIN}::")


def _count(model: ir.Model, needed: Collection[int], dims: Mapping[str, int]) -> dict[int, int | None]:
    """Count the multiply-adds of nodes, given by their numbers in the view."""
    nodes: dict[int, ir.Node] = {}

    def visit(index: int, node: ir.Node) -> None:
        if index in needed:
            nodes[index] = node

    view_model(model, visit, content=lambda _, name: name)
    counts, _ = count_nodes(model, list(nodes.values()), dims)
    whole = (count if isinstance(count, int) else None for count in counts)
    return dict(zip(nodes, whole, strict=True))
