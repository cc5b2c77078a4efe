"""Which tensors of a graph hold the values of another's: of those that were matched, what can be relied on."""

from __future__ import annotations

from collections import defaultdict

from hieronnx.match.copies import number_through_copies, pair_pieces
from hieronnx.match.structure import Matcher


def map_tensors(matcher: Matcher) -> list[int | None]:
    """Return for each tensor of A the tensor of B that holds its value; None where none is known to.

    It is the tensor that was matched with it, or else one that was matched with an equal computation of A.
    """
    numbers = number_through_copies(matcher.a, matcher.values)
    exact: dict[int, int] = dict(pair_pieces(matcher))
    equal: dict[int, list[int]] = defaultdict(list)
    for of_b, of_a in enumerate(matcher.known):
        if of_a is not None and _holds(matcher, of_b, of_a):
            exact.setdefault(of_a, of_b)
            equal[numbers[of_a]].append(of_b)
    visible = _visible_graphs(matcher)
    found: list[int | None] = []
    for tensor, number in enumerate(numbers):
        seen = visible.get(matcher.a.tensor_graphs[tensor], frozenset())
        others = (t for t in equal.get(number, ()) if matcher.b.tensor_graphs[t] in seen)
        found.append(exact[tensor] if tensor in exact else next(others, None))
    return found


def _holds(matcher: Matcher, of_b: int, of_a: int) -> bool:
    """Say whether a tensor of B has the value of its match: a name alone may have been given anew."""
    producer = matcher.b.producers[of_b]
    if producer in matcher.handed:
        return False  # in another type or layout
    if producer is not None:
        match = matcher.match.get(producer)
        return match is None or match.proven
    if of_b not in matcher.b.constants or matcher.a.producers[of_a] is not None:
        return True  # an input; or what A computed, and B holds under its name
    return matcher.a.constants.get(of_a) == matcher.b.constants[of_b]


def _visible_graphs(matcher: Matcher) -> dict[int, frozenset[int]]:
    """Return for each graph of A those of B whose tensors its counterpart can read: its own and all around it."""
    found = {}
    for of_b, of_a in matcher.graphs.items():
        around, graph = {of_b}, of_b
        while (owner := matcher.b.graphs[graph].owner) is not None:
            graph = matcher.b.nodes[owner].graph
            around.add(graph)
        found[of_a] = frozenset(around)
    return found
