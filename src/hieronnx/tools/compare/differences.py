"""Differences of two aligned models: nodes, initializers, functions. The second half of a comparison."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from hieronnx.files.opening import OpenedModel
from hieronnx.graph.building import attribute_value_key
from hieronnx.graph.view import NO_TENSOR
from hieronnx.graph.walks import function_key
from hieronnx.match.align.numbering import NO_MATCH, Side, given_inputs
from hieronnx.match.align.signatures import OperatorForm, read_form
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.interface import compare_interfaces
from hieronnx.tools.compare.result import ComparedNode, CompareResult, Difference, Kind, NodeChange, ValueChange

_ABSENT = "(none)"
_FEW = 8


def find_differences(wiring: Wiring, a: OpenedModel, b: OpenedModel, *, names: bool, values: bool) -> CompareResult:
    """Tell what differs between two aligned models; whether contents of initializers count, the sides know."""
    return CompareResult(
        a=a.name,
        b=b.name,
        pairs=sum(match != NO_MATCH for match in wiring.alignment.match_in_b),
        nodes=_find_node_changes(wiring, names),
        values=(*compare_interfaces(wiring, a.model, b.model, names=names), *_compare_initializers(wiring, names)),
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


# -- signatures -------------------------------------------------------------------------------------------


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
    for key in sorted(functions_a.keys() & functions_b.keys()):
        if _declared(functions_a[key]) != _declared(functions_b[key]):
            changes[key] = "changed"
    return changes


def _declared(function: ir.Function) -> Mapping[str, Hashable]:
    return {name: attribute_value_key(a) if a.value is not None else a.type for name, a in function.attributes.items()}


# -- notes ------------------------------------------------------------------------------------------------


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
    others = [of_a for of_a, of_b in wiring.initializers if _holds_other_values(wiring, of_a, of_b)]
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


def _holds_other_values(wiring: Wiring, of_a: int, of_b: int) -> bool:
    a, b = wiring.a, wiring.b
    if a.contents[of_a] is None or b.contents[of_b] is None:
        return False
    return a.initializers[of_a] == b.initializers[of_b] and a.contents[of_a] != b.contents[of_b]
