"""Value numbers: equal for equal computations of a graph, casts and constants seen through."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from hieronnx.graph.operators import COPY_OPS, RANDOM_OPS
from hieronnx.graph.view import NO_TENSOR, View, ViewNode

_FEW = 8  # elements: enough for a scalar, a shape, the ends of a range

_Content: TypeAlias = tuple[ir.DataType, tuple[int, ...], bytes]


class Values:
    """Value numbers of a graph's tensors; and which depend on no input.

    Attributes:
        number: equal for equal computations.
        source: the number of what a tensor is, seen through all that only hands it on, in another type or layout.
        constant: whether a tensor depends on no input but through its shape.
        literal: whether it depends on none at all.
    """

    def __init__(self, view: View) -> None:
        self.number = [-1] * len(view.names)
        self.source = [-1] * len(view.names)
        self.constant, self.literal = view.flow.constant, view.flow.literal
        self._types = view.types
        self._table: dict[Hashable, int] = {}
        self._contents: dict[int, _Content] = {}
        """For each tensor of which they are known its few elements."""
        for tensor in range(len(view.names)):
            if view.producers[tensor] is None:
                content = view.constants.get(tensor)
                self.number[tensor] = self._intern(("constant", content) if content else ("leaf", tensor))
                self._remember(tensor, content)
                self.source[tensor] = self.number[tensor]
        for index, node in enumerate(view.nodes):
            self._add(index, node)
            for output in node.makes:
                self.source[output] = self.number[output] if node.passes_on is None else self.source[node.passes_on]

    def _intern(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))

    def _remember(self, tensor: int, content: Hashable) -> None:
        if isinstance(content, tuple) and len(content) == 3 and isinstance(content[0], ir.DataType):
            dtype, shape, elements = content
            if isinstance(elements, bytes) and math.prod(shape) <= _FEW:
                self._contents[tensor] = dtype, shape, elements

    def _add(self, index: int, node: ViewNode) -> None:
        if (node.op in COPY_OPS or node.op == "Constant") and self._add_simple(node):
            return
        key = self.key(index, node)
        for position, output in enumerate(node.outputs):
            if output != NO_TENSOR:
                self.number[output] = self._intern((key, position))

    def _add_simple(self, node: ViewNode) -> bool:
        """Number the output of a node that copies, casts or holds a value, if that can be seen through."""
        output = node.outputs[0]
        if node.op == "Constant":
            content = node.attribute("value")
            self.number[output] = self._intern(("constant", content))
            self._remember(output, content)
            return content is not None
        if node.inputs[0] == NO_TENSOR:
            return False
        before, after = self._dtype(node.inputs[0]), self._target(node)
        if node.op == "Identity" or (before is not None and before == after):
            self.number[output] = self.number[node.inputs[0]]
            if node.inputs[0] in self._contents:
                self._contents[output] = self._contents[node.inputs[0]]
            return True
        known = self._contents.get(node.inputs[0])
        if known is None or after is None:
            return False
        self._contents[output] = content = _convert(known, after)
        self.number[output] = self._intern(("constant", content))
        return True

    def elements(self, tensor: int) -> np.ndarray | None:
        """Return the elements of a tensor that is known to have few of them."""
        held = self._contents.get(tensor)
        return None if held is None else np.frombuffer(held[2], held[0].numpy())

    def is_copy(self, node: ViewNode) -> bool:
        """Say whether a node hands on its first input as it is, also as a cast to the type that it has already."""
        made = node.outputs[0] if node.op in COPY_OPS else NO_TENSOR
        read = node.inputs[0] if node.inputs else NO_TENSOR
        return NO_TENSOR not in (made, read) and self.number[made] == self.number[read]

    def _dtype(self, tensor: int) -> ir.DataType | None:
        if tensor in self._contents:
            return self._contents[tensor][0]
        kind = self._types[tensor]
        return None if kind is None else ir.DataType[kind.dtype]

    def _target(self, node: ViewNode) -> ir.DataType | None:
        """Return the type that a cast casts to."""
        if node.op == "CastLike":
            return None if len(node.inputs) < 2 or node.inputs[1] == NO_TENSOR else self._dtype(node.inputs[1])
        number = node.attribute("to")
        return ir.DataType(number) if isinstance(number, int) else None

    def key(self, index: int, node: ViewNode) -> Hashable:
        """Key a node by its operator, attributes and inputs; a node with bodies or dice is only itself."""
        if node.bodies or node.op in RANDOM_OPS:
            return "node", index
        if node.op == "Constant":
            return "constant", node.attributes
        inputs = tuple(NO_TENSOR if t == NO_TENSOR else self.number[t] for t in node.inputs)
        return node.graph, node.op, node.attributes, inputs


def _convert(content: _Content, dtype: ir.DataType) -> _Content:
    """Cast a few elements as ONNX does."""
    before, shape, elements = content
    with np.errstate(all="ignore"):
        made = np.frombuffer(elements, before.numpy()).astype(dtype.numpy())
    return dtype, shape, made.tobytes()
