"""Numbers for the nodes of a graph: what each is computed from, what is made of it, and an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hieronnx.graph.view import NO_TENSOR, View, ViewNode

NO_MATCH = -1
# Where others have the position of an input; of what is captured, the number of how it is used is taken off.
_GRAPH_OUTPUT, _CAPTURED = -1, -2
_IN_A_CYCLE = -1


def given_inputs(node: ViewNode) -> tuple[int, ...]:
    """Return the inputs without empty ones at the end, which say the same as none."""
    inputs = node.inputs
    while inputs and inputs[-1] == NO_TENSOR:
        inputs = inputs[:-1]
    return inputs


class Numbers:
    """Gives equal things equal numbers, on both sides of a comparison."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __call__(self, key: Hashable) -> int:
        """Return the number of a key, the same each time."""
        return self._known.setdefault(key, len(self._known))


@dataclass(slots=True)
class Side:
    """One of two models that are compared."""

    view: View
    signatures: list[int]
    """For each node a number for its operator, the operator's version, its attributes and which outputs it has."""
    operators: list[int]
    """For each node a number for its operator alone."""
    held: Mapping[int, Hashable]
    """For each initializer its type, and its contents where they count."""
    small: Mapping[int, Hashable]
    """For each initializer its contents if they are few, whether they count or not."""
    opsets: list[Mapping[str, int]]
    """For each graph the opset imports that hold in it."""
    nodes: list[list[int]] = field(init=False)
    """The nodes of each graph."""

    places: list[int] = field(init=False)
    """For each tensor its place among the outputs of the node that makes it."""
    input_places: dict[int, int] = field(init=False)
    """For each input of a graph its place among them."""

    def __post_init__(self) -> None:
        self.nodes = [[] for _ in self.view.graphs]
        self.places = [0] * len(self.view.names)
        for index, node in enumerate(self.view.nodes):
            self.nodes[node.graph].append(index)
            for place, tensor in enumerate(node.outputs):
                if tensor != NO_TENSOR:
                    self.places[tensor] = place
        self.input_places = {t: place for graph in self.view.graphs for place, t in enumerate(graph.inputs)}

    def undefined(self) -> list[int]:
        """Return the tensors that nothing computes or holds, and nobody gives: what a broken file speaks of."""
        producers = self.view.producers
        known = {*self.held, *self.input_places}
        return [t for t in range(len(self.view.names)) if producers[t] is None and t not in known]

    def inputs(self, graph: int) -> list[int]:
        """Return the inputs that must be given: an initializer among the inputs is only a default."""
        return [t for t in self.view.graphs[graph].inputs if t not in self.held]


@dataclass(slots=True)
class NumberedGraph:
    """A graph of one side with the numbers of its nodes.

    Attributes:
        uses: for each tensor the nodes of this graph that read it, and at which position.
        captured: for each node with bodies what these capture, and how they use it, as a negative position.
        order: the nodes, each behind what it reads, in an order that depends on the structure alone.
        up: a number for all that a node is computed from.
        down: a number for all that is made of it.
        near: a number for the node and what feeds it directly.
        inside: a number for what the bodies of a node compute.
        around: a number for all of a node and of its direct neighbours.
    """

    side: Side
    graph: int
    uses: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    captured: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    near: dict[int, int] = field(default_factory=dict)
    inside: dict[int, int] = field(default_factory=dict)
    around: dict[int, int] = field(default_factory=dict)

    def feeds(self, node: int) -> Iterator[tuple[int, int]]:
        """Yield what a node reads and at which position; what its bodies capture, by how they use it."""
        found = self.side.view.nodes[node]
        yield from enumerate(found.inputs)
        yield from self.captured.get(node, ())


def number_graph(
    side: Side, graph: int, numbers: Numbers, leaf: Callable[[int], Hashable], outputs: Mapping[int, Iterable[int]]
) -> NumberedGraph:
    """Number the nodes of a graph.

    Args:
        side: The model.
        graph: The number of the graph.
        numbers: Shared with the other side.
        leaf: Keys what the graph does not compute itself, alike on both sides.
        outputs: For each tensor that is an output its places among the outputs, alike on both sides.
    """
    found = NumberedGraph(side, graph)
    _find_uses(found, numbers)
    ends = [p for t in side.view.graphs[graph].outputs if (p := _producer_in(side, graph, t)) is not None]
    found.order = _post_order(side, graph, [*ends, *side.nodes[graph]])
    _number_up(found, numbers, leaf)
    _number_down(found, numbers, outputs)
    _number_around(found, numbers)
    unused = [n for n in found.order if not any(t in found.uses for t in side.view.nodes[n].outputs)]
    if len(unused) > 1:  # which of them comes first in the file is no part of the structure
        unused.sort(key=found.around.__getitem__)
        found.order = _post_order(side, graph, [*ends, *unused, *side.nodes[graph]])
    return found


def _find_uses(found: NumberedGraph, numbers: Numbers) -> None:
    for index in found.side.nodes[found.graph]:
        node = found.side.view.nodes[index]
        if node.bodies:
            inside = _find_uses_inside(found.side, node)
            found.captured[index] = [
                (_CAPTURED - numbers(("captured", tuple(sorted(uses)))), tensor) for tensor, uses in inside.items()
            ]
        for position, tensor in found.feeds(index):
            if tensor != NO_TENSOR:
                found.uses.setdefault(tensor, []).append((index, position))


def _find_uses_inside(side: Side, node: ViewNode) -> dict[int, list[tuple[str, int, int]]]:
    """Return how the bodies of a node use what they capture: in which body, by what kind of node, at which position."""
    inside: dict[int, list[tuple[str, int, int]]] = {tensor: [] for tensor in node.captures}
    waiting = [(body, side.view.graphs[body].label) for body in node.bodies]
    while waiting:
        graph, path = waiting.pop()
        for index in side.nodes[graph]:
            inner = side.view.nodes[index]
            for position, tensor in enumerate(inner.inputs):
                if tensor in inside:
                    inside[tensor].append((path, side.signatures[index], position))
            waiting += [(body, f"{path}/{side.view.graphs[body].label}") for body in inner.bodies]
        for position, tensor in enumerate(side.view.graphs[graph].outputs):
            if tensor in inside:
                inside[tensor].append((path, _GRAPH_OUTPUT, position))
    return inside


def _producer_in(side: Side, graph: int, tensor: int) -> int | None:
    producer = None if tensor == NO_TENSOR else side.view.producers[tensor]
    return producer if producer is not None and side.view.nodes[producer].graph == graph else None


def _post_order(side: Side, graph: int, roots: Iterable[int]) -> list[int]:
    """Return the nodes behind the roots, each after what it reads, inputs in their order; without recursion."""
    order: list[int] = []
    seen: set[int] = set()
    for root in roots:
        waiting = [(root, False)]
        while waiting:
            index, ready = waiting.pop()
            if ready:
                order.append(index)
            elif index not in seen:
                seen.add(index)
                waiting.append((index, True))
                producers = [_producer_in(side, graph, t) for t in side.view.nodes[index].reads]
                waiting += [(p, False) for p in reversed(producers) if p is not None and p not in seen]
    return order


def _number_up(found: NumberedGraph, numbers: Numbers, leaf: Callable[[int], Hashable]) -> None:
    side = found.side
    tensors: dict[int, int] = {NO_TENSOR: numbers("absent")}

    def number(tensor: int) -> int:
        known = tensors.get(tensor)
        if known is None:
            in_a_cycle = _producer_in(side, found.graph, tensor) is not None
            known = tensors[tensor] = numbers("cycle" if in_a_cycle else leaf(tensor))
        return known

    for index in found.order:
        node, signature = side.view.nodes[index], side.signatures[index]
        found.up[index] = _number_node(node, signature, tensors, numbers, number)
        found.near[index] = numbers((signature, tuple(_near(side, tensor) for tensor in given_inputs(node))))
        if node.bodies:
            bodies = sorted(node.bodies, key=lambda body: side.view.graphs[body].label)
            found.inside[index] = numbers(tuple(_number_body(side, g, tensors, numbers, number) for g in bodies))


def _number_node(
    node: ViewNode, signature: int, tensors: dict[int, int], numbers: Numbers, number: Callable[[int], int]
) -> int:
    """Number a node by its signature and what it reads, and the tensors that it makes by that."""
    up = numbers((signature, tuple(map(number, given_inputs(node))), tuple(sorted(map(number, node.captures)))))
    for position, tensor in enumerate(node.outputs):
        if tensor != NO_TENSOR:
            tensors[tensor] = numbers((up, position))
    return up


def _number_body(
    side: Side, graph: int, tensors: dict[int, int], numbers: Numbers, number: Callable[[int], int]
) -> Hashable:
    """Number what a body computes, in the terms of the graph around it."""
    body = side.view.graphs[graph]
    tensors.update((tensor, numbers(("body input", position))) for position, tensor in enumerate(body.inputs))
    for index in side.nodes[graph]:
        node = side.view.nodes[index]
        _number_node(node, side.signatures[index], tensors, numbers, number)
        for inner in node.bodies:
            _number_body(side, inner, tensors, numbers, number)
    return body.label, tuple(map(number, body.outputs))


def _near(side: Side, tensor: int) -> Hashable:
    producer = None if tensor == NO_TENSOR else side.view.producers[tensor]
    return side.held.get(tensor) if producer is None else side.signatures[producer]


def _number_down(found: NumberedGraph, numbers: Numbers, outputs: Mapping[int, Iterable[int]]) -> None:
    down = found.down
    for index in reversed(found.order):
        uses: list[tuple[int, int, int]] = []
        for position, tensor in enumerate(found.side.view.nodes[index].outputs):
            uses += [(position, _GRAPH_OUTPUT, place) for place in outputs.get(tensor, ())]
            readers: Sequence[tuple[int, int]] = found.uses.get(tensor, ())
            uses += [(position, at, down.get(reader, _IN_A_CYCLE)) for reader, at in readers]
        down[index] = numbers((found.side.signatures[index], tuple(sorted(uses))))


def _number_around(found: NumberedGraph, numbers: Numbers) -> None:
    """Number a node with its neighbours: among copies of one computation it tells which feeds what, and who shares."""
    side, both = found.side, {n: numbers((found.up[n], found.down[n])) for n in found.order}

    def neighbour(tensor: int) -> Hashable:
        producer = _producer_in(side, found.graph, tensor)
        if producer is not None:
            return both[producer]
        # Of what nobody computes it is the readers that tell one from another.
        return None if tensor == NO_TENSOR else tuple(sorted((at, both[reader]) for reader, at in found.uses[tensor]))

    known: dict[int, int] = {}
    for index in found.order:
        feeds = [tensor for _, tensor in found.feeds(index)]
        known.update((tensor, numbers(neighbour(tensor))) for tensor in feeds if tensor not in known)
        readers = [use for tensor in side.view.nodes[index].outputs for use in found.uses.get(tensor, ())]
        key = both[index], tuple(known[t] for t in feeds), tuple(sorted((at, both[reader]) for reader, at in readers))
        found.around[index] = numbers(key)
