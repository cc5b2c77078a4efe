"""Whether the weights of a graph are those of another, by a sample of their contents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel
from hieronnx.files.weights import Contents
from hieronnx.graph.view import View

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_BYTES = frozenset(
    dtype
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING, ir.DataType.BOOL) and dtype.bitwidth <= 8
)
_FEWEST_ELEMENTS = 8
_MOST_ELEMENTS = 1 << 20
_SAMPLE = 32
_MOST_READ = 512
_MOST_CANDIDATES = 100
_ROUNDING = 2e-3  # of half precision, bfloat16 included
_PROPORTIONAL = 0.99

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many weights after could be compared with some before, and how many of them hold the same."""

    compared: int
    agreeing: int
    quantized: bool
    """Whether the graph after has integers for weights, as the graph before has not: what is float may be new then."""

    @property
    def share(self) -> float:
        """The share of those that agree; 0 if there are none to compare."""
        return self.agreeing / self.compared if self.compared else 0.0


def compare_contents(before: OpenedModel, a: View, after: OpenedModel, b: View) -> Agreement:
    """Compare a sample of the float weights after with those of their size before.

    Of weights that have one value throughout, and of those that cannot be read, nothing can be told.
    """
    old, new = _Weights.of(before, a), _Weights.of(after, b)
    candidates: dict[int, list[int]] = defaultdict(list)
    for tensor, size in old.floats.items():
        candidates[size].append(tensor)
    comparable = _find_comparable(a, b)
    numbers = {a.names[tensor]: tensor for tensor in old.floats}
    judged: list[bool] = []
    for tensor in _choose(new, candidates):
        content, size = new.read(tensor), new.floats[tensor]
        if content is None or not np.ptp(content) > 0:
            continue
        named = numbers.get(b.names[tensor])
        first = () if named is None or old.floats[named] != size else (named,)
        agrees = old.has_same(content, (*first, *candidates[size][:_MOST_CANDIDATES]))
        if agrees or tensor in comparable:
            judged.append(agrees)
        if len(judged) == _SAMPLE:
            break
    return Agreement(len(judged), sum(judged), new.has_bytes and not old.has_bytes)


def _choose(weights: _Weights, candidates: dict[int, list[int]]) -> Sequence[int]:
    """Choose the weights to look at: those of a size that few have first, of these the smallest."""
    found = [(len(candidates[size]), size, tensor) for tensor, size in weights.floats.items() if size in candidates]
    return [tensor for _, _, tensor in nsmallest(_MOST_READ, found)]


def _find_comparable(a: View, b: View) -> set[int]:
    """Find what operators read that are in both graphs: for others a tool may have laid weights out in another way."""
    operators = {node.op for node in a.nodes}
    return {tensor for node in b.nodes if node.op in operators for tensor in node.inputs}


@dataclass(frozen=True, slots=True)
class _Weights:
    """The initializers of a main graph, read when they are asked for."""

    contents: Contents
    floats: dict[int, int]
    """How many elements each has that can be compared."""
    has_bytes: bool
    """Whether there are some with elements of 8 bits or less."""
    held: dict[int, _Array | None] = field(default_factory=dict)

    @classmethod
    def of(cls, opened: OpenedModel, view: View) -> _Weights:
        """Find the weights of an opened model."""
        contents = Contents.of(opened, view)
        floats, has_bytes = {}, False
        for tensor in view.constants:
            weight = None if view.tensor_graphs[tensor] else contents.tensors.get(tensor)
            size = 0 if weight is None else weight.size
            if weight is None or size < _FEWEST_ELEMENTS:
                continue
            if weight.dtype in _FLOATS and size <= _MOST_ELEMENTS:
                floats[tensor] = size
            has_bytes = has_bytes or weight.dtype in _BYTES
        return cls(contents, floats, has_bytes)

    def has_same(self, content: _Array, tensors: Iterable[int]) -> bool:
        """Say whether one of these weights holds the same."""
        return any((held := self.read(tensor)) is not None and _hold_same(content, held) for tensor in tensors)

    def read(self, tensor: int) -> _Array | None:
        """Read a weight; None where it is not there: a hierarchy can be carried without the weights."""
        if tensor not in self.held:
            try:
                self.held[tensor] = self.contents.read(tensor).astype(np.float64)
            except HieronnxError:
                self.held[tensor] = None
        return self.held[tensor]


def _hold_same(a: _Array, b: _Array) -> bool:
    """Say whether two weights of one size hold the same: as it was, rounded, transposed, or scaled by channel."""
    limit = _ROUNDING * float(np.abs(a).max())
    if bool(np.abs(np.sort(a, axis=None) - np.sort(b, axis=None)).max() <= limit):
        return True
    return a.shape == b.shape and _are_proportional(_first_channel(a), _first_channel(b))


def _first_channel(weight: _Array) -> _Array:
    return (weight[0] if weight.ndim > 1 and weight[0].size >= _FEWEST_ELEMENTS else weight).ravel()


def _are_proportional(a: _Array, b: _Array) -> bool:
    if not (np.ptp(a) > 0 and np.ptp(b) > 0):
        return False
    return abs(float(np.corrcoef(a, b)[0, 1])) > _PROPORTIONAL
