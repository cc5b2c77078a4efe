"""Pairing the tensors of two graphs where names tell nothing.

Where nothing but names differs, all are paired:

    A: x ─┬─ MatMul (wq) ─ q ─┐                  B: t0 ─┬─ MatMul (t1) ─ t3 ─┐
          └─ MatMul (wk) ─ k ─┴─ Sub ─ y                └─ MatMul (t2) ─ t4 ─┴─ Sub ─ t5

From the inputs, nothing tells the two MatMuls apart. From the outputs there is one way only: t5 is y, so what Sub reads
is q and k, in this order. Whatever an output is computed from is paired so, or the graphs are not the same. Of large
weights only the sizes are compared here; `attribute/weights.py` compares what they hold.

Where a tool changed the graph as well, weights that it left as they were are fixed points, and so is what is computed
with them: t3 is q, if t1 holds the numbers of wq, and what it multiplies is what wq multiplied.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from hieronnx.graph.view import NO_TENSOR, View, ViewNode


def pair_renamed(a: View, b: View) -> dict[int, int] | None:
    """Return for the tensors of B those of A, where B is A under other names; None where more than names differs."""
    return _Walk(a, b).run()


def pair_results(a: View, b: View, weights: Mapping[int, int]) -> dict[int, int]:
    """Return for tensors of B those of A that are computed with the same weights, by the same operator.

    No other node computes with these weights. Whether what else is read is the same is not known here.

    Args:
        a: The graph before.
        b: The graph after.
        weights: For weights of B those of A that hold the same numbers.
    """
    pairs: dict[int, int] = {}
    for of_b, of_a in weights.items():
        readers, others = b.consumers[of_b], a.consumers[of_a]
        if len(readers) == len(others) == 1:
            node, other = b.nodes[readers[0]], a.nodes[others[0]]
            if _is_same_work(a, b, node, other, weights):
                ends = zip(node.outputs[:1], other.outputs[:1], strict=False)
                pairs.update(pair for pair in ends if NO_TENSOR not in pair)
    return pairs


def _is_same_work(a: View, b: View, node: ViewNode, other: ViewNode, weights: Mapping[int, int]) -> bool:
    """Say whether a node of B does what one of A does, with the same constants."""
    if (node.op, node.attributes, len(node.inputs)) != (other.op, other.attributes, len(other.inputs)) or node.bodies:
        return False
    for of_b, of_a in zip(node.inputs, other.inputs, strict=True):
        if NO_TENSOR in (of_b, of_a):
            if of_b != of_a:
                return False
        elif (b.flow.constant[of_b] or a.flow.constant[of_a]) and weights.get(of_b) != of_a:
            contents = read_content(b, of_b), read_content(a, of_a)
            if None in contents or contents[0] != contents[1] or is_named(contents[0]):
                return False
    return True


def read_content(view: View, tensor: int) -> Hashable:
    """Return what a constant holds, an initializer or what a Constant node gives; None for what is computed."""
    producer = view.producers[tensor]
    if producer is not None and view.nodes[producer].op == "Constant":
        return view.nodes[producer].attribute("value")
    return view.constants.get(tensor)


def read_numbers(view: View, tensor: int) -> tuple[Hashable, Hashable, bytes] | None:
    """Return the type, the sizes and the bytes of a constant, or their digest; None where they are not at hand."""
    content = read_content(view, tensor)
    return content if isinstance(content, tuple) and len(content) == 3 and isinstance(content[2], bytes) else None


def holds_other(a: View, of_a: int, b: View, of_b: int) -> bool | None:
    """Say whether a constant of B holds other numbers than one of A, as many of the same type; None if not at hand."""
    old, new = read_numbers(a, of_a), read_numbers(b, of_b)
    return None if old is None or new is None else old[:2] == new[:2] and old != new


def reads_other(a: View, of_a: int, b: View, of_b: int) -> bool | None:
    """Say whether a constant of B holds other numbers than one of A; large ones are read.

    None where they cannot be read, or are of two types: they may have been rounded only.
    """
    contents = read_content(a, of_a), read_content(b, of_b)
    at_hand = not is_named(*contents)
    if None in contents or (at_hand and contents[0] == contents[1]):
        return False
    types = a.types[of_a], b.types[of_b]
    if None not in types and types[0] != types[1]:
        return None
    if at_hand:
        return holds_other(a, of_a, b, of_b) or None
    old, new = a.read_digest(of_a), b.read_digest(of_b)
    return None if old is None or new is None else old != new


def pair_ends(a: View, b: View, of_a: Sequence[int], of_b: Sequence[int]) -> list[tuple[int, int]]:
    """Pair the inputs or outputs of two graphs, of B with A: by name, those left by position."""
    by_name = {a.names[tensor]: tensor for tensor in of_a}
    return pair_left({t: by_name[b.names[t]] for t in of_b if b.names[t] in by_name}, of_a, of_b)


def pair_left(pairs: Mapping[int, int], of_a: Sequence[int], of_b: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of tensors of B and A, and those left by position, if they are equally many."""
    paired_a = set(pairs.values())
    left_a, left_b = [t for t in of_a if t not in paired_a], [t for t in of_b if t not in pairs]
    return [*pairs.items(), *(zip(left_b, left_a, strict=True) if len(left_a) == len(left_b) else ())]


class _Walk:
    """Walks both graphs at the same time, from the outputs to what they are computed from."""

    def __init__(self, a: View, b: View) -> None:
        self._a, self._b = a, b
        self._in_a: dict[int, int] = {}
        self._in_b: dict[int, int] = {}
        self._pending: list[tuple[int, int]] = []
        """Tensors of A and B that were paired; what makes them was not looked at yet."""
        self._bodies: set[int] = set()

    def run(self) -> dict[int, int] | None:
        functions = ((graph, self._b.functions.get(key)) for key, graph in self._a.functions.items())
        graphs = [(0, 0), *((of_a, of_b) for of_a, of_b in functions if of_b is not None)]
        same = len(graphs) - 1 == len(self._a.functions) == len(self._b.functions)
        same = same and all(self._pair_graphs(of_a, of_b) for of_a, of_b in graphs)
        while same and self._pending:
            same = self._pair_makers(*self._pending.pop())
        return self._in_a if same else None

    def _pair_graphs(self, of_a: int, of_b: int) -> bool:
        first, second = self._a.graphs[of_a], self._b.graphs[of_b]
        ends = ((first.inputs, second.inputs), (first.outputs, second.outputs))
        return all(
            len(ours) == len(theirs) and all(self._pair(x, y) for y, x in pair_ends(self._a, self._b, ours, theirs))
            for ours, theirs in ends
        )

    def _pair_all(self, of_a: Sequence[int], of_b: Sequence[int]) -> bool:
        return len(of_a) == len(of_b) and all(map(self._pair, of_a, of_b))

    def _pair(self, of_a: int, of_b: int) -> bool:
        """Pair two tensors; say whether nothing contradicts that."""
        if NO_TENSOR in (of_a, of_b):
            return of_a == of_b
        if of_b not in self._in_a and of_a not in self._in_b:
            self._in_a[of_b], self._in_b[of_a] = of_a, of_b
            self._pending.append((of_a, of_b))
        return self._in_a.get(of_b) == of_a and self._in_b.get(of_a) == of_b

    def _pair_makers(self, of_a: int, of_b: int) -> bool:
        first, second = self._a.producers[of_a], self._b.producers[of_b]
        if first is None or second is None:
            return first is second and self._can_be_same(of_a, of_b)
        node, other = self._a.nodes[first], self._b.nodes[second]
        same_form = (node.op, node.attributes) == (other.op, other.attributes)
        return (
            same_form
            and self._pair_all(node.inputs, other.inputs)
            and self._pair_all(node.outputs, other.outputs)
            and self._pair_bodies(node, other)
        )

    def _pair_bodies(self, node: ViewNode, other: ViewNode) -> bool:
        """Pair the bodies of two nodes, once: a node is met at each of its outputs."""
        if not self._bodies.isdisjoint(node.bodies):
            return True
        self._bodies.update(node.bodies)
        labels_a = [self._a.graphs[body].label for body in node.bodies]
        labels_b = [self._b.graphs[body].label for body in other.bodies]
        return labels_a == labels_b and all(map(self._pair_graphs, node.bodies, other.bodies))

    def _can_be_same(self, of_a: int, of_b: int) -> bool:
        """Say whether two tensors that nothing makes may be the same; of large weights only the type is known."""
        first, second = self._a.constants.get(of_a), self._b.constants.get(of_b)
        if (of_a in self._a.constants) != (of_b in self._b.constants):
            return False
        types = self._a.types[of_a], self._b.types[of_b]
        return first == second or (None not in types and types[0] == types[1] and is_named(first, second))


def is_named(*keys: object) -> bool:
    """Say whether these are keys of weights that are known by their names alone."""
    return all(isinstance(key, tuple) and key[:1] == ("named",) for key in keys)
