"""What constants hold that a tool computed while it wrote graph B: the work of calls, on initializers of graph A."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.match.structure import Matcher


@dataclass(frozen=True, slots=True)
class Folded:
    """What an initializer was computed from: the calls that did it, and the initializers that it holds."""

    origins: tuple[CallId, ...]
    sources: tuple[str, ...]


def find_folded(scopes: Sequence[Attribution | None], matcher: Matcher) -> dict[int, Folded]:
    """Find for each initializer of B that A knows the calls whose work it holds, and what they worked on."""
    a, folded = matcher.a, {}
    for tensor in matcher.b.constants:
        same = matcher.tensor_in_a[tensor]
        if same is None:
            continue
        origins: dict[CallId, None] = {}
        sources: dict[str, None] = {}
        pending, seen = [same], set[int]()
        while pending:
            current = pending.pop()
            producer = a.producers[current]
            if producer is None:
                sources[a.names[current]] = None
            elif producer not in seen:
                seen.add(producer)
                scope = scopes[producer]
                origins.update(dict.fromkeys(scope.origins if scope else ()))
                pending.extend(a.nodes[producer].reads_values)  # of a shape only the taking is folded
        folded[tensor] = Folded(tuple(origins), tuple(sources))
    return folded
