"""What differs between two models, node by node, for the pages that show them in step."""

from __future__ import annotations

from hieronnx.graph.view import ModelLike
from hieronnx.tools.compare.comparing import compare
from hieronnx.tools.extract.source import Source

KINDS = ("same", "added", "removed", "changed")


def find_kinds(before: tuple[ModelLike, Source], after: tuple[ModelLike, Source]) -> tuple[list[int], list[int]]:
    """Return for each node of both models what became of it, as a position in `KINDS`."""
    changes = compare(before[0], after[0]).nodes
    lost = {(c.before.graph, c.before.output): KINDS.index(c.kind) for c in changes if c.before is not None}
    new = {(c.after.graph, c.after.output): KINDS.index(c.kind) for c in changes if c.after is not None}
    return [lost.get(key, 0) for key in before[1].view.node_keys], [new.get(key, 0) for key in after[1].view.node_keys]
