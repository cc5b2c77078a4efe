"""A part as a model of its own: nodes and names as they are in the whole model, typed inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.metadata import PREFIX
from hieronnx.graph.shapes import correct_declared, infer_types
from hieronnx.graph.view import NO_TENSOR
from hieronnx.graph.walks import walk_bodies
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.source import Source


class ValueTypes:
    """The types of a model's tensors: as the file has them, and inferred where it has not."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, tensor: int) -> onnx.ValueInfoProto | None:
        """Return a tensor with its type; None where that is not known."""
        info = self.listed(tensor)
        if (info is None or not _has_shape(info)) and tensor in self._source.values:
            info = self._inferred.get(self._source.values[tensor], info)
        if info is None or _has_shape(info) or (begin := self._begin_of(tensor)) is None or not _has_shape(begin):
            return info
        # With as many axes as at the beginning, their sizes unknown: a loop may change these.
        ranked = onnx.ValueInfoProto()
        ranked.CopyFrom(info)
        shape = ranked.type.tensor_type.shape
        shape.SetInParent()
        shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in begin.type.tensor_type.shape.dim)
        return ranked

    def _begin_of(self, tensor: int) -> onnx.ValueInfoProto | None:
        """Return what a Loop begins with for a tensor that it carries or ends with; None for any other tensor."""
        view = self._source.view
        producer, graph = view.producers[tensor], view.graphs[view.tensor_graphs[tensor]]
        loop = graph.owner if tensor in graph.inputs else producer
        if loop is None or view.nodes[loop].op != "Loop":
            return None
        # A Loop reads how often and whether to run, and then what it carries.
        position = graph.inputs.index(tensor) if loop != producer else view.nodes[loop].outputs.index(tensor) + 2
        given = view.nodes[loop].inputs[position : position + 1]
        return self[given[0]] if given and given[0] != NO_TENSOR else None

    def listed(self, tensor: int) -> onnx.ValueInfoProto | None:
        """Return a tensor with its type if the file itself tells it."""
        value = self._source.values.get(tensor)
        if value is None or value.type is None:
            return None
        return self._corrected.get(value) or ir.serde.serialize_value(value)

    @cached_property
    def _corrected(self) -> Mapping[ir.Value, onnx.ValueInfoProto]:
        return correct_declared(self._source.opened.model)

    @cached_property
    def _inferred(self) -> Mapping[ir.Value, onnx.ValueInfoProto]:
        try:
            return infer_types(self._source.opened.model, {}, corrected=self._corrected)
        except HieronnxError as error:
            raise HieronnxError(
                f"'{self._source.opened.name}' lacks types that the part needs: {error}; "
                "add value_info to the file, or fix it"
            ) from error


def _has_shape(info: onnx.ValueInfoProto) -> bool:
    return not info.type.HasField("tensor_type") or info.type.tensor_type.HasField("shape")


# -- building ---------------------------------------------------------------------------------------------


def build_model(source: Source, part: Part, types: ValueTypes) -> onnx.ModelProto:
    """Build the model of a part, without its initializers.

    Raises:
        HieronnxError: If the type of an input is not known.
    """
    view = source.view
    model = make_model(source)
    graph = model.graph
    graph.name = " ".join(map(str, part.calls)) or source.hierarchy.modules[""].class_name
    for index in part.nodes:
        graph.node.append(ir.serde.serialize_node(source.nodes[index]))
        if index in part.retaken:  # this Shape takes the size of another tensor's axis
            node, (tensor, axis) = graph.node[-1], part.retaken[index]
            node.input[0] = view.names[tensor]
            del node.attribute[:]
            node.attribute.extend(onnx.helper.make_attribute(key, n) for key, n in (("start", axis), ("end", axis + 1)))
    for tensor in part.inputs:
        if (info := types[tensor]) is None:
            raise HieronnxError(
                f"the type of '{view.names[tensor]}', an input of the part, is not in '{source.opened.name}', and "
                f"cannot be inferred{_explain_unknown(source, types, tensor)}"
            )
        graph.input.append(info)
    graph.output.extend(types[tensor] or onnx.ValueInfoProto(name=view.names[tensor]) for tensor in part.outputs)
    inner = (t for index in part.nodes for t in view.nodes[index].makes if t not in part.outputs)
    graph.value_info.extend(info for tensor in inner if (info := types.listed(tensor)) is not None)
    used = set(source.functions_below(part.nodes))
    functions = [source.opened.model.functions[name] for name, number in source.functions.items() if number in used]
    model.functions.extend(map(ir.serde.serialize_function, functions))
    return model


def _explain_unknown(source: Source, types: ValueTypes, tensor: int) -> str:
    """Say which operator the type of a tensor is lost at, and what to do."""
    view, at = source.view, source.view.producers[tensor]
    remedy = "declare it in the file's value_info"
    while at is not None:
        unknown = [t for t in view.nodes[at].reads if t not in view.constants and types[t] is None]
        if not unknown:
            node = view.nodes[at]
            named = f" through the {node.op} that makes '{view.names[node.makes[0]]}'"
            return f"{named}; extract from the file as it was before a tool wrote that operator, or {remedy}"
        at = view.producers[unknown[0]]
    return f"; {remedy}"


def make_model(source: Source) -> onnx.ModelProto:
    """Make an empty model with all that the whole one says of itself."""
    whole = source.opened.model
    empty = ir.Model(
        ir.Graph((), (), nodes=(), opset_imports=whole.opset_imports),
        ir_version=whole.ir_version,
        producer_name=whole.producer_name,
        producer_version=whole.producer_version,
        domain=whole.domain,
        metadata_props={key: value for key, value in whole.metadata_props.items() if not key.startswith(PREFIX)},
    )
    return ir.serde.serialize_model(empty)


def find_names(model: onnx.ModelProto) -> set[str]:
    """Return the names of all tensors in a part, those in bodies included."""
    names: set[str] = set()
    for _, graph in walk_bodies(model.graph):
        names.update(item.name for item in (*graph.input, *graph.output, *graph.initializer))
        for node in graph.node:
            names.update(node.input, node.output)
    return names


def rename_tensors(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Give tensors other names wherever nodes read them, in bodies too."""
    for _, graph in walk_bodies(model.graph):
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        for info in graph.output:
            info.name = names.get(info.name, info.name)
