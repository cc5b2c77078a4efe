"""The folded model: functions for people to read, and calls of them in the place of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx_ir as ir

from hieronnx.graph.operators import name_domain
from hieronnx.graph.view import NO_TENSOR
from hieronnx.graph.walks import proto_bodies
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.model import make_model
from hieronnx.tools.extract.source import Source
from hieronnx.tools.fold.classes import Equals, Instance, Reading
from hieronnx.tools.fold.naming import Function
from hieronnx.tools.fold.record import ORIGINS_KEY, SCOPE_KEY, encode_ways
from hieronnx.tools.fold.regions import Item, Lifted, Plan
from hieronnx.tools.fold.scopes import RelativeScopes
from hieronnx.tools.fold.types import FoldedTypes, list_annotations, list_held_infos
from hieronnx.tools.replace.graph import Names

_FIRST_IR_WITH_FUNCTIONS = 8
_VERSION = 1
_FIRST_IR_WITH_TYPES = 10


@dataclass(frozen=True)
class Folded:
    """A folded model without its initializers, and what it was made of."""

    source: Source
    plan: Plan
    functions: tuple[Function, ...]
    scopes: RelativeScopes
    structure: onnx.ModelProto

    @cached_property
    def types(self) -> FoldedTypes:
        """What was told of the types of tensors."""
        return FoldedTypes(self.source, self.list_outputs)

    def list_outputs(self, lifted: Lifted) -> Iterator[tuple[int, int]]:
        """Yield what a call gives: the node, and the place among its outputs."""
        function, instance = self.by_call[lifted.call]
        yield from ((instance.nodes[place], position) for place, position in function.equals.outputs)

    @cached_property
    def annotations(self) -> tuple[onnx.TensorAnnotation, ...]:
        """What the main graph said of the quantization of its tensors."""
        return tuple(list_annotations(self.source.opened.model.graph))

    def name_call(self, lifted: Lifted, outer: Function | None) -> str:
        """Return the name of the node that calls a function, in the main graph or in another function."""
        return self._call_names["" if outer is None else outer.key][lifted.call]

    @cached_property
    def _call_names(self) -> Mapping[str, Mapping[CallId, str]]:
        """By the key of the graph that they are in: no two nodes there have one name, which ONNX Runtime refuses."""
        found = {"": self._name_calls(self.plan.graphs[0], None)}
        for function in self.functions:
            first = function.equals.first
            found[function.key] = self._name_calls(first.lifted.items, first.call)
        return found

    def _name_calls(self, items: Iterable[Item], base: CallId | None) -> dict[CallId, str]:
        visible = list(self.plan.list_visible(items, self.source))
        taken = Names(self.source.view.nodes[item].name for item in visible if not isinstance(item, Lifted))
        calls = [item.call for item in visible if isinstance(item, Lifted)]
        return {call: taken.take(str(call) if base is None else self.scopes.tell(base, call)) for call in calls}

    @cached_property
    def by_call(self) -> Mapping[CallId, tuple[Function, Instance]]:
        """For each call that became one, its function."""
        return {item.call: (function, item) for function in self.functions for item in function.equals.instances}


# -- building ---------------------------------------------------------------------------------------------


def build(source: Source, plan: Plan, functions: tuple[Function, ...], scopes: RelativeScopes) -> Folded:
    """Build the folded model, without its initializers."""
    model, whole = make_model(source), source.opened.model
    folded = Folded(source, plan, functions, scopes, model)
    model.doc_string, model.model_version = whole.doc_string or "", whole.model_version or 0
    if functions:
        model.ir_version = max(model.ir_version, _FIRST_IR_WITH_FUNCTIONS)
    builder = _Builder(folded)
    builder.build_graph(whole.graph)
    model.functions.extend(builder.build_function(function) for function in functions)
    model.functions.extend(ir.serde.serialize_function(item) for item in whole.functions.values())
    known = {item.domain for item in model.opset_import}
    for domain in dict.fromkeys(function.domain for function in functions):
        if domain not in known:
            model.opset_import.add(domain=domain, version=_VERSION)
    return folded


class _Naming:
    """How tensors are named in one graph, and what its nodes are relative to."""

    def __init__(self, names: Sequence[str], function: Function | None = None) -> None:
        self._names, self.function = names, function
        self.equals = None if function is None else function.equals
        self.base = None if self.equals is None else self.equals.first.call
        nodes = () if self.equals is None else self.equals.first.nodes
        self.places = {node: place for place, node in enumerate(nodes)}

    def read(self, reading: Reading, tensor: int) -> str:
        """Return the name of a tensor where it is read."""
        if tensor == NO_TENSOR:
            return ""
        if self.function is not None and reading in self.function.equals.input_of:
            return self.function.formals[self.function.equals.input_of[reading]]
        return self._names[tensor]

    def read_all(self, kind: str, index: int, tensors: Iterable[int]) -> list[str]:
        """Return the names of what a node reads, or of what a body returns."""
        return [self.read((kind, index, place), tensor) for place, tensor in enumerate(tensors)]

    def parameter(self, node: int, attribute: str) -> str | None:
        """Return the parameter of the function that an attribute is."""
        return None if self.equals is None else self.equals.parameters.get((self.places[node], attribute))


class _Builder:
    def __init__(self, folded: Folded) -> None:
        self._folded, self._source = folded, folded.source
        self._view, self._by_call = folded.source.view, folded.by_call
        imports = folded.source.opened.model.opset_imports
        self._opsets = {name_domain(domain): version for domain, version in imports.items()}

    def build_graph(self, whole: ir.Graph) -> None:
        """Build the main graph."""
        graph, items = self._folded.structure.graph, self._folded.plan.graphs[0]
        graph.name, graph.doc_string = whole.name or "main", whole.doc_string or ""
        for key, value in whole.metadata_props.items():
            graph.metadata_props.add(key=key, value=value)
        graph.node.extend(self.build_items(items, _Naming(self._view.names)))
        graph.input.extend(map(ir.serde.serialize_value, whole.inputs))
        graph.output.extend(map(ir.serde.serialize_value, whole.outputs))
        graph.value_info.extend(list_held_infos(whole))
        graph.value_info.extend(self._folded.types.list_infos(items, None, self._view.graphs[0].outputs))
        shown = {*whole.initializers, *(value.name for value in whole.inputs)}
        shown.update(name for node in graph.node for name in node.output)
        graph.quantization_annotation.extend(item for item in self._folded.annotations if item.tensor_name in shown)

    def build_function(self, function: Function) -> onnx.FunctionProto:
        """Build a function, of the nodes of its first call."""
        equals, items = function.equals, function.equals.first.lifted.items
        proto = onnx.FunctionProto(domain=function.domain, name=function.name)
        proto.input.extend(function.inputs)
        proto.output.extend(self._view.names[equals.output(equals.first, place)] for place in equals.outputs)
        proto.attribute.extend(equals.parameters.values())
        proto.node.extend(self.build_items(items, _Naming(self._view.names, function)))
        if self._folded.structure.ir_version >= _FIRST_IR_WITH_TYPES:
            proto.value_info.extend(self._folded.types.list_infos(items, equals))
        domains = dict.fromkeys(_list_domains(proto.node))
        proto.opset_import.extend(
            onnx.OperatorSetIdProto(domain=domain, version=self._opsets.get(name_domain(domain), _VERSION))
            for domain in domains
        )
        return proto

    def build_items(self, items: Iterable[Item], naming: _Naming) -> Iterator[onnx.NodeProto]:
        for item in items:
            yield self._build_call(item, naming) if isinstance(item, Lifted) else self._build_node(item, naming)

    def _build_node(self, index: int, naming: _Naming) -> onnx.NodeProto:
        node, attribution = self._view.nodes[index], self._source.attributions[index]
        proto = ir.serde.serialize_node(self._source.nodes[index])
        proto.input[:] = naming.read_all("node", index, node.inputs)
        for attribute in proto.attribute:
            if (parameter := naming.parameter(index, attribute.name)) is not None:
                attribute.CopyFrom(
                    onnx.AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=parameter)
                )
        for (_, body), graph in zip(proto_bodies(proto), node.bodies, strict=True):
            self._build_body(body, graph, naming)
        if naming.base is not None and naming.equals is not None:
            self._keep_common(proto, naming.equals, naming.places[index])
            self._tell_scope(proto, naming.base, attribution.scope, attribution.origins)
        return proto

    def _build_body(self, body: onnx.GraphProto, graph: int, naming: _Naming) -> None:
        items, outputs = self._folded.plan.graphs[graph], self._view.graphs[graph].outputs
        nodes = list(self.build_items(items, naming))
        infos = list(self._folded.types.list_infos(items, naming.equals, outputs))
        del body.node[:], body.value_info[:]
        body.node.extend(nodes)
        body.value_info.extend(infos)
        for info, name in zip(body.output, naming.read_all("body", graph, outputs), strict=True):
            info.name = name

    def _build_call(self, lifted: Lifted, naming: _Naming) -> onnx.NodeProto:
        function, instance = self._by_call[lifted.call]
        equals = function.equals
        proto = onnx.NodeProto(domain=function.domain, op_type=function.name)
        proto.name = self._folded.name_call(lifted, naming.function)
        inputs = list(zip(equals.find_readings(instance), equals.read(instance), strict=True))
        proto.input.extend(naming.read(*inputs[place]) for place in function.order)
        # Also what only other calls need: ONNX Runtime 1.31 cannot do without.
        proto.output.extend(self._view.names[equals.output(instance, place)] for place in equals.outputs)
        for (place, attribute), name in equals.parameters.items():
            node = instance.nodes[place]
            outer = naming.parameter(node, attribute)
            value = ir.serde.serialize_attribute(self._source.nodes[node].attributes[attribute])
            if outer is not None:
                value = onnx.AttributeProto(type=value.type, ref_attr_name=outer)
            value.name = name
            proto.attribute.append(value)
        if naming.base is not None:
            self._tell_scope(proto, naming.base, lifted.call, (lifted.call,))
        return proto

    def _keep_common(self, proto: onnx.NodeProto, equals: Equals, place: int) -> None:
        """Leave on a node of a function what others wrote on the nodes of all calls alike."""
        del proto.metadata_props[:]
        for key, value in equals.shared_metadata[place].items():
            proto.metadata_props.add(key=key, value=value)
        if len({self._source.nodes[item.nodes[place]].doc_string for item in equals.instances}) > 1:
            proto.ClearField("doc_string")

    def _tell_scope(self, proto: onnx.NodeProto, base: CallId, scope: CallId, origins: Sequence[CallId]) -> None:
        scopes = self._folded.scopes
        proto.metadata_props.add(key=SCOPE_KEY, value=scopes.tell(base, scope))
        if tuple(origins) != (scope,):
            proto.metadata_props.add(key=ORIGINS_KEY, value=encode_ways(scopes.tell(base, o) for o in origins))


def _list_domains(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield node.domain
        for _, body in proto_bodies(node):
            yield from _list_domains(body.node)
