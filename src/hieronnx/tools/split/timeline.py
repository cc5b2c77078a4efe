"""When each node of a model runs, by the calls in their order of execution, and what it costs.

A node runs not before its call begins, and not before what it reads is made. So every place between two calls is a
cut::

    call    a        b                  root
    node    Mul  →   Relu  →  Neg  →    Add(Neg, Mul)
    time    1        2        2         2               cut before b: Mul | Relu Neg Add, and Mul's output crosses

Literals run when they are first read. What is known of a node's call may be wrong; the cut is right nevertheless,
since no node runs before those that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.graph.shapes import infer_types
from hieronnx.graph.sizes import evaluate_size
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.model import ValueTypes
from hieronnx.tools.extract.source import Source


@dataclass(frozen=True)
class Timeline:
    """When the nodes of a model's main graph run."""

    source: Source
    nodes: Sequence[int]
    """By their numbers in the view, in the order of the file."""
    times: Mapping[int, int]
    """For each node the position of a call: it runs in it, or after it began."""

    @cached_property
    def places(self) -> list[int]:
        """The times at which work is done, in order: before each but the first is a place to cut."""
        return sorted({self.times[index] for index in self.nodes if not is_literal_node(self.source, index)})

    def stage_of(self, index: int, cuts: Sequence[int]) -> int:
        """Return the stage of a node, by the times of the cuts in order."""
        return sum(self.times[index] >= cut for cut in cuts)

    def name_cut(self, time: int) -> CallId:
        """Return the call that a cut is before."""
        return self.source.hierarchy.calls[time].id


def is_literal_node(source: Source, index: int) -> bool:
    """Say whether a node depends on nothing that is fed."""
    makes = source.view.nodes[index].makes
    return bool(makes) and all(source.view.flow.literal[tensor] for tensor in makes)


def make_timeline(source: Source) -> Timeline:
    """Find when each node runs.

    Raises:
        HieronnxError: If a node reads what is made after it.
    """
    view, nodes = source.view, source.view.nodes_in[0]
    calls = source.hierarchy.calls
    begins = {call.id: position for position, call in enumerate(calls)}
    ends = dict(begins)
    for call in reversed(calls):  # each after the one above it
        if call.parent is not None:
            ends[call.parent] = max(ends[call.parent], ends[call.id])
    readers = _find_readers(source, nodes)
    latest: dict[int, int] = {}
    for index in reversed(nodes):
        if any(reader not in latest for reader in readers[index]):
            name = source.attributions[index].name or source.attributions[index].output
            raise HieronnxError(f"what '{name}' makes is read before it; sort the file's nodes, or fix what made it")
        later = (latest[reader] for reader in readers[index])
        latest[index] = min((ends[source.attributions[index].scope], *later))
    times: dict[int, int] = {}
    literals = []
    for index in nodes:
        if is_literal_node(source, index):
            literals.append(index)
            continue
        producers = {view.producers[tensor] for tensor in view.nodes[index].reads}
        made = (times[producer] for producer in producers if producer is not None and producer in times)
        times[index] = max((min(begins[source.attributions[index].scope], latest[index]), *made))
    for index in reversed(literals):
        read = [times[reader] for reader in readers[index] if reader in times]
        times[index] = min(read, default=begins[source.attributions[index].scope])
    return Timeline(source, nodes, times)


def _find_readers(source: Source, nodes: Sequence[int]) -> dict[int, list[int]]:
    """Return for each node those that read what it makes, in their bodies too."""
    readers: dict[int, list[int]] = {index: [] for index in nodes}
    for index in nodes:
        for tensor in source.view.nodes[index].reads:
            producer = source.view.producers[tensor]
            if producer in readers:
                readers[producer].append(index)
    return readers


# -- the sizes of tensors ---------------------------------------------------------------------------------


class TensorSizes:
    """The types of tensors, and how many bytes they take where all sizes are known."""

    def __init__(self, source: Source, types: ValueTypes, dims: Mapping[str, int]) -> None:
        self._source, self._types, self._dims = source, types, dims

    def describe(self, tensor: int) -> tuple[str | None, list[int | str | None] | None]:
        """Return the element type and the sizes of a tensor, as the file or its inference has them."""
        return _read_type(self._types[tensor])

    def count_bytes(self, tensor: int) -> int | None:
        """Return how many bytes a tensor takes, at the given sizes of dynamic axes; None where that is not known."""
        dtype, shape = self.describe(tensor)
        if shape is None or not all(isinstance(self._fix(size), int) for size in shape):
            value = self._source.values.get(tensor)
            dtype, shape = _read_type(self._inferred.get(value)) if value is not None else (None, None)
        if dtype is None or shape is None or dtype in ("STRING", "UNDEFINED"):
            return None
        sizes = [self._fix(size) for size in shape]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) < len(sizes):
            return None
        return (math.prod(known) * ir.DataType[dtype].bitwidth + 7) // 8

    def _fix(self, size: int | str | None) -> int | str | None:
        return evaluate_size(size, self._dims) if isinstance(size, str) else size

    @cached_property
    def _inferred(self) -> Mapping[ir.Value, onnx.ValueInfoProto]:
        try:
            return infer_types(self._source.opened.model, self._dims, lambda name: self._fix(name) is not None)
        except HieronnxError:  # then sizes are not known; whoever needs types says so
            return {}


def _read_type(info: onnx.ValueInfoProto | None) -> tuple[str | None, list[int | str | None] | None]:
    if info is None or not info.type.HasField("tensor_type"):
        return None, None
    tensor = info.type.tensor_type
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return ir.DataType(tensor.elem_type).name, shape


def count_weight(source: Source, tensor: int) -> int:
    """Return how many bytes an initializer takes."""
    constant = source.values[tensor].const_value
    return 0 if constant is None or constant.dtype == ir.DataType.STRING else constant.nbytes


def list_weights(source: Source, nodes: Iterable[int]) -> Iterator[int]:
    """Yield the initializers that nodes read, each once."""
    view = source.view
    yield from dict.fromkeys(t for i in nodes for t in view.nodes[i].reads if t in view.constants)
