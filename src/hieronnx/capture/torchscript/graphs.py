"""Reading TorchScript graphs: their nodes and values, and a graph as a view, the same as of an ONNX model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from hieronnx.graph.view import NO_TENSOR, SMALL_TENSOR_BYTES, View, ViewGraph, ViewNode
from hieronnx.graph.walks import body_key

_WITH_BLOCKS = frozenset({"onnx::If", "onnx::Loop", "onnx::Scan", "onnx::SequenceMap"})
_WITHOUT_BLOCKS = frozenset({"prim::Constant", "prim::ListConstruct", "prim::ListUnpack", "prim::TupleConstruct"})


def node_outputs(node: torch.Node) -> list[torch.Value]:
    """Return a node's outputs; torch's own iterator over them takes thirty times as long."""
    return [node.outputsAt(index) for index in range(node.outputsSize())]


def node_blocks(node: torch.Node) -> list[Any]:
    """Return a node's blocks, without asking those kinds that have none: asking takes long."""
    kind = node.kind()
    plain = kind.startswith("aten::") or kind in _WITHOUT_BLOCKS
    return [] if plain or (kind.startswith("onnx::") and kind not in _WITH_BLOCKS) else list(node.blocks())


def output_numbers(node: torch.Node) -> list[int]:
    """Return torch's numbers of a node's outputs."""
    return [node.outputsAt(index).unique() for index in range(node.outputsSize())]


def first_number(node: torch.Node) -> int:
    """Return torch's number of a node's first value; -1 where it has none."""
    return node.outputsAt(0).unique() if node.outputsSize() else -1


def all_values(graph: Any) -> Iterator[torch.Value]:
    """Yield the values of a graph or block, in order."""
    yield from graph.inputs()
    for node in graph.nodes():
        yield from node_outputs(node)
        for block in node_blocks(node):
            yield from all_values(block)


@dataclass(frozen=True, slots=True)
class TorchView:
    """The view of a torch graph, with torch's own nodes and values in the view's order."""

    view: View
    nodes: list[torch.Node]
    values: list[torch.Value]
    tensors: dict[int, int]
    """The tensors by torch's numbers for their values."""
    outputs: list[tuple[int, ...]]
    """Torch's numbers of the outputs of each node."""

    @property
    def producers(self) -> dict[int, int]:
        """The nodes by torch's numbers for the values that they make."""
        return {number: index for index, numbers in enumerate(self.outputs) for number in numbers}

    def with_final_names(self) -> View:
        """Return the view under the names that its values have by now, which are those in the file."""
        view = replace(self.view, names=[value.debugName() for value in self.values], graphs=list(self.view.graphs))
        for number, graph in enumerate(view.graphs):
            if graph.owner is not None:
                parent, output = view.node_key(graph.owner)
                view.graphs[number] = replace(graph, key=body_key(parent, output, graph.label))
        return view


def view_torch_graph(graph: torch.Graph, user_inputs: set[int]) -> TorchView:
    """Build the view of a torch graph.

    A tensor is named by torch's number for it, which stays the same through torch's passes. Inputs of the graph that
    are not the user's are parameters.
    """
    builder = _TorchViewBuilder(user_inputs)
    builder.add_block(graph, "", "")
    tensors = {number: tensor for number, tensor in builder.numbers.items() if tensor != NO_TENSOR}
    return TorchView(builder.view, builder.nodes, builder.values, tensors, builder.outputs)


class _TorchViewBuilder:
    def __init__(self, user_inputs: set[int]) -> None:
        self.view = View()
        self.nodes: list[torch.Node] = []
        self.values: list[torch.Value] = []
        self.numbers: dict[int, int] = {}
        self.outputs: list[tuple[int, ...]] = []
        self._user_inputs = user_inputs

    def add_block(self, block: Any, key: str, label: str) -> int:
        view = self.view
        number = len(view.graphs)
        view.graphs.append(ViewGraph(key, label, None, (), ()))
        inputs = []
        for value in block.inputs():
            tensor = self._number(value, number)
            if key or value.unique() in self._user_inputs:
                inputs.append(tensor)
            else:
                view.constants[tensor] = "named", view.names[tensor]
        for node in block.nodes():
            self._add_node(node, number, key)
        outputs = tuple(self._number(value, number) for value in block.outputs())
        view.graphs[number] = ViewGraph(key, label, None, tuple(inputs), outputs)
        return number

    def _add_node(self, node: torch.Node, graph: int, key: str) -> None:
        view, kind = self.view, node.kind()
        if node.mustBeNone():
            self.numbers.update(dict.fromkeys(output_numbers(node), NO_TENSOR))
            return
        inputs = tuple([self._number(node.inputsAt(index), graph) for index in range(node.inputsSize())])
        outputs = tuple([self._number(value, graph) for value in node_outputs(node)])
        bodies, captures = self._add_bodies(node, key, view.names[outputs[0]] if outputs else "")
        # What works in place (`aten::relu_`) computes the same as what torch replaces it by.
        op = kind.removeprefix("onnx::").removesuffix("_")
        names = [] if bodies else sorted(node.attributeNames())
        attributes = tuple([(name, _attribute_value(node, name)) for name in names])
        index = view.add_node(ViewNode(op, "", graph, inputs, outputs, attributes, bodies, captures))
        for body in bodies:
            view.graphs[body] = replace(view.graphs[body], owner=index)
        self.nodes.append(node)
        self.outputs.append(tuple([int(view.names[tensor]) for tensor in outputs]))

    def _add_bodies(self, node: torch.Node, key: str, output: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Add the blocks of a node; return their graphs, and the tensors from outside that they use."""
        blocks = node_blocks(node)
        if not blocks:
            return (), ()
        view = self.view
        start, outer = len(view.nodes), len(view.names)
        # The names of the ONNX attributes that the blocks become.
        labels = ("then_branch", "else_branch") if node.kind() in ("onnx::If", "prim::If") else ("body",) * len(blocks)
        bodies = tuple(
            self.add_block(block, body_key(key, output, label), label)
            for label, block in zip(labels, blocks, strict=False)
        )
        captures = dict.fromkeys(t for inner in view.nodes[start:] for t in inner.inputs if 0 <= t < outer)
        return bodies, tuple(captures)

    def _number(self, value: torch.Value, graph: int) -> int:
        unique = value.unique()
        number = self.numbers.get(unique)
        if number is None:
            number = self.numbers[unique] = self.view.add_tensor(str(unique), graph)
            self.values.append(value)
        return number


def _attribute_value(node: torch.Node, name: str) -> Hashable:
    kind = node.kindOf(name)
    if kind == "t":
        tensor = node.t(name)
        # Elements that are not there to be read: it equals none but itself.
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return "opaque", first_number(node), name
        if tensor.nbytes > SMALL_TENSOR_BYTES:
            return "object", tensor.data_ptr(), tuple(tensor.shape)
        return str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().view(-1).tolist().__repr__()
    value = getattr(node, kind)(name)
    return tuple(value) if isinstance(value, list) else value if isinstance(value, Hashable) else repr(value)
