"""Numbers for the nodes of a graph: what each is computed from, what is made of it, and an order of its own.

    x ─ Relu ─ Add ─ Relu ─ y      `up` of the second Relu numbers Relu(Add(Relu(x))): all that it is computed from
                                   `down` of the first numbers y(Relu(Add(Relu))): all that is made of it

Both graphs share an `Interner`, so equal numbers are equal structure. An edit changes `up` of what lies behind it and
`down` of what lies before it, and leaves the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from hieronnx.graph.values import Interner
from hieronnx.graph.view import NO_TENSOR, View, ViewNode
from hieronnx.match.align.sequences import align_sequences

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


@dataclass(slots=True)
class Side:
    """One of two models that are compared."""

    view: View
    interner: Interner
    """Shared by both."""
    signatures: list[int]
    """For each node a number for its operator, the operator's version, its attributes and which outputs it has."""
    operators: list[int]
    """For each node a number for its operator alone."""
    initializers: Mapping[int, Hashable]
    """For each initializer its type, and its contents where they count."""
    contents: Mapping[int, Hashable]
    """For each initializer its contents if they are few, whether they count or not."""
    tensors: Mapping[int, ir.TensorProtocol | None]
    """For each initializer what the file holds of it."""
    opsets: list[Mapping[str, int]]
    """For each graph the opset imports that hold in it."""
    numbered: dict[int, NumberedGraph] = field(default_factory=dict)
    """The graphs that were numbered once for all alignments."""
    output_positions: list[int] = field(init=False)
    """For each tensor its position among the outputs of the node that makes it."""
    input_positions: dict[int, int] = field(init=False)
    """For each input of a graph its position among them."""

    def __post_init__(self) -> None:
        self.output_positions = [0] * len(self.view.names)
        for node in self.view.nodes:
            for position, tensor in enumerate(node.outputs):
                if tensor != NO_TENSOR:
                    self.output_positions[tensor] = position
        self.input_positions = {t: position for graph in self.view.graphs for position, t in enumerate(graph.inputs)}

    def undefined(self) -> list[int]:
        """Return the tensors that nothing computes, holds or is given, though a broken file names them."""
        defined = {*self.initializers, *self.input_positions}
        return [t for t, producer in enumerate(self.view.producers) if producer is None and t not in defined]

    def inputs(self, graph: int) -> list[int]:
        """Return the inputs that must be given: an initializer among the inputs is only a default."""
        return [t for t in self.view.graphs[graph].inputs if t not in self.initializers]


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

    def producer(self, tensor: int) -> int | None:
        """Return the node of this graph that makes a tensor."""
        producer = None if tensor == NO_TENSOR else self.side.view.producers[tensor]
        return producer if producer is not None and self.side.view.nodes[producer].graph == self.graph else None

    def feeds(self, node: int) -> Iterator[tuple[int, int]]:
        """Yield what a node reads and at which position; what its bodies capture, by how they use it."""
        yield from enumerate(self.side.view.nodes[node].inputs)
        yield from self.captured.get(node, ())


def pair_ends(a: Side, tensors_a: Sequence[int], b: Side, tensors_b: Sequence[int]) -> list[tuple[int, int]]:
    """Pair the inputs or the outputs of two graphs: by position, or where their number differs by name or type."""
    if len(tensors_a) == len(tensors_b):
        return list(zip(tensors_a, tensors_b, strict=True))
    pairs = align_sequences([a.view.names[t] for t in tensors_a], [b.view.names[t] for t in tensors_b])
    if not pairs:
        pairs = align_sequences([a.view.types[t] for t in tensors_a], [b.view.types[t] for t in tensors_b])
    return [(tensors_a[i], tensors_b[j]) for i, j in pairs]


# -- keys, by which nodes are alike -----------------------------------------------------------------------


def by_signature(graph: NumberedGraph, node: int) -> Hashable:
    """Key a node by its signature."""
    return graph.side.signatures[node]


def by_operator(graph: NumberedGraph, node: int) -> Hashable:
    """Key a node by its operator alone."""
    return graph.side.operators[node]


def by_initializer_names(graph: NumberedGraph, node: int) -> Hashable:
    """Key a node by the names of its initializers; None where it has none."""
    side = graph.side
    names = tuple(side.view.names[t] for t in side.view.nodes[node].inputs if t in side.initializers)
    return (side.signatures[node], names) if names else None


def by_output_name(graph: NumberedGraph, node: int) -> Hashable:
    """Key a node by the name of its output; None where that has none."""
    _, name = graph.side.view.node_key(node)
    return (graph.side.signatures[node], name) if name else None


# -- numbers -----------------------------------------------------------------------------------------------


def number_graph(
    side: Side, graph: int, leaf: Callable[[int], Hashable], outputs: Mapping[int, Iterable[int]]
) -> NumberedGraph:
    """Number the nodes of a graph.

    `leaf` keys what the graph does not compute itself, and `outputs` has for each tensor that is an output its
    positions among the outputs; both alike on both sides.
    """
    numbered = NumberedGraph(side, graph)
    _find_uses(numbered)
    ends = [p for t in side.view.graphs[graph].outputs if (p := numbered.producer(t)) is not None]
    numbered.order = _post_order(numbered, [*ends, *side.view.nodes_in[graph]])
    _number_up(numbered, leaf)
    _number_down(numbered, outputs)
    _number_around(numbered)
    unused = [n for n in numbered.order if not any(t in numbered.uses for t in side.view.nodes[n].outputs)]
    if len(unused) > 1:  # which of them comes first in the file is no part of the structure
        unused.sort(key=numbered.around.__getitem__)
        numbered.order = _post_order(numbered, [*ends, *unused, *side.view.nodes_in[graph]])
    return numbered


def _find_uses(numbered: NumberedGraph) -> None:
    side = numbered.side
    for index in side.view.nodes_in[numbered.graph]:
        inside = _find_uses_inside(side, side.view.nodes[index])
        keys = ((tensor, ("captured", tuple(sorted(uses)))) for tensor, uses in inside.items())
        numbered.captured[index] = [(_CAPTURED - side.interner[key], tensor) for tensor, key in keys]
        for position, tensor in numbered.feeds(index):
            if tensor != NO_TENSOR:
                numbered.uses.setdefault(tensor, []).append((index, position))


def _find_uses_inside(side: Side, node: ViewNode) -> dict[int, list[tuple[str, int, int]]]:
    """Return how the bodies of a node use what they capture: in which body, by what kind of node, at which position."""
    inside: dict[int, list[tuple[str, int, int]]] = {tensor: [] for tensor in node.captures}
    waiting = [(body, side.view.graphs[body].label) for body in node.bodies]
    while waiting:
        graph, path = waiting.pop()
        for index in side.view.nodes_in[graph]:
            inner = side.view.nodes[index]
            for position, tensor in enumerate(inner.inputs):
                if tensor in inside:
                    inside[tensor].append((path, side.signatures[index], position))
            waiting += [(body, f"{path}/{side.view.graphs[body].label}") for body in inner.bodies]
        for position, tensor in enumerate(side.view.graphs[graph].outputs):
            if tensor in inside:
                inside[tensor].append((path, _GRAPH_OUTPUT, position))
    return inside


def _post_order(numbered: NumberedGraph, roots: Iterable[int]) -> list[int]:
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
                producers = [numbered.producer(t) for t in numbered.side.view.nodes[index].reads]
                waiting += [(p, False) for p in reversed(producers) if p is not None and p not in seen]
    return order


def _number_up(numbered: NumberedGraph, leaf: Callable[[int], Hashable]) -> None:
    side, interner = numbered.side, numbered.side.interner
    tensors: dict[int, int] = {NO_TENSOR: interner["absent"]}

    def number(tensor: int) -> int:
        if tensor not in tensors:
            in_a_cycle = numbered.producer(tensor) is not None
            tensors[tensor] = interner["cycle" if in_a_cycle else leaf(tensor)]
        return tensors[tensor]

    for index in numbered.order:
        node, signature = side.view.nodes[index], side.signatures[index]
        numbered.up[index] = _number_node(side, index, tensors, number)
        numbered.near[index] = interner[signature, tuple(_near(side, tensor) for tensor in given_inputs(node))]
        if node.bodies:
            bodies = sorted(node.bodies, key=lambda body: side.view.graphs[body].label)
            computed = tuple(_number_body(side, body, tensors, number) for body in bodies)
            numbered.inside[index] = interner[computed]


def _number_node(side: Side, index: int, tensors: dict[int, int], number: Callable[[int], int]) -> int:
    """Number a node by its signature and what it reads, and the tensors that it makes by that."""
    node = side.view.nodes[index]
    read, captured = tuple(map(number, given_inputs(node))), tuple(sorted(map(number, node.captures)))
    up = side.interner[side.signatures[index], read, captured]
    for position, tensor in enumerate(node.outputs):
        if tensor != NO_TENSOR:
            tensors[tensor] = side.interner[up, position]
    return up


def _number_body(side: Side, graph: int, tensors: dict[int, int], number: Callable[[int], int]) -> Hashable:
    """Number what a body computes, in the terms of the graph around it."""
    body = side.view.graphs[graph]
    tensors.update((tensor, side.interner["body input", at]) for at, tensor in enumerate(body.inputs))
    for index in side.view.nodes_in[graph]:
        _number_node(side, index, tensors, number)
        for inner in side.view.nodes[index].bodies:
            _number_body(side, inner, tensors, number)
    return body.label, tuple(map(number, body.outputs))


def _near(side: Side, tensor: int) -> Hashable:
    producer = None if tensor == NO_TENSOR else side.view.producers[tensor]
    return side.initializers.get(tensor) if producer is None else side.signatures[producer]


def _number_down(numbered: NumberedGraph, outputs: Mapping[int, Iterable[int]]) -> None:
    side, down = numbered.side, numbered.down
    for index in reversed(numbered.order):
        uses: list[tuple[int, int, int]] = []
        for position, tensor in enumerate(side.view.nodes[index].outputs):
            uses += [(position, _GRAPH_OUTPUT, at) for at in outputs.get(tensor, ())]
            readers: Sequence[tuple[int, int]] = numbered.uses.get(tensor, ())
            uses += [(position, at, down.get(reader, _IN_A_CYCLE)) for reader, at in readers]
        down[index] = side.interner[side.signatures[index], tuple(sorted(uses))]


def _number_around(numbered: NumberedGraph) -> None:
    """Number a node with its neighbours: among copies of one computation it tells which feeds what, and who shares."""
    side, interner = numbered.side, numbered.side.interner
    both = {n: interner[numbered.up[n], numbered.down[n]] for n in numbered.order}

    def neighbour(tensor: int) -> Hashable:
        if tensor == NO_TENSOR:
            return None
        producer = numbered.producer(tensor)
        # Of what nobody computes it is the readers that tell one from another.
        readers = numbered.uses[tensor] if producer is None else ()
        return tuple(sorted((at, both[reader]) for reader, at in readers)) if producer is None else both[producer]

    neighbours: dict[int, int] = {}
    for index in numbered.order:
        feeds = [tensor for _, tensor in numbered.feeds(index)]
        neighbours.update((t, interner[neighbour(t)]) for t in feeds if t not in neighbours)
        readers = [use for tensor in side.view.nodes[index].outputs for use in numbered.uses.get(tensor, ())]
        uses = tuple(sorted((at, both[reader]) for reader, at in readers))
        numbered.around[index] = interner[both[index], tuple(neighbours[t] for t in feeds), uses]
