"""A TorchScript graph as a view, the same as carry takes of an ONNX model."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from hieronnx.graph import NO_TENSOR, View, ViewGraph, ViewNode, body_key

__all__ = ["view_torch_graph"]

_SMALL_TENSOR_BYTES = 1024


def view_torch_graph(
    graph: torch.Graph, user_inputs: set[int], *, final_names: bool = False
) -> tuple[View, list[torch.Node]]:
    """Build the view of a torch graph of ONNX operators, and return its nodes in the view's order.

    A tensor is named by torch's number for it, which stays the same through torch's passes; or, at the end,
    by the name that it gets in the file. Inputs of the graph that are not the user's are parameters.
    """
    builder = _TorchViewBuilder(user_inputs, final_names)
    builder.add_block(graph, "", "")
    return builder.view, builder.nodes


class _TorchViewBuilder:
    def __init__(self, user_inputs: set[int], final_names: bool) -> None:
        self.view = View()
        self.nodes: list[torch.Node] = []
        self._user_inputs = user_inputs
        self._final_names = final_names
        self._numbers: dict[int, int] = {}

    def add_block(self, block: Any, key: str, label: str) -> int:
        view = self.view
        number = len(view.graphs)
        view.graphs.append(ViewGraph(key, label, None, (), ()))
        inputs = [value for value in block.inputs() if key or value.unique() in self._user_inputs]
        for value in () if key else block.inputs():
            if value.unique() not in self._user_inputs:
                tensor = self._number(value, number)
                view.constants[tensor] = "named", view.names[tensor]
        for node in block.nodes():
            self._add_node(node, number, key)
        outputs = tuple(self._number(value, number) for value in block.outputs())
        numbers = tuple(self._number(value, number) for value in inputs)
        view.graphs[number] = ViewGraph(key, label, None, numbers, outputs)
        return number

    def _add_node(self, node: torch.Node, graph: int, key: str) -> None:
        view = self.view
        if node.mustBeNone():
            for value in node.outputs():
                self._numbers[value.unique()] = NO_TENSOR
            return
        inputs = tuple(self._number(value, graph) for value in node.inputs())
        outputs = tuple(self._number(value, graph) for value in node.outputs())
        start, known = len(view.nodes), len(view.names)
        first = next(iter(node.outputs()), None)
        labels = _body_labels(node)
        bodies = tuple(
            self.add_block(block, body_key(key, self._name(first), label), label)
            for label, block in zip(labels, node.blocks(), strict=True)
        )
        captures = dict.fromkeys(t for inner in view.nodes[start:] for t in inner.inputs if 0 <= t < known)
        op = node.kind().removeprefix("onnx::")
        attributes = () if bodies else _attribute_key(node)
        index = view.add_node(ViewNode(op, "", graph, inputs, outputs, attributes, bodies, tuple(captures)))
        for body in bodies:
            old = view.graphs[body]
            view.graphs[body] = ViewGraph(old.key, old.label, index, old.inputs, old.outputs)
        self.nodes.append(node)

    def _name(self, value: torch.Value | None) -> str:
        if value is None:
            return ""
        return str(value.debugName()) if self._final_names else str(value.unique())

    def _number(self, value: torch.Value, graph: int) -> int:
        unique = value.unique()
        if unique not in self._numbers:
            self._numbers[unique] = self.view.add_tensor(self._name(value), graph)
        return self._numbers[unique]


def _body_labels(node: torch.Node) -> list[str]:
    """Name a node's blocks as the ONNX attributes that they become."""
    count = len(list(node.blocks()))
    return ["then_branch", "else_branch"] if node.kind() == "onnx::If" else ["body"] * count


def _attribute_key(node: torch.Node) -> Hashable:
    return tuple((name, _attribute_value(node, name)) for name in sorted(node.attributeNames()))


def _attribute_value(node: torch.Node, name: str) -> Hashable:
    kind = node.kindOf(name)
    if kind == "t":
        tensor = node.t(name)
        if tensor.nbytes > _SMALL_TENSOR_BYTES:
            return "object", tensor.data_ptr(), tuple(tensor.shape)
        return str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().view(-1).tolist().__repr__()
    value = getattr(node, kind)(name)
    return tuple(value) if isinstance(value, list) else value if isinstance(value, Hashable) else repr(value)
