"""Value numbers: equal for equal computations of a graph, casts and constants seen through."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TypeAlias, cast

import numpy as np
import onnx_ir as ir

from hieronnx.graph.view import NO_TENSOR, View, ViewNode

_NONDETERMINISTIC = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
# What hands its first input on as other numbers, which stand for the same values.
QUANTIZE_OPS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "com.microsoft::QuantizeLinear"})
# What puts its first input into another order in memory.
LAYOUT_OPS = frozenset({"com.microsoft.nchwc::ReorderInput", "com.microsoft.nchwc::ReorderOutput"})
# What hands its first input on as it is, but for its type, its precision or its layout in memory.
PASSTHROUGH_OPS = (
    QUANTIZE_OPS
    | LAYOUT_OPS
    | {
        "Cast",
        "CastLike",
        "Identity",
        "DequantizeLinear",
        "com.microsoft::DequantizeLinear",
    }
)
# What computes nothing: it moves elements, or hands them on.
DATA_MOVEMENT_OPS = PASSTHROUGH_OPS | {
    "Concat",
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
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
        self.constant = [False] * len(view.names)
        self.literal = [False] * len(view.names)
        self._types = view.types
        self._table: dict[Hashable, int] = {}
        self._contents: dict[int, _Content] = {}
        """For each tensor of which they are known its few elements."""
        for tensor in range(len(view.names)):
            if view.producers[tensor] is None:
                content = view.constants.get(tensor)
                self.constant[tensor] = self.literal[tensor] = tensor in view.constants
                self.number[tensor] = self._intern(("constant", content) if content else ("leaf", tensor))
                self._remember(tensor, content)
                self.source[tensor] = self.number[tensor]
        for index, node in enumerate(view.nodes):
            self._add(index, node)
            handed = is_passthrough(node)
            for output in node.outputs:
                if output != NO_TENSOR:
                    self.source[output] = self.number[output] if handed is None else self.source[handed]

    def _intern(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))

    def _remember(self, tensor: int, content: Hashable) -> None:
        if isinstance(content, tuple) and len(content) == 3 and isinstance(content[0], ir.DataType):
            dtype, shape, elements = content
            if isinstance(elements, bytes) and math.prod(shape) <= _FEW:
                self._contents[tensor] = dtype, shape, elements

    def _add(self, index: int, node: ViewNode) -> None:
        constant = is_constant(node, self.constant)
        literal = constant and all(self.literal[t] for t in (*node.inputs, *node.captures) if t != NO_TENSOR)
        for output in node.outputs:
            if output != NO_TENSOR:
                self.constant[output], self.literal[output] = constant, literal
        if node.op in ("Cast", "CastLike", "Identity", "Constant") and self._add_simple(node):
            return
        key = self.key(index, node)
        for position, output in enumerate(node.outputs):
            if output != NO_TENSOR:
                self.number[output] = self._intern((key, position))

    def _add_simple(self, node: ViewNode) -> bool:
        """Number the output of a node that copies, casts or holds a value, if that can be seen through."""
        output = node.outputs[0]
        if node.op == "Constant":
            content = dict(cast("tuple[tuple[str, Hashable], ...]", node.attributes)).get("value")
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
        made = node.outputs[0] if node.op in ("Cast", "CastLike", "Identity") else NO_TENSOR
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
        to = dict(cast("tuple[tuple[str, Hashable], ...]", node.attributes)).get("to")
        number = to[1] if isinstance(to, tuple) and to[0] == "INT" else to
        return ir.DataType(number) if isinstance(number, int) else None

    def key(self, index: int, node: ViewNode) -> Hashable:
        """Key a node by its operator, attributes and inputs; a node with bodies or dice is only itself."""
        if node.bodies or node.op in _NONDETERMINISTIC:
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


def is_passthrough(node: ViewNode) -> int | None:
    """Return the tensor that a node only hands on, in another type, precision or layout; None where it does more."""
    if node.op not in PASSTHROUGH_OPS or not node.inputs or NO_TENSOR in (node.inputs[0], node.outputs[0]):
        return None
    return node.inputs[0]


def is_constant(node: ViewNode, constant: Sequence[bool]) -> bool:
    """Say whether a node computes the same whatever the graph's inputs are, their shapes and types aside."""
    if node.op in _NONDETERMINISTIC:
        return False
    return all(constant[tensor] for tensor in node.reads_values)
