"""The nodes that a part shares with other calls, and the calls whose work cannot be told from it."""

from __future__ import annotations

from collections.abc import Collection

from hieronnx.graph.view import NO_TENSOR
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.source import DATA, Source


def find_shared(source: Source, part: Part) -> list[int]:
    """Return the nodes that stand for other calls too."""
    below = set(source.below(part.call))
    return [index for index in part.region if not below.issuperset(source.attributions[index].origins)]


def find_fused(source: Source, part: Part, shared: Collection[int]) -> tuple[CallId, ...]:
    """Return the other calls whose work shared nodes do in one with that of the call.

    Of equal nodes one was kept, and it ran in one of the calls that it stands for. A fused node ran in none of them; or
    it begins before the call did, or ends after it. What constants and sizes are computed by is nobody's work.
    """
    below, view = set(source.below(part.call)), source.view
    outside = (
        {*part.undeclared_inputs, *(t for t in part.outputs if t not in part.places)} if part.ends.recorded else set()
    )
    found: dict[CallId, None] = {}
    for index in shared:
        node, made = source.attributions[index], view.nodes[index].outputs
        if not any(t != NO_TENSOR and source.kinds[t] == DATA for t in made):
            continue
        if node.scope not in node.origins or outside.intersection((*view.nodes[index].reads, *made)):
            found |= dict.fromkeys(origin for origin in node.origins if origin not in below)
    return tuple(found)
