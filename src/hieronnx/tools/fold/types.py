"""Types of tensors in a folded model, and out of it again: a function tells those that are the same in all its calls.

Where calls differ, their function says nothing, and the record of the model has what each of them had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.graph.view import NO_TENSOR
from hieronnx.tools.extract.model import ValueTypes
from hieronnx.tools.extract.source import Source
from hieronnx.tools.fold.classes import Equals
from hieronnx.tools.fold.regions import Item, Lifted

_QUANTIZED = "quant_parameter_tensor_names"
"""Where onnx-ir keeps what a graph says of the quantization of a tensor."""
Told: TypeAlias = tuple[str, str, bytes]
"""The graph that a tensor is in, its name, and its ValueInfoProto without that."""


class FoldedTypes:
    """Tells what the file says of its tensors, where a folded model has a place for it."""

    def __init__(self, source: Source, list_outputs: Callable[[Lifted], Iterable[tuple[int, int]]]) -> None:
        self._view, self._types, self._list_outputs = source.view, ValueTypes(source), list_outputs
        self._told: set[int] = set()

    def list_infos(
        self, items: Iterable[Item], equals: Equals | None, outputs: Collection[int] = ()
    ) -> Iterator[onnx.ValueInfoProto]:
        """Yield the types of what the items of a graph make, but for the graph's outputs, which it tells itself.

        Args:
            items: What the graph has.
            equals: The calls of the function that it is in, if it is in one; the first gives the names.
            outputs: Of the graph.
        """
        places = {} if equals is None else {node: place for place, node in enumerate(equals.first.nodes)}
        calls = () if equals is None else equals.instances
        for node, position in (found for item in items for found in self._list_visible(item)):
            tensor = self._view.nodes[node].outputs[position]
            alike = [self._view.nodes[call.nodes[places[node]]].outputs[position] for call in calls] or [tensor]
            info = self._types.listed(tensor)
            if info is not None and len({self._encode(t) for t in alike}) == 1:
                self._told.update(alike)
                if tensor not in outputs:
                    yield info

    def list_others(self, nodes: Iterable[int]) -> Iterator[Told]:
        """Yield the types of what nodes make that could not be told."""
        for tensor in (t for node in nodes for t in self._view.nodes[node].makes if t not in self._told):
            if (content := self._encode(tensor)) is not None:
                yield self._view.graphs[self._view.tensor_graphs[tensor]].key, self._view.names[tensor], content

    def _list_visible(self, item: Item) -> Iterable[tuple[int, int]]:
        if isinstance(item, Lifted):
            return self._list_outputs(item)
        outputs = self._view.nodes[item].outputs
        return ((item, position) for position, tensor in enumerate(outputs) if tensor != NO_TENSOR)

    def _encode(self, tensor: int) -> bytes | None:
        info = self._types.listed(tensor)
        if info is None:
            return None
        info.ClearField("name")
        return bytes(info.SerializeToString(deterministic=True))


def list_held_infos(graph: ir.Graph) -> Iterator[onnx.ValueInfoProto]:
    """Yield what a graph says of its initializers that they do not say themselves."""
    inputs = {value.name for value in graph.inputs}
    held = (value for value in graph.initializers.values() if value.name not in inputs)
    yield from filter(_tells_more, map(ir.serde.serialize_value, held))


def list_annotations(graph: ir.Graph) -> Iterator[onnx.TensorAnnotation]:
    """Yield what a graph says of the quantization of its tensors."""
    made = (value for node in graph for value in node.outputs)
    for value in dict.fromkeys((*graph.inputs, *graph.initializers.values(), *made)):
        if names := value.meta.get(_QUANTIZED):
            entries = [onnx.StringStringEntryProto(key=key, value=name) for key, name in names.items()]
            yield onnx.TensorAnnotation(tensor_name=value.name, quant_parameter_tensor_names=entries)


class UnfoldedTypes:
    """Collects the types of tensors while functions are written out."""

    def __init__(self, told: Iterable[Told]) -> None:
        self._found: dict[tuple[str, str], onnx.ValueInfoProto] = {}
        for graph, name, content in told:
            self._found[graph, name] = onnx.ValueInfoProto.FromString(content)

    def find(self, graph: str, name: str, info: onnx.ValueInfoProto | None) -> None:
        """Remember the type of a tensor, if it is told."""
        if info is not None:
            self._found.setdefault((graph, name), info)

    def put_into(self, graph: onnx.GraphProto, key: str) -> None:
        """Make a graph tell what it knows and what was found, in the order of its nodes."""
        known = {info.name: info for info in graph.value_info}
        held = [info for item in graph.initializer if (info := known.get(item.name)) and _tells_more(info)]
        ends = {info.name: info for info in graph.output}
        made = [name for node in graph.node for name in node.output if name]
        for name in made:
            if name in ends and (key, name) in self._found:
                ends[name].CopyFrom(self._name(name, self._found[key, name]))
        found = [(name, known.get(name) or self._found.get((key, name))) for name in made if name not in ends]
        infos = [*held, *(self._name(name, info) for name, info in found if info is not None)]
        del graph.value_info[:]
        graph.value_info.extend(infos)

    def _name(self, name: str, info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
        named = onnx.ValueInfoProto()
        named.CopyFrom(info)
        named.name = name
        return named


def _tells_more(info: onnx.ValueInfoProto) -> bool:
    """Say whether an initializer does not say all that itself."""
    return bool(info.metadata_props or info.doc_string)
