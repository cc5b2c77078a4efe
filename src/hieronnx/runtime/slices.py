"""Slices of a flat model: what leads from tensors whose values are given to others, many such slices in one model.

    file     x ─→ A ─→ y ─→ B ─→ z        slices   fed/x ─→ A ─→ 0/y        fed/y ─→ B ─→ 1/z

Each slice has its own copy of its nodes, so that a tensor can be computed in one and given to another. Weights are
those of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from hieronnx.graph.walks import proto_bodies
from hieronnx.runtime.blocks import read_usual_forms
from hieronnx.runtime.constants import read_constant
from hieronnx.runtime.flattening import rename_node

_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a graph.

    Attributes:
        targets: The tensors that it computes, by name.
        nodes: Its nodes by their positions, in order.
        fed: The tensors that it must be given.
    """

    targets: tuple[str, ...]
    nodes: tuple[int, ...]
    fed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinedSlices:
    """Slices in one model.

    Attributes:
        model: The model.
        feeds: The tensor that each of its inputs is to be given.
        outputs: For each slice the model's outputs, by the tensors of the file that they are.
    """

    model: onnx.ModelProto
    feeds: Mapping[str, str]
    outputs: Sequence[Mapping[str, str]]

    @property
    def names(self) -> list[str]:
        """The names of all its outputs."""
        return [name for made in self.outputs for name in made.values()]


class SliceGraph:
    """The nodes of a flat model and who makes what; what is in blocks of channels is read from its usual form."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = read_usual_forms(model)
        self.nodes = list(self.model.graph.node)
        self.producers = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.reads = [tuple(dict.fromkeys(_list_reads(node))) for node in self.nodes]
        self._inputs = {value.name for value in model.graph.input}

    @cached_property
    def _initializers(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def _sparse_initializers(self) -> Mapping[str, onnx.SparseTensorProto]:
        return {sparse.values.name: sparse for sparse in self.model.graph.sparse_initializer}

    def is_held(self, tensor: str) -> bool:
        """Say whether a tensor is an initializer."""
        return tensor in self._initializers or tensor in self._sparse_initializers

    def is_half(self, tensor: str) -> bool:
        """Say whether a tensor is an initializer or a constant in half precision."""
        held = self._initializers.get(tensor)
        if held is None and tensor in self.producers:
            held = read_constant(self.nodes[self.producers[tensor]])
        return held is not None and held.data_type in _HALF

    def is_rounded(self, node: int) -> bool:
        """Say whether a node gives what it reads in half precision."""
        attributes = self.nodes[node].attribute
        return self.nodes[node].op_type == "Cast" and any(a.name == "to" and a.i in _HALF for a in attributes)

    def cut(self, targets: Sequence[str], is_given: Callable[[str], bool]) -> Slice:
        """Return what leads to some tensors from those that are given, inputs of the model, and weights."""
        members: set[int] = set()
        fed: dict[str, None] = {}
        pending = [self.producers[target] for target in targets]
        while pending:
            index = pending.pop()
            if index in members:
                continue
            members.add(index)
            for name in self.reads[index]:
                if self.is_held(name):
                    continue
                producer = self.producers.get(name)
                if producer is None or is_given(name):
                    fed[name] = None
                else:
                    pending.append(producer)
        return Slice(tuple(targets), tuple(sorted(members)), tuple(fed))

    def join(self, slices: Sequence[Slice], types: Mapping[str, int]) -> JoinedSlices:
        """Put slices into one model; `types` has the element types of the tensors that are fed."""
        joined = onnx.ModelProto(ir_version=self.model.ir_version)
        joined.opset_import.extend(self.model.opset_import)
        graph = joined.graph
        graph.name = "slices"
        feeds: dict[str, str] = {}
        outputs = []
        held: dict[str, None] = {}
        for number, piece in enumerate(slices):
            names = {name: f"fed/{name}" for name in piece.fed}
            feeds.update((f"fed/{name}", name) for name in piece.fed)
            made = (name for index in piece.nodes for name in self.nodes[index].output if name)
            names.update((name, f"{number}/{name}") for name in made)
            for index in piece.nodes:
                graph.node.append(rename_node(self.nodes[index], names))
                graph.node[-1].ClearField("name")  # of two copies ONNX Runtime wants two names
            held.update((name, None) for i in piece.nodes for name in self.reads[i] if self.is_held(name))
            outputs.append({name: f"{number}/{name}" for name in piece.targets})
        graph.input.extend(onnx.helper.make_tensor_value_info(name, types[feeds[name]], None) for name in feeds)
        graph.output.extend(onnx.ValueInfoProto(name=name) for made in outputs for name in made.values())
        graph.initializer.extend(self._initializers[name] for name in held if name in self._initializers)
        sparse = self._sparse_initializers
        graph.sparse_initializer.extend(sparse[name] for name in held if name in sparse)
        return JoinedSlices(joined, feeds, outputs)


def is_copy_of(tensors: Container[str], name: str) -> bool:
    """Say whether a tensor of joined slices is a copy of one of these tensors of the file."""
    return name.partition("/")[2] in tensors


def _list_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, and what its bodies read of what is outside."""
    yield from filter(None, node.input)
    for _, body in proto_bodies(node):
        yield from _list_captured(body)


def _list_captured(graph: onnx.GraphProto) -> Iterable[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    inner = [name for node in graph.node for name in _list_reads(node)]
    return [name for name in (*inner, *(value.name for value in graph.output)) if name and name not in own]
