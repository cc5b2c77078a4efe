"""A model without any name: what a strategy sees of a file that tells nothing but what it computes.

Every name of a node, tensor, graph, size and local function is replaced by a number, and all metadata and texts go.
Operators, attributes, weights and the order of everything stay: node i is still node i.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message

from hieronnx.errors import HieronnxError
from hieronnx.files.wire import find_locations, walk_inner_data

__all__ = ["anonymize", "anonymize_file"]

_FUNCTIONS = "f"
"""The domain of local functions, and how their names begin."""


def anonymize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without names, metadata and texts.

    Inputs and outputs have new names too; feed them by position. External data stay where they are.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _clear(copy, "producer_name", "producer_version", "domain", "model_version", "configuration")
    functions = _Functions(copy.functions)
    _rename_graph(copy.graph, functions)
    for function in copy.functions:
        _rename_function(function, functions)
    if functions:
        copy.opset_import.add(domain=_FUNCTIONS, version=1)
    _drop_unused_domains(copy)
    return copy


def anonymize_file(source: Path, target: Path) -> None:
    """Write a file without names; external data go into a file beside it, copied as they are.

    Raises:
        HieronnxError: If the model has its data in several files.
    """
    model = anonymize(onnx.load(source, load_external_data=False))
    locations = sorted(find_locations(model))
    if len(locations) > 1:
        raise HieronnxError(f"'{source}' has its weights in {len(locations)} files; keep them in one")
    for location in locations:
        shutil.copyfile(source.parent / location, target.with_name(f"{target.name}.data"))
        for tensor in (*model.graph.initializer, *walk_inner_data(model)):
            for entry in tensor.external_data:
                entry.value = f"{target.name}.data" if entry.key == "location" else entry.value
    target.write_bytes(model.SerializeToString())


class _Names(defaultdict[str, str]):
    """New names for old ones, in the order in which they are met; nothing stays nothing."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self[""] = ""

    def __missing__(self, name: str) -> str:
        self[name] = made = f"{self._prefix}{len(self) - 1}"
        return made


def _clear(message: Message, *fields: str) -> None:
    """Clear fields of a message, and the texts that any message may have."""
    known = message.DESCRIPTOR.fields_by_name
    for field in (*fields, "doc_string", "metadata_props"):
        if field in known:
            message.ClearField(field)


# -- graphs -----------------------------------------------------------------------------------------------


def _rename_graph(main: onnx.GraphProto, functions: _Functions) -> None:
    """Rename a graph and the bodies in it: they share one space of names, for a body reads what is around it."""
    tensors, sizes = _Names("t"), _Names("d")
    for graph in _walk_graphs(main):
        _rename_own(graph, tensors, sizes, functions)


def _rename_own(graph: onnx.GraphProto, tensors: _Names, sizes: _Names, functions: _Functions) -> None:
    """Rename all of a graph but the bodies in it."""
    graph.name = "g"  # the checker wants one
    _clear(graph, "value_info", "quantization_annotation")
    for value in (*graph.input, *graph.output):
        _rename_value(value, tensors, sizes)
    for tensor in (*graph.initializer, *(held.values for held in graph.sparse_initializer)):
        tensor.name = tensors[tensor.name]
        _clear(tensor)
    _rename_nodes(graph.node, tensors, functions)


def _walk_graphs(*outer: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield graphs and all bodies in them; before a body what is around it."""
    waiting = list(reversed(outer))
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += reversed(list(_bodies(graph.node)))


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _rename_value(value: onnx.ValueInfoProto, tensors: _Names, sizes: _Names) -> None:
    value.name = tensors[value.name]
    _clear(value)
    kinds = [value.type]
    while kinds:
        kind = kinds.pop()
        kind.ClearField("denotation")
        held = kind.WhichOneof("value")
        if held in ("sequence_type", "optional_type"):
            kinds.append(getattr(kind, held).elem_type)
        elif held == "map_type":
            kinds.append(kind.map_type.value_type)
        for dim in getattr(kind, held).shape.dim if held in ("tensor_type", "sparse_tensor_type") else ():
            dim.ClearField("denotation")
            if dim.HasField("dim_param"):
                dim.dim_param = sizes[dim.dim_param]


def _rename_nodes(nodes: Iterable[onnx.NodeProto], tensors: _Names, functions: _Functions) -> None:
    for node in nodes:
        node.input[:] = [tensors[name] for name in node.input]
        node.output[:] = [tensors[name] for name in node.output]
        _clear(node, "name", "device_configurations")
        called = functions.find(node)
        if called is not None:
            node.domain, node.op_type, node.overload = _FUNCTIONS, called, ""
        for attribute in node.attribute:
            if called is not None:
                attribute.name = functions.attributes[attribute.name]
            _strip_attribute(attribute, functions)


def _strip_attribute(attribute: onnx.AttributeProto, functions: _Functions) -> None:
    _clear(attribute)
    if attribute.ref_attr_name:
        attribute.ref_attr_name = functions.attributes[attribute.ref_attr_name]
    if attribute.HasField("t"):
        _clear(attribute.t, "name")
    for tensor in attribute.tensors:
        _clear(tensor, "name")
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for held in (*sparse, *attribute.sparse_tensors):
        _clear(held.values, "name")
        _clear(held.indices, "name")


# -- functions --------------------------------------------------------------------------------------------


class _Functions:
    """New names of local functions, and of the attributes that they take."""

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._names = {
            (function.domain, function.name, function.overload): f"{_FUNCTIONS}{number}"
            for number, function in enumerate(functions)
        }
        self.attributes = _Names("a")

    def __bool__(self) -> bool:
        return bool(self._names)

    def find(self, node: onnx.NodeProto) -> str | None:
        """Return the new name of the function that a node calls, if it calls one."""
        return self._names.get((node.domain, node.op_type, node.overload))

    def rename(self, function: onnx.FunctionProto) -> None:
        """Give a function its new name."""
        function.name = self._names[function.domain, function.name, function.overload]
        function.domain, function.overload = _FUNCTIONS, ""


def _rename_function(function: onnx.FunctionProto, functions: _Functions) -> None:
    functions.rename(function)
    _clear(function, "value_info")
    tensors, sizes = _Names("t"), _Names("d")
    function.input[:] = [tensors[name] for name in function.input]
    function.output[:] = [tensors[name] for name in function.output]
    function.attribute[:] = [functions.attributes[name] for name in function.attribute]
    for attribute in function.attribute_proto:
        attribute.name = functions.attributes[attribute.name]
        _strip_attribute(attribute, functions)
    _rename_nodes(function.node, tensors, functions)
    for graph in _walk_graphs(*_bodies(function.node)):
        _rename_own(graph, tensors, sizes, functions)
    function.opset_import.add(domain=_FUNCTIONS, version=1)


def _drop_unused_domains(model: onnx.ModelProto) -> None:
    """Drop the domains of which no operator is left: those of local functions tell where they are from."""
    bodies = (body for function in model.functions for body in _bodies(function.node))
    graphs = _walk_graphs(model.graph, *bodies)
    used = {node.domain for holder in (*graphs, *model.functions) for node in holder.node} | {"", _FUNCTIONS}
    for holder in (model, *model.functions):
        kept = [opset for opset in holder.opset_import if opset.domain in used or opset.domain == "ai.onnx"]
        del holder.opset_import[:]
        holder.opset_import.extend(kept)
