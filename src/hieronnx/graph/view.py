"""The light view of a graph that everything works on.

A `View` has numbers for tensors and nodes, all graphs of the model in one space: the main graph, the bodies of
control-flow nodes, and functions. It holds no weights, so that the view of a graph can outlive the graph (an optimizer
works in place).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hieronnx.graph.operators import (
    COPY_OPS,
    PASSTHROUGH_OPS,
    RANDOM_OPS,
    SIZE_JOINING_OPS,
    SIZE_OPS,
    SIZE_PICKING_OPS,
    VALUE_FREE_INPUTS,
    VARIADIC_OPS,
)

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

NO_TENSOR = -1
"""Stands for an input or output that is left out."""
SMALL_TENSOR_BYTES = 1024
"""Up to this size the contents of a tensor are kept: they say what the graph does (shapes, axes, indices)."""
INPUTS_ARE_NO_DEFAULTS = 4
"""The first IR version in which an initializer need not be an input, and is a default if it is."""


class TensorType(NamedTuple):
    """The element type of a tensor, by its name, and its sizes; None for a size that is not static."""

    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A node by numbers: its operator, its tensors, the graph that it is in and the bodies that it has."""

    op: str
    """The operator, with its domain before `::` where that is not the standard one, and its overload behind `:`."""
    name: str
    graph: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: tuple[tuple[str, Hashable], ...]
    """Names and keys of values, in the order of the names; bodies left out."""
    bodies: tuple[int, ...] = ()
    captures: tuple[int, ...] = ()
    """Tensors from outside that the bodies use."""

    @property
    def reads(self) -> tuple[int, ...]:
        """All tensors that the node reads, those captured by its bodies included."""
        reads = self.inputs + self.captures
        return reads if NO_TENSOR not in reads else tuple(t for t in reads if t != NO_TENSOR)

    @property
    def makes(self) -> tuple[int, ...]:
        """The outputs that are there."""
        outputs = self.outputs
        return outputs if NO_TENSOR not in outputs else tuple(t for t in outputs if t != NO_TENSOR)

    @property
    def passes_on(self) -> int | None:
        """The tensor that the node only passes on, in another type, precision or layout; None where it does more."""
        if not (self.copies or self.op in PASSTHROUGH_OPS) or NO_TENSOR in (*self.inputs[:1], *self.outputs[:1]):
            return None
        return self.inputs[0] if self.inputs and self.outputs else None

    @property
    def copies(self) -> bool:
        """Whether it gives its first input as it is, perhaps in another type, as a Concat of one tensor does."""
        return self.op in COPY_OPS or (self.op in VARIADIC_OPS and len(self.inputs) == 1)

    @property
    def is_inserted(self) -> bool:
        """Whether it is a node of the kind that tools insert: it changes the precision or the layout, not the type."""
        return self.passes_on is not None and not self.copies

    def attribute(self, name: str) -> Hashable:
        """Return the value of an attribute; None where the node does not have it."""
        value = next((value for key, value in self.attributes if key == name), None)
        # A number is kept with its kind.
        return value[1] if isinstance(value, tuple) and len(value) == 2 and value[0] in ("INT", "INTS") else value

    @property
    def reads_values(self) -> list[int]:
        """The tensors whose values the node reads, not their shape or type alone."""
        free = VALUE_FREE_INPUTS.get(self.op)
        if free is None:
            return list(self.reads)
        return [t for i, t in enumerate(self.inputs + self.captures) if t != NO_TENSOR and i != free]


@dataclass(frozen=True, slots=True)
class ViewGraph:
    """A graph of the model: main (key `""`), a body (`output.attribute` of its node) or a function."""

    key: str
    label: str
    """What tells a body from its node's other bodies: the attribute's name and index."""
    owner: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class Flow:
    """What each tensor of a graph depends on.

    Attributes:
        literal: whether it depends on no input at all.
        constant: whether it depends on no input but through its shape or type.
        size: whether it is a number, or a short list of numbers, that is computed from sizes.
    """

    literal: list[bool]
    constant: list[bool]
    size: list[bool]

    def is_data(self, tensor: int) -> bool:
        """Say whether a tensor is made of the values of what is fed: it is neither literal nor a size."""
        return not (self.literal[tensor] or self.size[tensor])


@dataclass
class View:
    """The structure of a model: nodes in file order (a body's nodes before their owner), tensors, graphs.

    What is derived from it is derived once, when it is first asked for: by then the view is complete.
    """

    nodes: list[ViewNode] = field(default_factory=list)
    graphs: list[ViewGraph] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    producers: list[int | None] = field(default_factory=list)
    tensor_graphs: list[int] = field(default_factory=list)
    types: list[TensorType | None] = field(default_factory=list)
    """The type of each tensor, None where unknown."""
    axes: list[tuple[int | str | None, ...] | None] = field(default_factory=list)
    """The sizes of each tensor, with the names of those that are not static; None where unknown."""
    constants: dict[int, Hashable] = field(default_factory=dict)
    """Initializers by tensor, with a key that is equal only for equal contents."""
    read_digest: Callable[[int], Hashable] = field(default=lambda tensor: None, repr=False, compare=False)
    """Reads a constant, which may be large, and digests what it holds; gives None where it cannot be read."""

    def add_tensor(
        self,
        name: str,
        graph: int,
        type_: TensorType | None = None,
        axes: tuple[int | str | None, ...] | None = None,
    ) -> int:
        """Add a tensor and return its number."""
        self.names.append(name)
        self.producers.append(None)
        self.tensor_graphs.append(graph)
        self.types.append(type_)
        self.axes.append(axes if axes is not None or type_ is None else type_.shape)
        return len(self.names) - 1

    def add_node(self, node: ViewNode) -> int:
        """Add a node, as the producer of its outputs, and return its number."""
        self.nodes.append(node)
        for output in node.makes:
            self.producers[output] = len(self.nodes) - 1
        return len(self.nodes) - 1

    @cached_property
    def nodes_in(self) -> list[list[int]]:
        """For each graph its nodes."""
        nodes: list[list[int]] = [[] for _ in self.graphs]
        for index, node in enumerate(self.nodes):
            nodes[node.graph].append(index)
        return nodes

    @cached_property
    def outermost(self) -> list[int]:
        """For each graph the one around it that is no body: the main graph or a function."""
        outer = list(range(len(self.graphs)))
        for number, graph in enumerate(self.graphs):  # each after the one around it
            if graph.owner is not None:
                outer[number] = outer[self.nodes[graph.owner].graph]
        return outer

    @cached_property
    def functions(self) -> dict[str, int]:
        """The graphs that are functions, by the operators that call them."""
        return {graph.key: number for number, graph in enumerate(self.graphs) if number and graph.owner is None}

    @cached_property
    def repeated(self) -> frozenset[int]:
        """The functions that run more than once, and the bodies in them: a node there stands for several."""
        functions = self.functions
        called: dict[int, list[int]] = {number: [] for number in (0, *functions.values())}
        for node in self.nodes:
            if node.op in functions:
                called[self.outermost[node.graph]].append(functions[node.op])
        times = Counter(function for calls in called.values() for function in calls)
        pending, found = [function for function, count in times.items() if count > 1], set[int]()
        while pending:
            if (function := pending.pop()) not in found:
                found.add(function)
                pending += called[function]
        return frozenset(number for number, outer in enumerate(self.outermost) if outer in found)

    @cached_property
    def constants_in(self) -> list[list[int]]:
        """For each graph its initializers."""
        tensors: list[list[int]] = [[] for _ in self.graphs]
        for tensor in self.constants:
            tensors[self.tensor_graphs[tensor]].append(tensor)
        return tensors

    @cached_property
    def file_order(self) -> list[int]:
        """The nodes in the order of the file: the bodies of a node right after it, functions last."""
        outer = [number for number, graph in enumerate(self.graphs) if graph.owner is None]
        order: list[int] = []
        pending = [index for graph in reversed(outer) for index in reversed(self.nodes_in[graph])]
        while pending:
            index = pending.pop()
            order.append(index)
            for body in reversed(self.nodes[index].bodies):
                pending.extend(reversed(self.nodes_in[body]))
        return order

    def full_type(self, tensor: int) -> Hashable:
        """Return the type of a tensor, with its sizes by number or name; None where one is not known."""
        type_, axes = self.types[tensor], self.axes[tensor]
        return None if type_ is None or axes is None or None in axes else (type_.dtype, axes)

    @cached_property
    def node_keys(self) -> list[tuple[str, str]]:
        """What identifies each node in its file."""
        return [self.node_key(index) for index in range(len(self.nodes))]

    def node_key(self, index: int) -> tuple[str, str]:
        """Return what identifies a node in its file: its graph's key and its first output."""
        node = self.nodes[index]
        output = next((self.names[t] for t in node.outputs if t != NO_TENSOR), "")
        return self.graphs[node.graph].key, output

    def tensor_key(self, tensor: int) -> tuple[str, str]:
        """Return what identifies a tensor in its file: its graph's key and its name."""
        return self.graphs[self.tensor_graphs[tensor]].key, self.names[tensor]

    def find_tensor(self, graph: str, name: str | None) -> int | None:
        """Return the tensor of this name in the graph of this key; None where there is none."""
        return None if name is None else self._tensors.get((graph, name))

    @cached_property
    def _tensors(self) -> dict[tuple[str, str], int]:
        return {self.tensor_key(tensor): tensor for tensor in range(len(self.names))}

    @cached_property
    def consumers(self) -> list[list[int]]:
        """For each tensor the nodes that read it, captures not counted."""
        readers: list[list[int]] = [[] for _ in self.names]
        for index, node in enumerate(self.nodes):
            for tensor in node.inputs:
                if tensor != NO_TENSOR:
                    readers[tensor].append(index)
        return readers

    @cached_property
    def handed_out(self) -> frozenset[int]:
        """The tensors that a graph returns or a body captures: more than their consumers may read them."""
        returned = (t for graph in self.graphs for t in graph.outputs)
        return frozenset((*returned, *(t for node in self.nodes for t in node.captures)))

    def find_readers(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return for each node those that read what it makes, all by what identifies them in the file."""
        keys, consumers = self.node_keys, self.consumers
        return {
            key: [keys[reader] for tensor in node.makes for reader in consumers[tensor]]
            for key, node in zip(keys, self.nodes, strict=True)
        }

    @cached_property
    def flow(self) -> Flow:
        """What each tensor depends on."""
        literal = [tensor in self.constants for tensor in range(len(self.names))]
        flow = Flow(literal, literal.copy(), [False] * len(self.names))
        operators, graphs = self._random_operators(), set[int]()
        for node in self.nodes:
            if node.op in operators or not graphs.isdisjoint(node.bodies):
                graphs.add(node.graph)  # so that the node that has this body is random, too
                continue
            reads = node.reads
            made_of_literals = all(flow.literal[t] for t in reads)
            constant = made_of_literals or all(flow.constant[t] for t in node.reads_values)
            size = not made_of_literals and _is_size(node, flow)
            for tensor in node.makes:
                flow.literal[tensor], flow.constant[tensor], flow.size[tensor] = made_of_literals, constant, size
        return flow

    @cached_property
    def literals(self) -> frozenset[int]:
        """The nodes that read nothing and always give the same: `Constant` and the like; calls of functions do work."""
        nodes = ((index, node) for index, node in enumerate(self.nodes) if node.op not in self.functions)
        alone = (index for index, node in nodes if not node.reads and node.makes)
        return frozenset(index for index in alone if all(self.flow.literal[t] for t in self.nodes[index].makes))

    def _random_operators(self) -> set[str]:
        """Return the operators that give something else each time: also the functions that have one of them."""
        outer = self.outermost
        users: dict[str, set[str]] = defaultdict(set)
        for node in self.nodes:
            if outer[node.graph]:  # not the main graph
                users[node.op].add(self.graphs[outer[node.graph]].key)
        random = list(RANDOM_OPS)
        for operator in random:
            random += sorted(users.pop(operator, set()).difference(random))
        return set(random)


def _is_size(node: ViewNode, flow: Flow) -> bool:
    """Say whether a node that reads more than literals takes a size, or computes one from sizes and literals."""
    if node.op in SIZE_OPS:
        return True
    if not all(flow.size[t] or flow.literal[t] for t in node.reads):
        return False
    return node.op in SIZE_JOINING_OPS or (node.op in SIZE_PICKING_OPS and flow.size[node.inputs[0]])
