"""What two aligned models do not have in common: the second half of a comparison."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import zip_longest

import onnx_ir as ir

from hieronnx.files.opening import OpenedModel
from hieronnx.graph.building import attribute_value_key
from hieronnx.graph.view import NO_TENSOR
from hieronnx.graph.walks import function_key
from hieronnx.match.align.numbering import NO_MATCH, Side, given_inputs
from hieronnx.match.align.signatures import describe_signature
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.interface import compare_interfaces
from hieronnx.tools.compare.result import ComparedNode, CompareResult, Difference, Kind, NodeChange, ValueChange


def find_differences(wiring: Wiring, a: OpenedModel, b: OpenedModel, *, names: bool, values: bool) -> CompareResult:
    """Tell what differs between two aligned models; whether contents of initializers count, the sides know."""
    return CompareResult(
        a=a.name,
        b=b.name,
        pairs=sum(mate != NO_MATCH for mate in wiring.alignment.match_in_b),
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
    position = {node: place for place, node in enumerate(wiring.a.view.file_order)}
    found: list[tuple[tuple[int, int], NodeChange]] = []
    for a, b in enumerate(wiring.alignment.match_in_b):
        if b == NO_MATCH:
            found.append(((position[a], 0), NodeChange("removed", _describe(wiring.a, a), None)))
        elif differences := tuple(_compare_nodes(wiring, a, b, names)):
            change = NodeChange("changed", _describe(wiring.a, a), _describe(wiring.b, b), differences=differences)
            found.append(((position[a], 0), change))
    preceding = -1
    for place, b in enumerate(wiring.b.view.file_order):
        mate = wiring.alignment.match_in_a[b]
        if mate == NO_MATCH:
            found.append(((preceding, 1 + place), NodeChange("added", None, _describe(wiring.b, b))))
        else:
            preceding = position[mate]
    return tuple(change for _, change in sorted(found, key=lambda item: item[0]))


def _describe(side: Side, node: int) -> ComparedNode:
    found = side.view.nodes[node]
    domain, _, op_type = found.op.rpartition("::")
    graph, output = side.view.node_key(node)
    return ComparedNode(graph, found.name, op_type, domain, output)


def _compare_nodes(wiring: Wiring, a: int, b: int, names: bool) -> Iterator[Difference]:
    yield from describe_signature(wiring.a, a, wiring.b, b)
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
    return "(none)" if tensor == NO_TENSOR else side.view.names[tensor]


# -- initializers, functions, headers ---------------------------------------------------------------------


def _compare_initializers(wiring: Wiring, names: bool) -> Iterator[ValueChange]:
    a, b = wiring.a, wiring.b
    for of_a, of_b in wiring.initializers:
        differences = tuple(_compare_held(wiring, of_a, of_b, names))
        if differences:
            graph = b.view.graphs[b.view.tensor_graphs[of_b]].key
            yield ValueChange("initializer", "changed", graph, a.view.names[of_a], b.view.names[of_b], differences)
    for tensor in a.held:
        if tensor not in wiring.mates:
            graph = a.view.graphs[a.view.tensor_graphs[tensor]].key
            yield ValueChange("initializer", "removed", graph, a.view.names[tensor], None)
    for tensor in b.held:
        if tensor not in wiring.mates_back:
            graph = b.view.graphs[b.view.tensor_graphs[tensor]].key
            yield ValueChange("initializer", "added", graph, None, b.view.names[tensor])


def _compare_held(wiring: Wiring, of_a: int, of_b: int, names: bool) -> Iterator[Difference]:
    a, b = wiring.a, wiring.b
    type_a, type_b = _show_type(a, of_a), _show_type(b, of_b)
    if type_a != type_b:
        yield Difference("type", "", type_a, type_b)
    elif a.held[of_a] != b.held[of_b]:
        yield Difference("values", "", type_a, type_b)
    if names and a.view.names[of_a] != b.view.names[of_b]:
        yield Difference("name", "", a.view.names[of_a], b.view.names[of_b])


def _show_type(side: Side, tensor: int) -> str:
    found = side.view.types[tensor]
    return "unknown" if found is None else f"{found.dtype.lower()}[{', '.join(map(str, found.shape))}]"


def _compare_functions(a: ir.Model, b: ir.Model) -> Mapping[str, Kind]:
    """Tell which functions only one model has, and which declare other attributes; nodes are compared as nodes."""
    functions_a, functions_b = (
        {function_key(*function.identifier()): function for function in model.functions.values()} for model in (a, b)
    )
    found: dict[str, Kind] = dict.fromkeys(sorted(functions_a.keys() - functions_b.keys()), "removed")
    found |= dict.fromkeys(sorted(functions_b.keys() - functions_a.keys()), "added")
    for key in sorted(functions_a.keys() & functions_b.keys()):
        if _declared(functions_a[key]) != _declared(functions_b[key]):
            found[key] = "changed"
    return found


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
    known = a.small[of_a] is not None and b.small[of_b] is not None
    return known and a.held[of_a] == b.held[of_b] and a.small[of_a] != b.small[of_b]
