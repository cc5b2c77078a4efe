"""Finding the region of a node: the nodes of graph A between the tensors that it reads and those that it makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hieronnx.graph.values import Values
from hieronnx.graph.view import View

# A region that has not closed after so many nodes is no region: the name was a coincidence.
_LIMIT = 2000


def find_region(a: View, values: Values, outputs: Sequence[int], boundary: Sequence[int]) -> tuple[int, ...] | None:
    """Return the nodes of A between the boundary and the outputs; None if the outputs need more than that."""
    region = _walk_region(a, values.number, outputs, boundary)
    # The same but for its type is the same: a tool that leaves out casts may have kept either name.
    return region or _walk_region(a, values.source, outputs, boundary)


def _walk_region(
    a: View, number: Sequence[int], outputs: Sequence[int], boundary: Iterable[int]
) -> tuple[int, ...] | None:
    constant = a.flow.constant
    region: dict[int, None] = {}
    ends = {number[tensor] for tensor in boundary}
    pending, first = list(outputs), set(outputs)
    of_constants = all(constant[tensor] for tensor in outputs)
    while pending:
        tensor = pending.pop()
        if (tensor not in first and number[tensor] in ends) or (of_constants and not constant[tensor]):
            continue  # those who made a tensor of which the size alone is taken did nothing of this
        producer = a.producers[tensor]
        if producer is None:
            if constant[tensor]:
                continue
            return None
        if producer in region:
            continue
        region[producer] = None
        if constant[tensor] and tensor not in first and not of_constants:
            continue  # folded, or of a shape: part of the region, but nothing that it must be closed over
        if len(region) > _LIMIT:
            return None
        pending.extend(a.nodes[producer].reads)
    return tuple(sorted(region))
