"""Differences of two aligned models: nodes, inputs and outputs, initializers, functions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

import numpy as np
import onnx_ir as ir

from hieronnx.files.opening import OpenedModel
from hieronnx.graph.building import attribute_value_key
from hieronnx.graph.view import INPUTS_ARE_NO_DEFAULTS, NO_TENSOR
from hieronnx.graph.walks import function_key
from hieronnx.match.align.numbering import NO_MATCH, Side, given_inputs, pair_ends
from hieronnx.match.align.signatures import OperatorForm, read_form
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.result import ComparedNode, CompareResult, Difference, Kind, NodeChange, ValueChange

_ABSENT = "(none)"
_FEW = 8


def find_differences(wiring: Wiring, a: OpenedModel, b: OpenedModel, *, names: bool, values: bool) -> CompareResult:
    """Tell what differs between two aligned models; whether contents of initializers count, the sides know."""
    return CompareResult(
        a=a.name,
        b=b.name,
        pairs=len(wiring.node_pairs),
        nodes=_find_node_changes(wiring, names),
        values=(*_compare_interfaces(wiring, a.model, b.model, names=names), *_compare_initializers(wiring, names)),
        functions=_compare_functions(a.model, b.model),
        notes=tuple(_list_notes(wiring, a, b)),
        compared_names=names,
        compared_values=values,
    )


# -- nodes ------------------------------------------------------------------------------------------------


def _find_node_changes(wiring: Wiring, names: bool) -> tuple[NodeChange, ...]:
    """Return the changes in the order of the files: an added node behind the node that precedes it in B."""
    positions = {node: position for position, node in enumerate(wiring.a.view.file_order)}
    changes: list[tuple[tuple[int, int], NodeChange]] = []
    for a, b in enumerate(wiring.alignment.match_in_b):
        if b == NO_MATCH:
            changes.append(((positions[a], 0), NodeChange("removed", _describe(wiring.a, a), None)))
        elif differences := tuple(_compare_nodes(wiring, a, b, names)):
            change = NodeChange("changed", _describe(wiring.a, a), _describe(wiring.b, b), differences=differences)
            changes.append(((positions[a], 0), change))
    preceding = -1
    for position, b in enumerate(wiring.b.view.file_order):
        match = wiring.alignment.match_in_a[b]
        if match == NO_MATCH:
            changes.append(((preceding, 1 + position), NodeChange("added", None, _describe(wiring.b, b))))
        else:
            preceding = positions[match]
    return tuple(change for _, change in sorted(changes, key=lambda item: item[0]))


def _describe(side: Side, index: int) -> ComparedNode:
    node = side.view.nodes[index]
    domain, _, op_type = node.op.rpartition("::")
    graph, output = side.view.node_key(index)
    return ComparedNode(graph, node.name, op_type, domain, output)


def _compare_nodes(wiring: Wiring, a: int, b: int, names: bool) -> Iterator[Difference]:
    yield from _compare_signatures(wiring.a, a, wiring.b, b)
    left, right = wiring.a.view.nodes[a], wiring.b.view.nodes[b]
    read = zip_longest(given_inputs(left), given_inputs(right), fillvalue=NO_TENSOR)
    for position, (of_a, of_b) in enumerate(read):
        if not wiring.same(of_a, of_b) and not wiring.follows(of_a, of_b):
            yield Difference("input", str(position), _name(wiring.a, of_a), _name(wiring.b, of_b))
    if names and left.name != right.name:
        yield Difference("name", "", left.name, right.name)
    for position, (of_a, of_b) in enumerate(zip(left.outputs, right.outputs, strict=False)):
        if names and _name(wiring.a, of_a) != _name(wiring.b, of_b):
            yield Difference("name of output", str(position), _name(wiring.a, of_a), _name(wiring.b, of_b))


def _name(side: Side, tensor: int) -> str:
    return _ABSENT if tensor == NO_TENSOR else side.view.names[tensor]


def _compare_signatures(a: Side, node_a: int, b: Side, node_b: int) -> Iterator[Difference]:
    """Yield the respects in which two nodes of one operator differ, apart from what they read."""
    if a.signatures[node_a] == b.signatures[node_b]:
        return
    left, right = a.view.nodes[node_a], b.view.nodes[node_b]
    form_a, form_b = read_form(left, a.opsets[left.graph]), read_form(right, b.opsets[right.graph])
    if form_a.version != form_b.version:
        yield Difference("version", "", str(form_a.version), str(form_b.version))
    for name in sorted({*form_a.attributes, *form_b.attributes}):
        if form_a.attributes.get(name, _ABSENT) != form_b.attributes.get(name, _ABSENT):
            yield Difference("attribute", name, _show_attribute(form_a, name), _show_attribute(form_b, name))
    if len(left.makes) != len(right.makes):
        yield Difference("outputs", "", str(len(left.makes)), str(len(right.makes)))
    bodies_a, bodies_b = (sorted(s.view.graphs[g].label for g in n.bodies) for s, n in ((a, left), (b, right)))
    if bodies_a != bodies_b:
        yield Difference("bodies", "", ", ".join(bodies_a), ", ".join(bodies_b))


def _show_attribute(form: OperatorForm, name: str) -> str:
    if name in form.attributes:
        return _show(form.attributes[name])
    return f"{_show(form.defaults[name])} (default)" if name in form.defaults else _ABSENT


def _show(key: Hashable) -> str:
    """Write an attribute's value; of a tensor its type, and its contents if they are few."""
    if isinstance(key, tuple) and len(key) == 3 and isinstance(key[0], ir.DataType):
        dtype, shape, content = key
        return f"{dtype.name.lower()}[{', '.join(map(str, shape))}] {_show_elements(dtype, math.prod(shape), content)}"
    value = key[-1] if isinstance(key, tuple) else key
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return value.hex()[:16] if isinstance(value, bytes) else str(value)


def _show_elements(dtype: ir.DataType, size: int, content: Hashable) -> str:
    """Write up to eight elements; of more the first bytes or the digest, which is enough to tell two apart."""
    if not isinstance(content, bytes):
        return str(content)
    if size > _FEW or len(content) != size * dtype.numpy().itemsize:
        return f"({content.hex()[:16]})"
    return str(np.frombuffer(content, dtype.numpy()).tolist())


# -- inputs and outputs ----------------------------------------------------------------------------------


def _compare_interfaces(wiring: Wiring, a: ir.Model, b: ir.Model, *, names: bool) -> Iterator[ValueChange]:
    """Yield the inputs and outputs that differ; of bodies and functions too, whose types do not count."""
    values_a, values_b = (
        dict(zip((*ends.inputs, *ends.outputs), (*model.graph.inputs, *model.graph.outputs), strict=True))
        for ends, model in ((wiring.a.view.graphs[0], a), (wiring.b.view.graphs[0], b))
    )
    comparer = _EndComparer(wiring, values_a, values_b, names)
    for graph_b, graph_a in sorted(wiring.alignment.graph_in_a.items()):
        yield from comparer.compare("input", graph_a, graph_b)
        yield from comparer.compare("output", graph_a, graph_b)
    yield from _compare_defaults(wiring, a, b)


def _compare_defaults(wiring: Wiring, a: ir.Model, b: ir.Model) -> Iterator[ValueChange]:
    """Yield the inputs with a default, an initializer of their name, that only one of the models has.

    Before IR version 4 every initializer had to be among the inputs: there it means nothing.
    """
    if min(a.ir_version, b.ir_version) < INPUTS_ARE_NO_DEFAULTS:
        return
    defaults_a, defaults_b = (
        {t: side.view.names[t] for t in side.view.graphs[0].inputs if t in side.initializers}
        for side in (wiring.a, wiring.b)
    )
    for tensor, name in defaults_a.items():
        if wiring.tensor_in_b.get(tensor) not in defaults_b:
            yield ValueChange("input", "removed", "", name, None)
    for tensor, name in defaults_b.items():
        if wiring.tensor_in_a.get(tensor) not in defaults_a:
            yield ValueChange("input", "added", "", None, name)


@dataclass(slots=True)
class _EndComparer:
    """Compares ends of graphs, one after the other: a dynamic axis that was met keeps its partner."""

    wiring: Wiring
    values_a: Mapping[int, ir.Value]
    values_b: Mapping[int, ir.Value]
    names: bool
    axes: dict[str, str] = field(default_factory=dict)
    axes_back: dict[str, str] = field(default_factory=dict)

    def compare(self, role: Literal["input", "output"], graph_a: int, graph_b: int) -> Iterator[ValueChange]:
        a, b = self.wiring.a, self.wiring.b
        if role == "input":
            ends_a, ends_b = a.inputs(graph_a), b.inputs(graph_b)
        else:
            ends_a, ends_b = list(a.view.graphs[graph_a].outputs), list(b.view.graphs[graph_b].outputs)
        pairs = pair_ends(a, ends_a, b, ends_b)
        key = b.view.graphs[graph_b].key
        for of_a, of_b in pairs:
            if differences := tuple(self._compare_pair(role, of_a, of_b)):
                yield ValueChange(role, "changed", key, a.view.names[of_a], b.view.names[of_b], differences)
        paired_a, paired_b = {of_a for of_a, _ in pairs}, {of_b for _, of_b in pairs}
        yield from (ValueChange(role, "removed", key, a.view.names[t], None) for t in ends_a if t not in paired_a)
        yield from (ValueChange(role, "added", key, None, b.view.names[t]) for t in ends_b if t not in paired_b)

    def _compare_pair(self, role: str, of_a: int, of_b: int) -> Iterator[Difference]:
        name_a, name_b = self.wiring.a.view.names[of_a], self.wiring.b.view.names[of_b]
        if role == "output" and not self.wiring.same(of_a, of_b) and not self.wiring.follows(of_a, of_b):
            yield Difference("source", "", name_a, name_b)
        left, right = self.values_a.get(of_a), self.values_b.get(of_b)
        if left is not None and right is not None and not self._same_type(left, right):
            yield Difference("type", "", _show_type(left), _show_type(right))
        if self.names and name_a != name_b:
            yield Difference("name", "", name_a, name_b)

    def _same_type(self, a: ir.Value, b: ir.Value) -> bool:
        if a.type != b.type or a.shape is None or b.shape is None:
            return a.type == b.type and a.shape is b.shape
        return len(a.shape) == len(b.shape) and all(map(self._same_size, a.shape, b.shape))

    def _same_size(self, a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
        """Compare two sizes; axes with names must be the same axes everywhere, whatever they are called."""
        if isinstance(a, int) or isinstance(b, int):
            return a == b
        if self.names or a.value is None or b.value is None:
            return a.value == b.value
        same = self.axes.setdefault(a.value, b.value) == b.value
        return same and self.axes_back.setdefault(b.value, a.value) == a.value


def _show_type(value: ir.Value) -> str:
    if value.type is None:
        return "unknown"
    kind = str(value.type) if value.dtype is None or not isinstance(value.type, ir.TensorType) else value.dtype.name
    if value.shape is None:
        return f"{kind.lower()}[…]"
    sizes = (str(dim) if isinstance(dim, int) else dim.value or "?" for dim in value.shape)
    return f"{kind.lower()}[{', '.join(sizes)}]"


# -- initializers, functions, headers ---------------------------------------------------------------------


def _compare_initializers(wiring: Wiring, names: bool) -> Iterator[ValueChange]:
    a, b = wiring.a, wiring.b
    for of_a, of_b in wiring.initializers:
        differences = tuple(_compare_held(wiring, of_a, of_b, names))
        if differences:
            graph, name = b.view.tensor_key(of_b)
            yield ValueChange("initializer", "changed", graph, a.view.names[of_a], name, differences)
    for graph, name in (a.view.tensor_key(t) for t in a.initializers if t not in wiring.tensor_in_b):
        yield ValueChange("initializer", "removed", graph, name, None)
    for graph, name in (b.view.tensor_key(t) for t in b.initializers if t not in wiring.tensor_in_a):
        yield ValueChange("initializer", "added", graph, None, name)


def _compare_held(wiring: Wiring, of_a: int, of_b: int, names: bool) -> Iterator[Difference]:
    a, b = wiring.a, wiring.b
    type_a, type_b = (
        "unknown" if type_ is None else f"{type_.dtype.lower()}[{', '.join(map(str, type_.shape))}]"
        for type_ in (a.view.types[of_a], b.view.types[of_b])
    )
    if type_a != type_b:
        yield Difference("type", "", type_a, type_b)
    elif a.initializers[of_a] != b.initializers[of_b]:
        yield Difference("values", "", type_a, type_b)
    if names and a.view.names[of_a] != b.view.names[of_b]:
        yield Difference("name", "", a.view.names[of_a], b.view.names[of_b])


def _compare_functions(a: ir.Model, b: ir.Model) -> Mapping[str, Kind]:
    """Tell which functions only one model has, and which declare other attributes; nodes are compared as nodes."""
    functions_a, functions_b = (
        {function_key(*function.identifier()): function for function in model.functions.values()} for model in (a, b)
    )
    changes: dict[str, Kind] = dict.fromkeys(sorted(functions_a.keys() - functions_b.keys()), "removed")
    changes |= dict.fromkeys(sorted(functions_b.keys() - functions_a.keys()), "added")
    both = sorted(functions_a.keys() & functions_b.keys())
    different = (key for key in both if _declared(functions_a[key]) != _declared(functions_b[key]))
    return changes | dict.fromkeys(different, "changed")


def _declared(function: ir.Function) -> Mapping[str, Hashable]:
    return {name: attribute_value_key(a) if a.value is not None else a.type for name, a in function.attributes.items()}


def _list_notes(wiring: Wiring, a: OpenedModel, b: OpenedModel) -> Iterator[str]:
    """Yield what differs and does not count."""
    if a.model.ir_version != b.model.ir_version:
        yield f"IR version {a.model.ir_version} → {b.model.ir_version}"
    opsets_a, opsets_b = _used_opsets(wiring.a), _used_opsets(wiring.b)
    changed = [
        f"{domain or 'ai.onnx'} {opsets_a[domain]} → {opsets_b[domain]}"
        for domain in sorted(opsets_a.keys() & opsets_b.keys())
        if opsets_a[domain] != opsets_b[domain]
    ]
    if changed:
        yield f"opset {', '.join(changed)}"
    a_side, b_side = wiring.a, wiring.b
    alike = [(t, u) for t, u in wiring.initializers if a_side.initializers[t] == b_side.initializers[u]]
    contents = ((tensor, a_side.contents[tensor], b_side.contents[other]) for tensor, other in alike)
    others = [tensor for tensor, old, new in contents if old != new and None not in (old, new)]
    if others:
        named = ", ".join(f"'{wiring.a.view.names[tensor]}'" for tensor in others[:3])
        noun = "initializer holds" if len(others) == 1 else "initializers hold"
        yield f"{len(others):,} small {noun} other values ({named}{', …' * (len(others) > 3)}); --values counts them"
    undefined = {side.view.names[tensor] for side in (wiring.a, wiring.b) for tensor in side.undefined()}
    if undefined:
        yield f"{len(undefined):,} tensors that nothing computes or holds were compared by name"


def _used_opsets(side: Side) -> Mapping[str, int]:
    used = {node.op.rpartition("::")[0] for node in side.view.nodes}
    return {domain: version for domain, version in side.opsets[0].items() if domain in used}
