"""Tensors in blocks of channels, as ONNX Runtime's convolutions read and write them, put back into the usual order.

Such tensors have sizes [n,c,h,w] like any others, but their elements are those of [n,c/b,h,w,b]; filters are in a form
of their own. Both are filled up with zeros to whole blocks:

    x [1,3,8,8] ─ nchwc::Conv (filter [16,3,3,3]) ─ t [1,16,8,8]         12 channels of a model, in blocks of 8 or 16
    t [1,16,8,8] ─ nchwc::ReorderOutput (channels 12) ─ y [1,12,8,8]

A filter tells how many channels a model has, and with its weights at hand how many are in a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hieronnx.attribute.weight_index import Array
from hieronnx.files.weights import Contents
from hieronnx.graph.operators import BLOCKED_DOMAIN
from hieronnx.graph.view import View, ViewNode

BLOCK_SIZES = (8, 16, 4)
"""How many channels a block may have: it depends on the processor that a file was optimized on."""
_CONV, _TO_USUAL = f"{BLOCKED_DOMAIN}::Conv", f"{BLOCKED_DOMAIN}::ReorderOutput"
_AXES = 4


@dataclass(frozen=True, slots=True)
class BlockedTensors:
    """The tensors of a file that are in blocks.

    Attributes:
        block: How many channels are in a block.
        channels: For each tensor how many channels it has without what fills up the last block; None where that is not
            known.
    """

    block: int
    channels: Mapping[int, int | None]

    def decode(self, tensor: int, array: Array) -> Array:
        """Return a tensor in the usual order; one that is not in blocks as it is."""
        if tensor not in self.channels or array.ndim != _AXES or array.shape[1] % self.block:
            return array
        count, channels, *size = array.shape
        blocks = array.reshape(count, channels // self.block, *size, self.block)
        return blocks.transpose(0, 1, 4, 2, 3).reshape(array.shape)[:, : self.channels[tensor]]


def find_blocked(view: View, contents: Contents, block: int) -> BlockedTensors:
    """Find the tensors in blocks: what such operators make, and what others make of it.

    Raises:
        HieronnxError: If a filter cannot be read.
    """
    channels: dict[int, int | None] = {}
    for node in _walk_blocked(view):
        read = [channels[tensor] for tensor in node.reads if tensor in channels]
        known = [count for count in read if count is not None]
        count = known[0] if known else None
        if node.op == _CONV:
            count = _count_outputs(node, contents, block)
        elif node.op == "Concat":
            count = sum(known) if len(known) == len(read) else None
        channels.update(dict.fromkeys(node.makes, count))
    return BlockedTensors(block, channels)


def find_usual(view: View) -> dict[int, int | None]:
    """Return for each tensor in blocks the one that has it in the usual order; None where there is none."""
    usual = {node.inputs[0]: node.makes[0] for node in view.nodes if node.op == _TO_USUAL}
    return {tensor: usual.get(tensor) for node in _walk_blocked(view) for tensor in node.makes}


def _walk_blocked(view: View) -> Iterator[ViewNode]:
    """Yield the nodes that make tensors in blocks."""
    blocked: set[int] = set()
    for node in view.nodes:
        if node.op != _TO_USUAL and (node.op.startswith(f"{BLOCKED_DOMAIN}::") or not blocked.isdisjoint(node.reads)):
            blocked.update(node.makes)
            yield node


def find_filters(view: View) -> set[int]:
    """Return the filters that are in blocks."""
    return {node.inputs[1] for node in view.nodes if node.op == _CONV}


def decode_filter(array: Array, block: int) -> Array | None:
    """Return a filter as a model has it; None if it cannot be in blocks of this size.

    Of few input channels, as of a depthwise convolution, the output channels alone are in blocks.
    """
    if array.ndim != _AXES or array.shape[0] % block:
        return None
    outputs, inputs, *kernel = array.shape
    if inputs < block:
        blocks = array.reshape(outputs // block, inputs, *kernel, block).transpose(0, 4, 1, 2, 3)
    elif inputs % block == 0:
        blocks = array.reshape(outputs // block, inputs // block, *kernel, block, block).transpose(0, 5, 1, 4, 2, 3)
    else:
        return None
    usual = blocks.reshape(array.shape)
    return usual[: _count_used(usual, 0, block), : _count_used(usual, 1, block)]


def _count_used(array: Array, axis: int, block: int) -> int:
    """Return how many channels there are without those, all zero, that fill up the last block."""
    size = int(array.shape[axis])
    used = _find_last(np.asarray(np.moveaxis(array, axis, 0).reshape(size, -1).any(axis=1)))
    return max(used, size - block + 1) if used else size


def _count_outputs(conv: ViewNode, contents: Contents, block: int) -> int | None:
    held = [contents.read(tensor) for tensor in conv.inputs[1:3] if tensor in contents.tensors]
    usual = decode_filter(held[0], block) if held else None
    return None if usual is None else max(len(usual), *map(_find_last, held[1:]), 0)


def _find_last(numbers: Array) -> int:
    """Return the place after the last number that is not zero."""
    places = np.flatnonzero(numbers)
    return int(places[-1]) + 1 if places.size else 0
