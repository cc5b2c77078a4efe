"""What a coarse format does to a model: the same model in single precision, and with its weights moved by a rounding.

A file in half precision or in 8 bits rounds what it computes, and its weights were rounded when it was made. The first
is undone by computing with floats, the second cannot be undone; but weights moved at random by as much as rounding
moves them show what it does::

    as it is    x ─→ Quantize ─→ QLinearMatMul (W) ─→ y
    precise     x ─→ MatMul (dequantized W) ─→ y
    dithered    x ─→ MatMul (dequantized W + step * random (-1/2, 1/2)) ─→ y
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from string import ascii_lowercase
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from hieronnx.graph.walks import proto_bodies
from hieronnx.hierarchy.categories import category_of
from hieronnx.runtime.constants import hold_constants
from hieronnx.runtime.unrounded import MADE, undo_rounding

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_ROUNDING = {TensorProto.FLOAT16: 2.0**-11, TensorProto.BFLOAT16: 2.0**-8, TensorProto.FLOAT: 2.0**-24}
"""Half a unit in the last place of a number of each type, as a part of it at most."""
_SIZES = {"Resize": (1, 3), "Upsample": (1, 2)}
"""The inputs that say how large something is to be: from which on, and up to which."""
_MOST = (1 << 24) - 1
"""The largest whole number up to which single floats have all."""
_SMALL_STEP = 2.0**-4
"""From one number to the next that a type has, where a whole number is hardly one by chance."""
_FEW_BITS, _IN_FLOATS = "MatMulNBits", 1
_UNDONE = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", _FEW_BITS})
"""They stay where rounding is undone: they make floats of weights, and the steps that activations had."""


def make_precise(
    model: onnx.ModelProto, *, is_lifted: Callable[[str], bool] = lambda _: False, keeps_ranges: bool = False
) -> onnx.ModelProto:
    """Return a model that computes in single precision what a coarse one stands for; outputs keep their names.

    Options are those of `undo_rounding`.
    """
    held = hold_constants(model)
    wide = _widen(held) if _has_half(held) else held
    made = undo_rounding(wide, is_lifted=is_lifted, keeps_ranges=keeps_ranges)
    for node in made.graph.node:
        if node.op_type == _FEW_BITS:  # it may round what it multiplies its weights with
            kept = [attribute for attribute in node.attribute if attribute.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("accuracy_level", _IN_FLOATS)])
    return made


def is_coarse(model: onnx.ModelProto) -> bool:
    """Say whether a model computes with less than single precision anywhere."""
    return _has_half(model) or bool(find_quantized(model))


def find_quantized(model: onnx.ModelProto) -> frozenset[str]:
    """Return the operators of a model that work on numbers in few bits."""
    return frozenset(n.op_type for n in model.graph.node if category_of(n.op_type, n.domain) == "quantization")


def find_unknown(precise: onnx.ModelProto) -> frozenset[str]:
    """Return the operators whose rounding was not undone."""
    return find_quantized(precise) - _UNDONE


def dither(precise: onnx.ModelProto, *, singles: bool, draw: int = 0) -> onnx.ModelProto:
    """Return a precise model with its rounded weights and constants moved by half a step at most, at random.

    `singles` says whether weights and inputs in single precision count as rounded, too; each `draw` is another.
    """
    made = hold_constants(precise)
    if made is precise:
        made = onnx.ModelProto()
        made.CopyFrom(precise)
    moving = _Moving(made, singles, draw)
    nodes = [step for node in made.graph.node for step in moving.rewrite(node)]
    body = onnx.GraphProto(node=[*moving.steps, *nodes])
    del made.graph.node[:]
    made.graph.node.extend(body.node)
    return made


class _Moving:
    """Rewrites nodes to read moved weights; what moves them is in `steps`.

    A single number in single precision is what somebody wrote down, and may be an exponent: it stays. So do numbers
    that say how large something is to be.
    """

    def __init__(self, model: onnx.ModelProto, singles: bool, draw: int) -> None:
        graph = model.graph
        types = {TensorProto.FLOAT} if singles else set()
        has_einsum = any(item.version >= 12 for item in model.opset_import if item.domain in ("", "ai.onnx"))
        self._types = {tensor.name: tensor.data_type for tensor in graph.initializer}
        self._dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer} if has_einsum else {}
        self._sizes = {name for node in graph.node for name in node.input[slice(*_SIZES.get(node.op_type, (0, 0)))]}
        rounded = {t.name: t.data_type for t in graph.initializer if t.data_type in types and prod(t.dims) > 1}
        rounded |= {v.name: v.type.tensor_type.elem_type for v in graph.input if v.type.tensor_type.elem_type in types}
        self.steps: list[onnx.NodeProto] = []
        self._moved: dict[str, str] = {}
        self._number, self._count = draw, 0
        for name, kind in rounded.items():
            if name not in self._sizes:
                self._moved[name] = self._scale(name, _ROUNDING[kind])

    def rewrite(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the nodes to put into the place of one."""
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.input[:] = [self._moved.get(name, name) for name in node.input]
        if node.op_type == "DequantizeLinear" and not node.input[0].startswith(MADE):  # a limit is no weight
            yield from self._move_dequantized(kept)
        elif node.op_type == "Cast" and node.name.startswith(_WIDENED) and node.output[0] not in self._sizes:
            yield from self._move_widened(kept)
        elif node.op_type == _FEW_BITS:
            yield from self._move_few_bits(kept)
        else:
            yield kept

    def _scale(self, name: str, part: float) -> str:
        # Towards zero, for masks have the largest number that there is, and must not become infinite.
        random, moved, kept = self._name(), self._name(), self._name()
        self.steps.append(self._draw(name, name, random, 1 - 2 * part, 1.0))
        self.steps.append(helper.make_node("Mul", [name, random], [moved]))
        self.steps.extend(self._keep_whole(name, moved, kept, _SMALL_STEP / (2 * part)))
        return kept

    def _move_widened(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        output, random = node.output[0], self._name()
        node.output[0] = self._name()
        part = _ROUNDING[int(node.name.removeprefix(_WIDENED).split()[0])]
        yield node
        yield self._draw(node.input[0], node.output[0], random, 1 - part, 1 + part)
        moved = self._name()
        yield helper.make_node("Mul", [node.output[0], random], [moved])
        yield from self._keep_whole(node.output[0], moved, output, _SMALL_STEP / (2 * part))

    def _keep_whole(self, name: str, moved: str, output: str, limit: float) -> Iterator[onnx.NodeProto]:
        """Yield what keeps whole numbers below a limit: hardly any other is rounded to them, and they may be exponents.

        A negative number to the power of 2.0004 is none.
        """
        whole, rest, none, has_rest, size, most, is_large, is_moved = (self._name() for _ in range(8))
        yield helper.make_node("Floor", [name], [whole])
        yield helper.make_node("Sub", [name, whole], [rest])
        yield _hold(none, np.float32(0))
        yield helper.make_node("Greater", [rest, none], [has_rest])
        yield helper.make_node("Abs", [name], [size])
        yield _hold(most, np.float32(limit))
        yield helper.make_node("Greater", [size, most], [is_large])
        yield helper.make_node("Or", [has_rest, is_large], [is_moved])
        yield helper.make_node("Where", [is_moved, moved, name], [output])

    def _move_dequantized(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield what adds up to half a step to each number; the steps are what ones stand for.

        Where all numbers of a step are zero, as those of an unused channel, none was rounded.
        """
        output, whole = node.output[0], node.input[0]
        node.output[0] = self._name()
        shape, one, ones, alike, steps, random, added = (self._name() for _ in range(7))
        yield node
        yield helper.make_node("Shape", [whole], [shape])
        yield helper.make_node("Constant", [], [one], value_float=1.0)
        yield helper.make_node("Expand", [one, shape], [ones])
        kind = self._types.get(whole)
        if kind is None:
            yield helper.make_node("CastLike", [ones, whole], [alike])
        else:  # that every opset has
            yield helper.make_node("Cast", [ones], [alike], to=kind)
        scaled = onnx.NodeProto()
        scaled.CopyFrom(node)
        scaled.ClearField("name")
        scaled.input[:] = [alike, node.input[1]]
        scaled.output[:] = [steps]
        yield scaled
        yield self._draw(whole, node.output[0], random, -0.5, 0.5)
        yield helper.make_node("Mul", [steps, random], [added])
        if (sharing := self._find_sharing(node)) is not None:
            size, total, used, kept = (self._name() for _ in range(4))
            letters, step = sharing
            yield helper.make_node("Abs", [node.output[0]], [size])
            yield helper.make_node("Einsum", [size], [total], equation=f"{letters}->{step}")
            yield helper.make_node("Sign", [total], [used])
            yield helper.make_node("Einsum", [added, used], [kept], equation=f"{letters},{step}->{letters}")
            added = kept
        yield helper.make_node("Add", [node.output[0], added], [output])

    def _find_sharing(self, node: onnx.NodeProto) -> tuple[str, str] | None:
        """Return a letter for each axis of weights, and that of the axis along which steps differ; None if unknown."""
        weight, scale = (self._dims.get(name) for name in node.input[:2])
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        if weight is None or scale is None or attributes.get("block_size") or len(weight) > len(ascii_lowercase):
            return None
        letters = ascii_lowercase[: len(weight)]
        if prod(scale) == 1:
            return letters, ""
        return letters, letters[attributes.get("axis", 1) if len(weight) > 1 else 0]

    def _move_few_bits(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield what adds the product with up to half a step for each number; a block of them has one step."""
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        rows, columns, block = sizes["N"], sizes["K"], sizes["block_size"]
        blocks = -(-columns // block)
        output, node.output[0] = node.output[0], self._name()
        steps, random, moved, flat, weights, added = (self._name() for _ in range(6))
        by_block, by_row, first, last, axis = (self._name() for _ in range(5))
        yield node
        for name, numbers in (
            (by_block, [rows, blocks, 1]),
            (by_row, [rows, blocks * block]),
            (first, [0]),
            (last, [columns]),
            (axis, [1]),
        ):
            yield _hold(name, np.array(numbers, np.int64))
        yield helper.make_node("Reshape", [node.input[2], by_block], [steps])
        shape = [rows, blocks, block]
        seed = self._find_seed(node.input[1])
        yield helper.make_node("RandomUniform", [], [random], low=-0.5, high=0.5, seed=seed, shape=shape)
        yield helper.make_node("Mul", [steps, random], [moved])
        yield helper.make_node("Reshape", [moved, by_row], [flat])
        yield helper.make_node("Slice", [flat, first, last, axis], [f"{flat} cut"])
        yield helper.make_node("Transpose", [f"{flat} cut"], [weights], perm=[1, 0])
        yield helper.make_node("MatMul", [node.input[0], weights], [added])
        yield helper.make_node("Add", [node.output[0], added], [output])

    def _draw(self, weight: str, like: str, output: str, low: float, high: float) -> onnx.NodeProto:
        seed = self._find_seed(weight)
        return helper.make_node("RandomUniformLike", [like], [output], low=low, high=high, seed=seed)

    def _find_seed(self, weight: str) -> float:
        """Return what to draw with for a weight: the same wherever it is read."""
        return float(crc32(f"{self._number} {weight}".encode()) & _MOST)

    def _name(self) -> str:
        self._count += 1
        return f"hieronnx dithered {self._count}"


def _hold(name: str, value: np.generic | np.ndarray[Any, Any]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


# -- half precision -----------------------------------------------------------------------------------------

_WIDENED = "hieronnx widened "
_SCALES = {"QuantizeLinear": 1, "DequantizeLinear": 1, _FEW_BITS: 2}
"""Which input has the scales of numbers in few bits."""


def _has_half(model: onnx.ModelProto) -> bool:
    return any(kind in _HALF for kind in _list_types(model))


def _list_types(model: onnx.ModelProto) -> Iterator[int]:
    """Yield the types that a model's initializers and inputs have, and that its nodes give."""
    yield from (tensor.data_type for tensor in model.graph.initializer)
    yield from (value.type.tensor_type.elem_type for value in model.graph.input)
    for node in model.graph.node:
        yield from (a.i for a in node.attribute if a.name in ("to", "dtype"))
        yield from (a.t.data_type for a in node.attribute if a.type == AttributeProto.TENSOR)


def _widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with floats in the place of all numbers in half precision."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    scales = {node.input[_SCALES[node.op_type]] for node in graph.node if node.op_type in _SCALES}
    for tensor in graph.initializer:  # the scales of quantized numbers must stay constants
        if tensor.name in scales and tensor.data_type in _HALF:
            tensor.CopyFrom(_widen_tensor(tensor))
    halves = {t.name: t.data_type for t in graph.initializer if t.data_type in _HALF}
    halves |= {v.name: v.type.tensor_type.elem_type for v in graph.input if v.type.tensor_type.elem_type in _HALF}
    renamed = {name: f"{name}/wide" for name in halves}
    casts = [
        helper.make_node("Cast", [name], [renamed[name]], name=f"{_WIDENED}{kind} {number}", to=TensorProto.FLOAT)
        for number, (name, kind) in enumerate(halves.items())
    ]
    nodes = [_widen_node(node, renamed) for node in graph.node]
    kept = onnx.GraphProto(node=[*casts, *nodes])
    del graph.node[:], graph.value_info[:]
    graph.node.extend(kept.node)
    for value in graph.output:
        if value.type.tensor_type.elem_type in _HALF:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return made


def _widen_node(node: onnx.NodeProto, renamed: Mapping[str, str]) -> onnx.NodeProto:
    node.input[:] = [renamed.get(name, name) for name in node.input]
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i in _HALF:
            attribute.i = TensorProto.FLOAT
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in _HALF:
            attribute.t.CopyFrom(_widen_tensor(attribute.t))
    for _, body in proto_bodies(node):
        for tensor in body.initializer:
            if tensor.data_type in _HALF:
                tensor.CopyFrom(_widen_tensor(tensor))
        for value in (*body.input, *body.output, *body.value_info):
            if value.type.tensor_type.elem_type in _HALF:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for inner in body.node:
            _widen_node(inner, renamed)
    return node


def _widen_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    array = numpy_helper.to_array(tensor).astype("float32")
    return numpy_helper.from_array(array, tensor.name)
