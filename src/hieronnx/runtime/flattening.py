"""Bringing the inner tensors of a model into reach: bodies and functions put in the place of the nodes that have them.

The flat model computes the same. An `If` becomes the branch that it takes on the given inputs, a call of a function
the function's nodes; `Loop` and `Scan` stay, and can be made to give the tensors of their bodies, one iteration
stacked on the other.

    y = If (c) {then: t = Relu (x)}         y/then_branch/t = Relu (x)     exposed as t of the graph y.then_branch
                                            y = Identity (y/then_branch/t)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx

from hieronnx.graph.operators import LOOP_OPS, SEQUENCE_OPS, name_domain
from hieronnx.graph.versions import find_other_versions, find_versions
from hieronnx.graph.walks import body_key, first_name, function_key, proto_bodies

Evaluate: TypeAlias = Callable[[onnx.ModelProto, list[str]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Exposure:
    """A tensor of a file, and under what name the flat model has it."""

    graph: str
    name: str
    exposed: str
    loop: str = ""
    """The first output of the `Loop` or `Scan` in whose body it is; nothing where it is in none."""
    inner: str = ""
    """Its name in that body."""

    @property
    def repeats(self) -> bool:
        """Whether it has a value for each iteration."""
        return bool(self.loop)


@dataclass(slots=True)
class Flat:
    """A model with its bodies and functions in place, which tensors it has, and what is out of reach."""

    model: onnx.ModelProto
    exposures: list[Exposure] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def expose(self, exposures: Sequence[Exposure]) -> onnx.ModelProto:
        """Return the model with these tensors as outputs, under their exposed names."""
        copy = _copy(self.model)
        _expose_in_loops(copy.graph, "Identity", {e: e.exposed for e in exposures if e.repeats})
        present = {value.name for value in copy.graph.output}
        copy.graph.output.extend(onnx.ValueInfoProto(name=e.exposed) for e in exposures if e.exposed not in present)
        return copy

    def measure(self, exposures: Sequence[Exposure]) -> tuple[onnx.ModelProto, dict[str, str]]:
        """Return the model with the number of elements of each tensor as outputs, and the names of those."""
        copy = _copy(self.model)
        names = {exposure.exposed: f"{exposure.exposed}/elements" for exposure in exposures}
        _expose_in_loops(copy.graph, "Size", {e: names[e.exposed] for e in exposures if e.repeats})
        copy.graph.node.extend(
            onnx.helper.make_node("Size", [e.exposed], [names[e.exposed]]) for e in exposures if not e.repeats
        )
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names.values())
        return copy, names


def flatten(model: onnx.ModelProto, evaluate: Evaluate) -> Flat:
    """Return the flat form of a model that has no large weights inside.

    Args:
        model: The model; it is left as it is.
        evaluate: Runs a model and returns the values of the tensors named: what `If` nodes decide by.
    """
    flattener = _Flattener(_copy(model), evaluate)
    flattener.run()
    return flattener.flat


class _Flattener:
    """Places nodes in the main graph, level by level of the bodies that they have."""

    def __init__(self, model: onnx.ModelProto, evaluate: Evaluate) -> None:
        self.flat = Flat(model)
        self._evaluate = evaluate
        self._functions = self._find_functions(model)
        self._places: dict[str, tuple[str, str]] = {}
        """For each tensor of the flat model the graph and the name that it has in the file."""
        self._body_names: dict[str, str] = {}
        """For each tensor of a body that came with a function the name that it has in the file."""
        self._no_tensors = {v.name for v in model.graph.value_info if not v.type.HasField("tensor_type")}

    def _find_functions(self, model: onnx.ModelProto) -> dict[str, onnx.FunctionProto]:
        """Return the functions that can be put in place, by their keys; import what operator sets they need."""
        functions = {function_key(f.domain, f.name, f.overload): f for f in model.functions}
        versions = find_versions(model, functions.values())
        reasons = find_other_versions(functions, versions)
        self.flat.hidden += (f"{key}: {reason}" for key, reason in reasons.items())
        known = {name_domain(item.domain) for item in model.opset_import}
        for domain in sorted(versions.keys() - known):
            model.opset_import.add(domain=domain, version=versions[domain])
        return {key: function for key, function in functions.items() if key not in reasons}

    def run(self) -> None:
        """Flatten the model, and list what it has."""
        graph = self.flat.model.graph
        nodes = list(self._place(graph.node, "", {}))
        while any(node.op_type == "If" for node in nodes):
            _set_nodes(graph, nodes)
            nodes = list(self._place_branches(nodes))
        _set_nodes(graph, nodes)
        for node in nodes:
            self._list_outputs(node)

    def _place(self, nodes: Iterable[onnx.NodeProto], key: str, renamed: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            placed = rename_node(node, renamed) if renamed else node
            for original, name in zip(node.output, placed.output, strict=True):
                if name:
                    self._places[name] = key, self._body_names.get(original, original)
            function = self._functions.get(function_key(node.domain, node.op_type, node.overload))
            if function is None:
                yield placed
            else:
                yield from self._place_function(placed, function)

    def _place_function(self, call: onnx.NodeProto, function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
        prefix = f"{first_name(call.output)}/{function.name}/"
        made = (name for node in function.node for name in node.output if name)
        renamed = {name: prefix + name for name in made}
        given = [*call.input, *[""] * (len(function.input) - len(call.input))]
        renamed.update(zip(function.input, given, strict=True))
        attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}
        key = function_key(function.domain, function.name, function.overload)
        nodes = (self._rename_bodies(fill_references(node, attributes), prefix) for node in function.node)
        for node in self._place(nodes, key, renamed):
            # Each call has the nodes of its own; ONNX Runtime refuses names that are there twice.
            node.name = prefix + node.name if node.name else ""
            yield node
        yield from _copies((renamed[name] for name in function.output), call.output)

    def _rename_bodies(self, node: onnx.NodeProto, prefix: str) -> onnx.NodeProto:
        """Return a node of a function with names of its own for what its bodies have: the main graph may have them."""
        if not any(proto_bodies(node)):
            return node
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for label, body in proto_bodies(copy):
            inside = f"{prefix}{label}/"
            names = {name: inside + name for name in _list_own(body)}
            self._body_names.update((new, old) for old, new in names.items())
            _set_nodes(body, [self._rename_bodies(rename_node(inner, names), inside) for inner in body.node])
            for item in (*body.input, *body.output, *body.initializer, *body.value_info):
                item.name = names.get(item.name, item.name)
        return copy

    def _place_branches(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """Yield the nodes with each `If` replaced by the branch that it takes."""
        conditions = {first_name(node.output): node.input[0] for node in nodes if node.op_type == "If"}
        asking = _copy(self.flat.model)
        for output, condition in conditions.items():  # it may be an input or an initializer, which cannot be an output
            asking.graph.node.append(onnx.helper.make_node("Identity", [condition], [f"{output}/condition"]))
            asking.graph.output.append(onnx.ValueInfoProto(name=f"{output}/condition"))
        values = self._evaluate(asking, [f"{output}/condition" for output in conditions])
        for node in nodes:
            if node.op_type == "If":
                yield from self._place_branch(node, bool(values[f"{first_name(node.output)}/condition"].all()))
            else:
                yield node

    def _place_branch(self, node: onnx.NodeProto, condition: bool) -> Iterator[onnx.NodeProto]:
        taken, other = ("then_branch", "else_branch") if condition else ("else_branch", "then_branch")
        graph, output = self._places[first_name(node.output)]
        self.flat.hidden.append(f"{body_key(graph, output, other)}: the branch is not taken on these inputs")
        body, prefix = dict(proto_bodies(node))[taken], f"{first_name(node.output)}/{taken}/"
        made = [t.name for t in body.initializer] + [name for n in body.node for name in n.output if name]
        renamed = {name: prefix + name for name in made}
        for tensor in body.initializer:
            kept = self.flat.model.graph.initializer.add()
            kept.CopyFrom(tensor)
            kept.name = renamed[tensor.name]
        yield from self._place(body.node, body_key(graph, output, taken), renamed)
        yield from _copies((renamed.get(value.name, value.name) for value in body.output), node.output)

    def _list_outputs(self, node: onnx.NodeProto) -> None:
        no_tensors = node.op_type in SEQUENCE_OPS or self._no_tensors.intersection((*node.input[:1], *node.output))
        if no_tensors and node.op_type in (*SEQUENCE_OPS, "Identity", *LOOP_OPS):
            self._no_tensors.update(node.output)
            self.flat.hidden.append(f"'{first_name(node.output)}': it is no tensor")
            return
        for name in filter(None, node.output):
            if name in self._places:  # a copy that was put in is none of the file
                self.flat.exposures.append(Exposure(*self._places[name], name))
        if node.op_type in LOOP_OPS and not node.domain:
            self._list_body(node)

    def _list_body(self, node: onnx.NodeProto) -> None:
        loop = first_name(node.output)
        key = body_key(*self._places[loop], "body")
        for inner in dict(proto_bodies(node))["body"].node:
            made = {name: self._body_names.get(name, name) for name in inner.output if name}
            if inner.op_type in SEQUENCE_OPS:
                self.flat.hidden.append(f"'{first_name(made.values())}' in {key}: it is no tensor")
                continue
            if any(proto_bodies(inner)):
                self.flat.hidden.append(f"the bodies of '{first_name(made.values())}' in {key}: they are inside a loop")
            for name, known in made.items():
                self.flat.exposures.append(Exposure(key, known, f"{loop}/body/{name}", loop, name))


def _expose_in_loops(graph: onnx.GraphProto, op: str, names: Mapping[Exposure, str]) -> None:
    """Give loops more outputs: what an operator makes of the tensors in their bodies, under these names."""
    loops = {first_name(node.output): node for node in graph.node if node.op_type in LOOP_OPS}
    for exposure, name in names.items():
        node = loops[exposure.loop]
        attributes = {attribute.name: attribute for attribute in node.attribute}
        body = attributes["body"].g
        body.node.append(onnx.helper.make_node(op, [exposure.inner], [f"{name}/one"]))
        body.output.append(onnx.ValueInfoProto(name=f"{name}/one"))
        node.output.append(name)
        for listed in ("scan_output_axes", "scan_output_directions"):
            if listed in attributes:
                attributes[listed].ints.append(0)


def fill_references(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Return a node of a function with the attributes that the call gave, those left out that it did not give.

    The nodes in its bodies get theirs, too.
    """
    if not _has_references(node):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        given = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if given is not None:
            filled = copy.attribute.add()
            filled.CopyFrom(given)
            filled.name = attribute.name
    for _, body in proto_bodies(copy):
        _set_nodes(body, [fill_references(inner, attributes) for inner in body.node])
    return copy


def _has_references(node: onnx.NodeProto) -> bool:
    if any(attribute.ref_attr_name for attribute in node.attribute):
        return True
    return any(_has_references(inner) for _, body in proto_bodies(node) for inner in body.node)


def rename_node(node: onnx.NodeProto, renamed: Mapping[str, str]) -> onnx.NodeProto:
    """Return a node with other names for the tensors that it and its bodies read, and that it gives."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for names in (copy.input, copy.output):
        names[:] = [renamed.get(name, name) for name in names]
    for _, body in proto_bodies(copy):
        _rename_captured(body, renamed)
    return copy


def _rename_captured(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    # What the body names itself hides the outer name.
    own = _list_own(graph)
    outer = {old: new for old, new in renamed.items() if old not in own}
    _set_nodes(graph, [rename_node(inner, outer) for inner in graph.node])
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def _list_own(graph: onnx.GraphProto) -> dict[str, None]:
    """Return the names of the tensors that a body has itself, in order."""
    held = (value.name for value in (*graph.input, *graph.initializer))
    return dict.fromkeys(filter(None, (*held, *(name for inner in graph.node for name in inner.output))))


def _copies(inner: Iterable[str], outer: Iterable[str]) -> Iterator[onnx.NodeProto]:
    for name, given in zip(inner, outer, strict=False):
        if given:
            yield onnx.helper.make_node("Identity", [name], [given])


def _set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    kept = list(nodes)  # they may be those of the graph itself
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
