"""Bringing the inner tensors of a model into reach: bodies and functions put in the place of the nodes that have them.

The flat model computes the same. An `If` becomes the branch that it takes on the given inputs, a call of a function
the function's nodes; `Loop` and `Scan` stay, and can be made to give the tensors of their bodies, one iteration
stacked on the other.

    y = If (c) {then: t = Relu (x)}         y/then_branch/t = Relu (x)     exposed as t of the graph y.then_branch
                                            y = Identity (y/then_branch/t)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx

from hieronnx.graph.operators import LOOP_OPS, SEQUENCE_OPS
from hieronnx.graph.walks import body_key, first_name, function_key, proto_bodies

Evaluate: TypeAlias = Callable[[onnx.ModelProto, list[str]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Exposure:
    """A tensor of a file, and under what name the flat model has it."""

    graph: str
    name: str
    exposed: str
    loop: str = ""
    """The first output of the `Loop` or `Scan` in whose body it is, with a value for each iteration; else nothing."""


class FlatModel:
    """A model with its bodies and functions in place.

    Attributes:
        exposures: The tensors that it has. Out of reach are the branches that are not taken on the given inputs, bodies
            inside a loop's, and what is no tensor.
    """

    def __init__(self, model: onnx.ModelProto, evaluate: Evaluate) -> None:
        """Flatten a copy of a model, level by level of the bodies that its nodes have.

        Args:
            model: The model, without large weights inside.
            evaluate: Runs a model and returns the values of the tensors named: what `If` nodes decide by.
        """
        self.exposures: list[Exposure] = []
        self._model, self._evaluate = deepcopy(model), evaluate
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._places: dict[str, tuple[str, str]] = {}
        """For each tensor of the flat model the graph and the name that it has in the file."""
        self._no_tensors = {v.name for v in model.graph.value_info if not v.type.HasField("tensor_type")}
        graph = self._model.graph
        nodes = list(self._place(graph.node, "", {}))
        while any(node.op_type == "If" for node in nodes):
            _set_nodes(graph, nodes)
            nodes = list(self._place_branches(nodes))
        _set_nodes(graph, nodes)
        for node in nodes:
            self._list_outputs(node)

    def expose(self, exposures: Sequence[Exposure]) -> onnx.ModelProto:
        """Return the model with these tensors as outputs, under their exposed names."""
        copy = deepcopy(self._model)
        _expose_in_loops(copy.graph, "Identity", {e: e.exposed for e in exposures if e.loop})
        present = {value.name for value in copy.graph.output}
        copy.graph.output.extend(onnx.ValueInfoProto(name=e.exposed) for e in exposures if e.exposed not in present)
        return copy

    def measure(self) -> tuple[onnx.ModelProto, dict[str, str]]:
        """Return the model with the number of elements of each tensor as outputs, and the names of those."""
        copy = deepcopy(self._model)
        names = {exposure.exposed: f"{exposure.exposed}/elements" for exposure in self.exposures}
        _expose_in_loops(copy.graph, "Size", {e: names[e.exposed] for e in self.exposures if e.loop})
        outside = (e.exposed for e in self.exposures if not e.loop)
        copy.graph.node.extend(onnx.helper.make_node("Size", [name], [names[name]]) for name in outside)
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names.values())
        return copy, names

    def _place(self, nodes: Iterable[onnx.NodeProto], key: str, renamed: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            placed = _rename(node, renamed) if renamed else node
            for original, name in zip(node.output, placed.output, strict=True):
                if name:
                    self._places[name] = key, original
            function = self._functions.get((node.domain, node.op_type, node.overload))
            if function is None:
                yield placed
            else:
                yield from self._place_function(placed, function)

    def _place_function(self, call: onnx.NodeProto, function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
        prefix = f"{first_name(call.output)}/{function.name}/"
        renamed = {name: prefix + name for node in function.node for name in node.output if name}
        given = [*call.input, *[""] * (len(function.input) - len(call.input))]
        renamed.update(zip(function.input, given, strict=True))
        attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}
        key = function_key(function.domain, function.name, function.overload)
        yield from self._place((_fill_references(node, attributes) for node in function.node), key, renamed)
        yield from _copies((renamed[name] for name in function.output), call.output)

    def _place_branches(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """Yield the nodes with each `If` replaced by the branch that it takes."""
        conditions = {f"{first_name(n.output)}/condition": n.input[0] for n in nodes if n.op_type == "If"}
        asking = deepcopy(self._model)
        for name, condition in conditions.items():  # it may be an input or an initializer, which cannot be an output
            asking.graph.node.append(onnx.helper.make_node("Identity", [condition], [name]))
            asking.graph.output.append(onnx.ValueInfoProto(name=name))
        values = self._evaluate(asking, list(conditions))
        for node in nodes:
            if node.op_type == "If":
                yield from self._place_branch(node, bool(values[f"{first_name(node.output)}/condition"].all()))
            else:
                yield node

    def _place_branch(self, node: onnx.NodeProto, condition: bool) -> Iterator[onnx.NodeProto]:
        taken = "then_branch" if condition else "else_branch"
        graph, output = self._places[first_name(node.output)]
        body, prefix = dict(proto_bodies(node))[taken], f"{first_name(node.output)}/{taken}/"
        made = [t.name for t in body.initializer] + [name for n in body.node for name in n.output if name]
        renamed = {name: prefix + name for name in made}
        for tensor in body.initializer:
            self._model.graph.initializer.add().CopyFrom(tensor)
            self._model.graph.initializer[-1].name = renamed[tensor.name]
        yield from self._place(body.node, body_key(graph, output, taken), renamed)
        yield from _copies((renamed.get(value.name, value.name) for value in body.output), node.output)

    def _list_outputs(self, node: onnx.NodeProto) -> None:
        no_tensors = node.op_type in SEQUENCE_OPS or self._no_tensors.intersection((*node.input[:1], *node.output))
        if no_tensors and node.op_type in (*SEQUENCE_OPS, "Identity", *LOOP_OPS):
            self._no_tensors.update(node.output)
            return
        for name in filter(None, node.output):
            if name in self._places:  # a copy that was put in is none of the file
                self.exposures.append(Exposure(*self._places[name], name))
        if node.op_type in LOOP_OPS and not node.domain:
            self._list_body(node)

    def _list_body(self, node: onnx.NodeProto) -> None:
        loop = first_name(node.output)
        key = body_key(*self._places[loop], "body")
        for inner in dict(proto_bodies(node))["body"].node:
            for name in filter(None, inner.output if inner.op_type not in SEQUENCE_OPS else ()):
                self.exposures.append(Exposure(key, name, f"{loop}/body/{name}", loop))


def _expose_in_loops(graph: onnx.GraphProto, op: str, names: Mapping[Exposure, str]) -> None:
    """Give loops more outputs: what an operator makes of the tensors in their bodies, under these names."""
    loops = {first_name(node.output): node for node in graph.node if node.op_type in LOOP_OPS}
    for exposure, name in names.items():
        node = loops[exposure.loop]
        attributes = {attribute.name: attribute for attribute in node.attribute}
        body = attributes["body"].g
        body.node.append(onnx.helper.make_node(op, [exposure.name], [f"{name}/one"]))
        body.output.append(onnx.ValueInfoProto(name=f"{name}/one"))
        node.output.append(name)
        for listed in ("scan_output_axes", "scan_output_directions"):
            if listed in attributes:
                attributes[listed].ints.append(0)


def _fill_references(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Return a node of a function with the attributes that the call gave, those left out that it did not give."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy = deepcopy(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        given = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if given is not None:
            copy.attribute.add().CopyFrom(given)
            copy.attribute[-1].name = attribute.name
    return copy


def _rename(node: onnx.NodeProto, renamed: Mapping[str, str]) -> onnx.NodeProto:
    copy = deepcopy(node)
    for names in (copy.input, copy.output):
        names[:] = [renamed.get(name, name) for name in names]
    for _, body in proto_bodies(copy):
        # What the body names itself hides the outer name.
        own = {name for inner in body.node for name in inner.output}
        own |= {value.name for value in (*body.input, *body.initializer)}
        outer = {old: new for old, new in renamed.items() if old not in own}
        _set_nodes(body, [_rename(inner, outer) for inner in body.node])
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return copy


def _copies(inner: Iterable[str], outer: Iterable[str]) -> Iterator[onnx.NodeProto]:
    for name, given in zip(inner, outer, strict=False):
        if given:
            yield onnx.helper.make_node("Identity", [name], [given])


def _set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    copies = [deepcopy(node) for node in nodes]  # they may be those of the graph itself
    del graph.node[:]
    graph.node.extend(copies)
