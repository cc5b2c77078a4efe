"""A quantized file with its rounding undone: every tensor in few bits is one of floats that holds what it stands for.

Rounding adds up from node to node, until nothing in a file of eight bits has the values of its model. What is left when
it is undone is the rounding of the weights. What cannot stand for numbers below zero still holds none, for quantizers
merge a Relu into that; other limits are those of the inputs that a file was calibrated with, and go:

    q = QuantizeLinear (x, s, z)              q = Max (x, -s/2 or minus infinity)
    r = QLinearMatMul (q, s, z, W, …, t, u)   r = Max (MatMul (q, W * …), -t/2 or minus infinity)
    y = DequantizeLinear (r, t, u)            y = Identity (r)

Each output keeps its name. An operator of which the plain form is not known stays as it is, with what it reads rounded
before it and what it gives made floats behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hieronnx.graph.operators import LOOKUP_OPS
from hieronnx.runtime.constants import hold_constants

_LOWEST = {TensorProto.UINT8: 0, TensorProto.INT8: -128, TensorProto.UINT16: 0, TensorProto.INT16: -32768}
"""The types in few bits, and the lowest number of each."""
_HIGHEST = {TensorProto.UINT8: 255, TensorProto.INT8: 127, TensorProto.UINT16: 65535, TensorProto.INT16: 32767}
_FEW = frozenset({*_LOWEST, TensorProto.INT32})
_PREFIXES = ("QLinear", "Q")
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_DYNAMIC = "DynamicQuantizeLinear"
_INTEGER = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
MADE = "hieronnx unrounded "
"""What the names of tensors that are made here begin with."""
_UNUSED = frozenset({"opset"})
"""Attributes that say nothing of what an operator computes."""


def has_rounding(model: onnx.ModelProto) -> bool:
    """Say whether a model has tensors in few bits that are not its weights alone."""
    return any(has_range(node) for node in model.graph.node)


def has_range(node: onnx.NodeProto) -> bool:
    """Say whether a node gives numbers in few bits, in a range that is fixed."""
    return node.op_type == _QUANTIZE or bool(_name_plain(node))


def undo_rounding(
    model: onnx.ModelProto, *, is_lifted: Callable[[str], bool] = lambda _: False, keeps_ranges: bool = False
) -> onnx.ModelProto:
    """Return a model that computes with floats what a quantized one stands for; nodes in bodies stay as they are.

    Args:
        model: The quantized model.
        is_lifted: Says of the tensors of `list_limited` which may hold numbers below zero after all.
        keeps_ranges: Whether all tensors stay within the numbers that they can stand for, and only steps go.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.value_info[:]
    rewriting = _Rewriting(model, is_lifted, keeps_ranges)
    made.graph.node.extend(step for node in model.graph.node for step in rewriting.rewrite(node))
    made.graph.initializer.extend(rewriting.held.values())
    for value in made.graph.output:
        if value.name in rewriting.floats and value.type.tensor_type.elem_type in _FEW:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return made


def list_limited(model: onnx.ModelProto) -> frozenset[str]:
    """List the tensors in few bits that cannot stand for numbers below zero.

    A Relu was merged into them, or they had none when the file was calibrated: the file does not tell.
    """
    held = hold_constants(model)
    rewriting = _Rewriting(held)
    for node in held.graph.node:
        for _ in rewriting.rewrite(node):
            pass
    return frozenset(rewriting.limited)


@dataclass(frozen=True, slots=True)
class _Operand:
    """An input of a quantized operator: with its scale and zero point, or as it is."""

    name: str
    scale: str = ""
    zero: str = ""


@dataclass(slots=True)
class _Signature:
    """The inputs of a quantized operator."""

    operands: list[_Operand] = field(default_factory=list)
    result: _Operand | None = None
    """The scale and zero point of what it gives."""


class _Rewriting:
    """Rewrites the nodes of a graph one by one.

    Attributes:
        floats: The tensors in few bits that hold floats now.
        held: The constants that are needed, by type and number.
        limited: Those of the tensors that cannot stand for numbers below zero.
    """

    def __init__(
        self, model: onnx.ModelProto, is_lifted: Callable[[str], bool] = lambda _: False, keeps_ranges: bool = False
    ) -> None:
        self._is_lifted, self._keeps_ranges = is_lifted, keeps_ranges
        self._version = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._count = 0
        self.floats: set[str] = set()
        self.limited: set[str] = set()
        self._kinds: dict[str, _Operand] = {}
        self.held: dict[tuple[int, float], TensorProto] = {}

    def rewrite(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the nodes to put into the place of one."""
        signature, plain = self._read_signature(node), _name_plain(node)
        if node.op_type == _QUANTIZE and self._is_rounded(signature.operands[0].zero):
            yield from self._bound(node.input[0], signature.operands[0], node.output[0])
        elif node.op_type == _DYNAMIC:
            yield from self._scale(node)
        elif node.op_type in _INTEGER:
            yield from self._compute_integers(node)
        elif node.op_type == _DEQUANTIZE and node.input[0] in self.floats:
            steps, made = self._restate(node.input[0], signature.operands[0])
            yield from (*steps, helper.make_node("Identity", [made], list(node.output)))
        elif plain and (attributes := self._keep_attributes(node, plain)) is not None:
            yield from self._compute(node, plain, attributes, signature)
        elif self.floats.isdisjoint(node.input) or not any(operand.zero for operand in signature.operands):
            if self._moves_floats(node):
                self.floats.update(node.output)
                kind = next((self._kinds[name] for name in node.input if name in self._kinds), None)
                self._kinds.update((name, kind) for name in node.output if kind is not None)
            yield node
        else:
            yield from self._surround(node, signature)

    def _scale(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield what scales a tensor as it would be scaled before it is rounded, by the range that it has."""
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.output[0] = self._name()
        self.floats.add(node.output[0])
        yield from (kept, helper.make_node("Div", [node.input[0], node.output[1]], [node.output[0]]))

    def _compute_integers(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the plain form of a product of whole numbers; an operand in few bits has steps of 1."""
        operands = []
        for position in (0, 1):
            name = node.input[position]
            if name not in self.floats:
                zeros, made = list(filter(None, node.input[position + 2 : position + 3])), self._name()
                steps = yield from self._make_ones(zeros)
                yield helper.make_node(_DEQUANTIZE, [name, steps, *zeros], [made], axis=_find_axis(node))
                name = made
            operands.append(name)
        self.floats.add(node.output[0])
        plain = helper.make_node(_INTEGER[node.op_type], operands, list(node.output))
        plain.attribute.extend(node.attribute)
        yield plain

    def _make_ones(self, like: Sequence[str]) -> Generator[onnx.NodeProto, None, str]:
        """Yield what makes as many ones as there are zero points, one for all or one for each channel; name them."""
        one = self._hold(1.0, TensorProto.FLOAT)
        if not like:
            return one
        shape, ones = self._name(), self._name()
        yield helper.make_node("Shape", like, [shape])
        yield helper.make_node("Expand", [one, shape], [ones])
        return ones

    def _compute(
        self, node: onnx.NodeProto, plain: str, attributes: Sequence[onnx.AttributeProto], signature: _Signature
    ) -> Iterator[onnx.NodeProto]:
        """Yield the plain form of a quantized operator."""
        inputs = []
        for operand in signature.operands:
            steps, name = self._make_plain(node, operand, signature.operands)
            yield from steps
            inputs.append(name)
        made = self._name() if signature.result else node.output[0]
        computed = helper.make_node(plain, inputs, [made])
        computed.attribute.extend(attributes)
        yield computed
        if signature.result is not None:
            yield from self._bound(made, signature.result, node.output[0])

    def _make_plain(
        self, node: onnx.NodeProto, operand: _Operand, others: Sequence[_Operand]
    ) -> tuple[list[onnx.NodeProto], str]:
        constant = self._constants.get(operand.name)
        if operand.zero and operand.name not in self.floats:
            made = self._name()
            axis = {"axis": _find_axis(node)} if self._is_by_channel(operand.scale) else {}
            return [helper.make_node(_DEQUANTIZE, [operand.name, operand.scale, operand.zero], [made], **axis)], made
        if constant is not None and constant.data_type == TensorProto.INT32:  # a bias has the scale of the product
            steps = [helper.make_node("Cast", [operand.name], [self._name()], to=TensorProto.FLOAT)]
            for other in others[:2]:
                steps.append(helper.make_node("Mul", [steps[-1].output[0], other.scale], [self._name()]))
            return steps, steps[-1].output[0]
        return self._restate(operand.name, operand) if operand.zero else ([], operand.name)

    def _restate(self, name: str, operand: _Operand) -> tuple[list[onnx.NodeProto], str]:
        """Return what makes the numbers that a reader takes a tensor for: it may have another scale than its maker."""
        kind = self._kinds.get(name)
        if kind is None or not (self._differ(kind.scale, operand.scale) or self._differ(kind.zero, operand.zero)):
            return [], name
        zeros = [helper.make_node("Cast", [z], [self._name()], to=TensorProto.FLOAT) for z in (kind.zero, operand.zero)]
        steps = [helper.make_node("Div", [name, kind.scale], [self._name()])]
        others = (zeros[0].output[0], zeros[1].output[0], operand.scale)
        for operator, other in zip(("Add", "Sub", "Mul"), others, strict=True):
            steps.append(helper.make_node(operator, [steps[-1].output[0], other], [self._name()]))
        return [*zeros, *steps], steps[-1].output[0]

    def _differ(self, name: str, other: str) -> bool:
        """Say whether two scales or zero points of a whole tensor have other numbers; not where these are elsewhere."""
        tensors = [self._constants.get(tensor) for tensor in (name, other)]
        if name == other or any(t is None or t.data_location == TensorProto.EXTERNAL for t in tensors):
            return False
        a, b = (numpy_helper.to_array(tensor) for tensor in tensors if tensor is not None)
        return bool(a.size == b.size == 1 and a.item() != b.item())

    def _bound(self, tensor: str, kind: _Operand, output: str) -> Iterator[onnx.NodeProto]:
        """Yield what bounds a tensor that holds nothing below zero, in few bits, to what would be rounded to that."""
        self.floats.add(output)
        self._kinds[output] = kind
        if _is_lowest(self._constants[kind.zero]):
            self.limited.add(output)
        if self._keeps_ranges:
            yield from self._clip(tensor, kind, output)
            return
        if self._is_lifted(output):
            yield helper.make_node("Identity", [tensor], [output])
            return
        data_type = self._constants[kind.zero].data_type
        lowest, half, is_zero, limit = (self._name() for _ in range(4))
        zero, infinite = self._hold(0.0, TensorProto.FLOAT), self._hold(-np.inf, TensorProto.FLOAT)
        reads = [self._hold(_LOWEST[data_type], data_type), kind.scale, kind.zero]
        yield helper.make_node(_DEQUANTIZE, reads, [lowest])
        yield helper.make_node("Mul", [kind.scale, self._hold(-0.5, TensorProto.FLOAT)], [half])
        yield helper.make_node("Equal", [lowest, zero], [is_zero])
        yield helper.make_node("Where", [is_zero, half, infinite], [limit])
        yield helper.make_node("Max", [tensor, limit], [output])

    def _clip(self, tensor: str, kind: _Operand, output: str) -> Iterator[onnx.NodeProto]:
        """Yield what bounds a tensor to the numbers that are rounded to one that it can stand for."""
        data_type = self._constants[kind.zero].data_type
        half, above = self._name(), self._name()
        yield helper.make_node("Mul", [kind.scale, self._hold(0.5, TensorProto.FLOAT)], [half])
        limits = []
        for numbers, away in ((_LOWEST, "Sub"), (_HIGHEST, "Add")):
            end, limit = self._name(), self._name()
            reads = [self._hold(numbers[data_type], data_type), kind.scale, kind.zero]
            yield helper.make_node(_DEQUANTIZE, reads, [end])
            yield helper.make_node(away, [end, half], [limit])
            limits.append(limit)
        yield helper.make_node("Max", [tensor, limits[0]], [above])
        yield helper.make_node("Min", [above, limits[1]], [output])

    def _hold(self, number: float, data_type: int) -> str:
        """Return the name of a constant."""
        key = data_type, number
        if key not in self.held:
            array = np.array(number, helper.tensor_dtype_to_np_dtype(data_type))
            self.held[key] = numpy_helper.from_array(array, self._name())
        return str(self.held[key].name)

    def _surround(self, node: onnx.NodeProto, signature: _Signature) -> Iterator[onnx.NodeProto]:
        """Yield a quantized operator with its inputs rounded before it, and what it gives made floats behind it."""
        rounded = {}
        for operand in signature.operands:
            if operand.zero and operand.name in self.floats:
                rounded[operand.name] = self._name()
                reads = [operand.name, operand.scale, operand.zero]
                yield helper.make_node(_QUANTIZE, reads, [rounded[operand.name]])
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.input[:] = [rounded.get(name, name) for name in node.input]
        if signature.result is not None:
            kept.output[0] = self._name()
            self.floats.add(node.output[0])
            reads = [kept.output[0], signature.result.scale, signature.result.zero]
            yield from (kept, helper.make_node(_DEQUANTIZE, reads, [node.output[0]]))
        else:
            yield kept

    # -- what a node says

    def _read_signature(self, node: onnx.NodeProto) -> _Signature:
        """Read which inputs are operands, and which their scales and zero points: those always follow them."""
        signature, inputs, place = _Signature(), list(node.input), 0
        while place < len(inputs):
            if self._is_kind(inputs[place : place + 2]):
                signature.result = _Operand("", *inputs[place : place + 2])
                place += 2
            elif self._is_kind(inputs[place + 1 : place + 3]) and not self._is_wide(inputs[place]):
                signature.operands.append(_Operand(*inputs[place : place + 3]))
                place += 3
            else:
                signature.operands.append(_Operand(inputs[place]))
                place += 1
        return signature

    def _moves_floats(self, node: onnx.NodeProto) -> bool:
        """Say whether a node passes on numbers that were in few bits, whatever they are; a Cast says what it gives."""
        data = node.input[:1] if node.op_type in LOOKUP_OPS else node.input
        return node.op_type != "Cast" and not self.floats.isdisjoint(data)

    def _is_kind(self, pair: Sequence[str]) -> bool:
        """Say whether two inputs are a scale and a zero point."""
        if len(pair) < 2 or not set(pair) <= self._constants.keys():
            return False
        scale, zero = (self._constants[name].data_type for name in pair)
        return bool(scale == TensorProto.FLOAT and zero in _LOWEST)

    def _is_wide(self, name: str) -> bool:
        """Say whether an input is missing, or a constant that is not in few bits."""
        return not name or (name in self._constants and self._constants[name].data_type not in _LOWEST)

    def _is_rounded(self, zero: str) -> bool:
        return zero in self._constants and self._constants[zero].data_type in _LOWEST

    def _is_by_channel(self, scale: str) -> bool:
        return int(np.prod(self._constants[scale].dims, dtype=np.int64)) > 1

    def _keep_attributes(self, node: onnx.NodeProto, plain: str) -> list[onnx.AttributeProto] | None:
        """Return the attributes for the plain form; None if one of them has no place there."""
        known = onnx.defs.get_schema(plain, self._version).attributes
        kept = [attribute for attribute in node.attribute if attribute.name in known]
        others = (a for a in node.attribute if a.name not in known and a.name not in _UNUSED)
        return None if any(helper.get_attribute_value(attribute) for attribute in others) else kept

    def _name(self) -> str:
        self._count += 1
        return f"{MADE}{self._count}"


def _name_plain(node: onnx.NodeProto) -> str:
    """Return the operator that does with floats what a quantized one does; nothing if there is none."""
    if node.op_type in (_QUANTIZE, _DEQUANTIZE):
        return ""
    plain = next((node.op_type[len(p) :] for p in _PREFIXES if node.op_type.startswith(p)), "")
    return plain if plain and onnx.defs.has(plain) else ""


def _is_lowest(zero: TensorProto) -> bool:
    """Say whether a zero point is the lowest number of its type; of one in a file of its own that is not known."""
    if zero.data_location == TensorProto.EXTERNAL:
        return False
    return bool((numpy_helper.to_array(zero) == _LOWEST[zero.data_type]).all())


def _find_axis(node: onnx.NodeProto) -> int:
    """Return the axis of the weights of a product that has the channels of what it gives."""
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if turned or "Conv" in node.op_type else -1
