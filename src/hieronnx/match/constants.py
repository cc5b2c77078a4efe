"""Constants of two matched graphs: which of B is which of A, found from those who read them.

A tool may rename a constant (quantized, transposed, folded) and everything that is computed from constants alone.
No fixed point lies before these; but where it is known which node of A a node of B stands for, what the one reads
is what the other reads, if each has one candidate only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hieronnx.graph.view import View
from hieronnx.match.structure import Matcher


def pair_constants(matcher: Matcher, work: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return for nodes of B that compute constants the nodes of A that they stand for; note what is known now.

    Args:
        matcher: The graphs, matched; constants that are found become known to it.
        work: For each node of B the nodes of A whose work it does.
    """
    found: dict[int, int] = {}
    pending = list(work.items())
    while pending:
        index, nodes = pending.pop()
        for of_b, of_a in _pair_read(matcher, index, nodes):
            matcher.known[of_b] = of_a
            maker, twin = matcher.b.producers[of_b], matcher.a.producers[of_a]
            if maker is not None and twin is not None and maker not in work and maker not in found:
                found[maker] = twin
                pending.append((maker, (twin,)))
    return found


def _pair_read(matcher: Matcher, index: int, nodes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Pair the constants that a node of B reads with those that its nodes of A read, where only one can be meant."""
    b = matcher.b
    read = {
        _see_through(b, t): None for t in b.nodes[index].reads if matcher.constant_b[t] and matcher.known[t] is None
    }
    of_b = [t for t in read if matcher.known[t] is None]
    if not of_b:
        return
    number = matcher.values.number
    settled = {number[known] for t in b.nodes[index].reads if (known := matcher.known[t]) is not None}
    of_a = [t for t in _constants_of_a(matcher, nodes) if number[t] not in settled]
    for computed in (True, False):
        left_b = [t for t in of_b if (matcher.b.producers[t] is not None) == computed]
        left_a = [t for t in of_a if (matcher.a.producers[t] is not None) == computed]
        if not computed:
            left_b = [t for t in left_b if any(_same_size(matcher.b, t, matcher.a, other) for other in left_a)]
            left_a = [t for t in left_a if any(_same_size(matcher.b, other, matcher.a, t) for other in left_b)]
        if len(left_b) == len(left_a) == 1:
            yield left_b[0], left_a[0]


def _constants_of_a(matcher: Matcher, nodes: Sequence[int]) -> list[int]:
    a, inside = matcher.a, set(nodes)
    read = {_see_through(a, t): None for node in nodes for t in a.nodes[node].reads if matcher.values.constant[t]}
    return [t for t in read if a.producers[t] not in inside]


def _see_through(view: View, tensor: int) -> int:
    """Return what a tensor is before nodes that only handed it on."""
    while (producer := view.producers[tensor]) is not None:
        read = view.nodes[producer].passes_on
        if read is None:
            break
        tensor = read
    return tensor


def _same_size(b: View, of_b: int, a: View, of_a: int) -> bool:
    sizes = []
    for type_ in (b.types[of_b], a.types[of_a]):
        shape = () if type_ is None else type_.shape
        sizes.append(math.prod(size for size in shape if size is not None) if None not in shape else 0)
    return sizes[0] == sizes[1] > 1
