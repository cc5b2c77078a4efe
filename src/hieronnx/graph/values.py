"""Value numbers: equal for equal computations of a graph; constants, and nodes that change nothing, are seen through.

a = Relu(x)          number 1
b = Relu(x)          number 1: the same computation
c = Cast<to=10>(a)   number 2, and source 1: the same values in another type
d = Transpose(a)     number 3
e = Transpose(d)     number 4, and number 1 through copies: the axes are back where they were
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from functools import cache
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from hieronnx.graph.operators import CAST_OPS, COMMUTATIVE_OPS, NEUTRAL_OPERANDS, RANDOM_OPS, RESHAPE_OPS
from hieronnx.graph.view import NO_TENSOR, View, ViewNode

_FEW = 8  # elements: enough for a scalar, a shape, the ends of a range

_Content: TypeAlias = tuple[ir.DataType, tuple[int, ...], bytes]


@cache
def _typed_like(op: str, position: int) -> int | None:
    """Return the first input that always has the element type of an output; None where no schema tells of one."""
    try:
        schema = onnx.defs.get_schema(op)
    except onnx.defs.SchemaError:
        return None
    output = schema.outputs[min(position, len(schema.outputs) - 1)]
    types = [item.type_str for item in schema.inputs if item.is_homogeneous]
    return types.index(output.type_str) if output.is_homogeneous and output.type_str in types else None


class Interner(dict[Hashable, int]):
    """Gives equal things equal numbers."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class Values:
    """Value numbers of a graph's tensors.

    Attributes:
        number: equal for equal computations.
        source: the number of the tensor that this one was before nodes that only pass it on, in another type or layout.
    """

    def __init__(self, view: View) -> None:
        self.number = [-1] * len(view.names)
        self.source = [-1] * len(view.names)
        self._view = view
        self._interner = Interner()
        self._contents: dict[int, _Content] = {}
        """The elements of each tensor that is known to have few."""
        self._dtypes: dict[int, ir.DataType] = {}
        """The element types that the graph does not tell, and that follow from those of what is read."""
        for tensor, producer in enumerate(view.producers):
            if producer is None:
                content = view.constants.get(tensor)
                self.number[tensor] = self._interner[("constant", content) if content else ("leaf", tensor)]
                self._keep_content(tensor, content)
                self.source[tensor] = self.number[tensor]
        for index, node in enumerate(view.nodes):
            self._follow_dtypes(node)
            if not (node.copies or node.op == "Constant") or not self._number_copy(node):
                key = self.key(index)
                for position, output in enumerate(node.outputs):
                    if output != NO_TENSOR:
                        self.number[output] = self._interner[key, position]
            for output in node.makes:
                self.source[output] = self.number[output] if node.passes_on is None else self.source[node.passes_on]

    def _keep_content(self, tensor: int, content: Hashable) -> None:
        if isinstance(content, tuple) and len(content) == 3 and isinstance(content[0], ir.DataType):
            dtype, shape, elements = content
            if isinstance(elements, bytes) and math.prod(shape) <= _FEW:
                self._contents[tensor] = dtype, shape, elements

    def _number_copy(self, node: ViewNode) -> bool:
        """Number the output of a node that copies, casts or holds a value, if that can be seen through."""
        output = node.outputs[0]
        if node.op == "Constant":
            content = _read_constant(node)
            self.number[output] = self._interner["constant", content]
            self._keep_content(output, content)
            return content is not None
        if node.inputs[0] == NO_TENSOR:
            return False
        before, after = self._dtype(node.inputs[0]), self._cast_target(node)
        content_before = self._contents.get(node.inputs[0])
        if node.op not in CAST_OPS or (before is not None and before == after):
            self.number[output] = self.number[node.inputs[0]]
            if content_before is not None:
                self._contents[output] = content_before
            return True
        if content_before is None or after is None:
            return False
        dtype, shape, elements = content_before
        with np.errstate(all="ignore"):  # cast as ONNX does
            converted = np.frombuffer(elements, dtype.numpy()).astype(after.numpy()).tobytes()
        self._contents[output] = after, shape, converted
        self.number[output] = self._interner["constant", self._contents[output]]
        return True

    def elements(self, tensor: int) -> np.ndarray | None:
        """Return the elements of a tensor that is known to have few of them."""
        content = self._contents.get(tensor)
        return None if content is None else np.frombuffer(content[2], content[0].numpy())

    def is_copy(self, node: ViewNode) -> bool:
        """Say whether a node gives its first input as it is, also as a cast to the type that it has already."""
        output = node.outputs[0] if node.copies else NO_TENSOR
        read = node.inputs[0] if node.inputs else NO_TENSOR
        return NO_TENSOR not in (output, read) and self.number[output] == self.number[read]

    def _follow_dtypes(self, node: ViewNode) -> None:
        """Give outputs without a type that of the input which the operator says they share it with."""
        for position, output in enumerate(node.outputs):
            if output == NO_TENSOR or self._view.types[output] is not None:
                continue
            if node.op == "Cast":
                dtype = self._cast_target(node)
            else:
                like = _typed_like(node.op, position)
                read = NO_TENSOR if like is None or like >= len(node.inputs) else node.inputs[like]
                dtype = None if read == NO_TENSOR else self._dtype(read)
            if dtype is not None:
                self._dtypes[output] = dtype

    def _dtype(self, tensor: int) -> ir.DataType | None:
        if tensor in self._contents:
            return self._contents[tensor][0]
        kind = self._view.types[tensor]
        return self._dtypes.get(tensor) if kind is None else ir.DataType[kind.dtype]

    def _cast_target(self, node: ViewNode) -> ir.DataType | None:
        if node.op == "CastLike":
            return None if len(node.inputs) < 2 or node.inputs[1] == NO_TENSOR else self._dtype(node.inputs[1])
        number = node.attribute("to")
        return ir.DataType(number) if isinstance(number, int) else None

    def key(self, index: int) -> Hashable:
        """Key a node by its operator, attributes and inputs; one with bodies, or a random one, equals only itself."""
        node = self._view.nodes[index]
        if node.bodies or node.op in RANDOM_OPS:
            return "node", index
        if node.op == "Constant":
            return "constant", node.attributes
        inputs = tuple(NO_TENSOR if t == NO_TENSOR else self.number[t] for t in node.inputs)
        return node.graph, node.op, node.attributes, inputs

    def see_through_copies(self, types: Mapping[int, Hashable]) -> list[int]:
        """Return the numbers, with that of the original for a tensor that was reshaped, turned or sliced into it.

        `types` are the full types of tensors whose type the graph does not tell.
        """
        copies = _Copies(self._view, self, types)
        for node in self._view.nodes:
            if node.inputs and node.outputs and NO_TENSOR not in (node.inputs[0], node.outputs[0]):
                copies.add(node)
        return [copies.same.get(number, number) for number in self.number]


_NUMBERS = {
    "INT": ir.DataType.INT64,
    "INTS": ir.DataType.INT64,
    "FLOAT": ir.DataType.FLOAT,
    "FLOATS": ir.DataType.FLOAT,
}


def _read_constant(node: ViewNode) -> Hashable:
    """Return what a Constant holds as a tensor, also where it has numbers for an attribute; None for anything else."""
    for name, value in node.attributes:
        if name == "value":
            return value
        if isinstance(value, tuple) and len(value) == 2 and value[0] in _NUMBERS:
            dtype = _NUMBERS[value[0]]  # floats are kept as text
            array = np.array(value[1], dtype.numpy())
            return dtype, array.shape, array.tobytes()
    return None


class _Copies:
    """Walks a graph in order, and finds the tensors that equal earlier ones: moved there and back, or left as is."""

    def __init__(self, view: View, values: Values, types: Mapping[int, Hashable]) -> None:
        self.same: dict[int, int] = {}
        """For the number of a copy that of the tensor that it equals."""
        self._view, self._values, self._types = view, values, types
        self._transposed: dict[int, tuple[int, tuple[int, ...]]] = {}
        """By number, the tensor that was transposed, and by which permutation in all."""
        self._reshaped: dict[int, dict[Hashable, int]] = {}
        """By number, the tensors that it was before it was reshaped, by their types."""

    def add(self, node: ViewNode) -> None:
        """Look at a node that comes after all that it reads."""
        read, output = (self._values.number[tensor] for tensor in (node.inputs[0], node.outputs[0]))
        read = self.same.get(read, read)
        if node.op == "Transpose":
            self._add_transpose(node.attribute("perm"), read, output)
        elif node.op in RESHAPE_OPS:
            known = self._reshaped[output] = self._reshaped.get(read, {}).copy()
            if (type_ := self._full_type(node.inputs[0])) is not None:
                known.setdefault(type_, read)
            if (original := known.get(self._full_type(node.outputs[0]))) is not None:
                self.same[output] = original
        elif node.op in NEUTRAL_OPERANDS:
            self._add_arithmetic(node, output)
        elif (node.op == "Expand" or self._is_forward_slice(node)) and self._keeps_type(node, node.inputs[0]):
            self.same[output] = read

    def _add_transpose(self, perm: Hashable, read: int, output: int) -> None:
        if isinstance(perm, tuple):
            original, before = self._transposed.get(read, (read, tuple(range(len(perm)))))
            whole = tuple(before[axis] for axis in perm)
            self._transposed[output] = original, whole
            if whole == tuple(range(len(whole))):
                self.same[output] = original

    def _add_arithmetic(self, node: ViewNode, output: int) -> None:
        """See through `x + 0` and `x * 1`."""
        for data, other in ((0, 1), (1, 0)) if node.op in COMMUTATIVE_OPS else ((0, 1),):
            elements = self._values.elements(node.inputs[other])
            is_neutral = elements is not None and bool((elements == NEUTRAL_OPERANDS[node.op]).all())
            if is_neutral and self._keeps_type(node, node.inputs[data]):
                read = self._values.number[node.inputs[data]]
                self.same[output] = self.same.get(read, read)

    def _keeps_type(self, node: ViewNode, tensor: int) -> bool:
        type_ = self._full_type(tensor)
        return type_ is not None and type_ == self._full_type(node.outputs[0])

    def _full_type(self, tensor: int) -> Hashable:
        return self._view.full_type(tensor) or self._types.get(tensor)

    def _is_forward_slice(self, node: ViewNode) -> bool:
        """Say whether a node is a Slice whose steps are known and go forward."""
        steps = node.inputs[4] if len(node.inputs) > 4 else NO_TENSOR
        elements = self._values.elements(steps)
        return node.op == "Slice" and (steps == NO_TENSOR or (elements is not None and bool((elements > 0).all())))
