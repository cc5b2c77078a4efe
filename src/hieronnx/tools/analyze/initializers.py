"""The initializers of a model: how large each is, and which module and which calls it is of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import onnx_ir as ir

from hieronnx.graph.operators import PASSTHROUGH_OPS, name_domain, name_operator
from hieronnx.hierarchy.hierarchy import Hierarchy, find_common_path, find_owner, walk_up
from hieronnx.hierarchy.records import CallId, Node


class InitializerSize(NamedTuple):
    """How large an initializer is, and whose it is."""

    elements: int
    bytes: int
    parameter: str | None
    """The parameter or buffer that it holds, where the hierarchy knows."""
    owner: str | None
    """The module that has the parameter; else the lowest one above all nodes that read it. None if not known."""


def measure_initializers(
    model: ir.Model, hierarchy: Hierarchy | None, nodes: Mapping[ir.Node, Node]
) -> list[InitializerSize]:
    """Measure a model's initializers, those of bodies included; only a sidecar knows whose they are."""
    with_sidecar = hierarchy if hierarchy is not None and hierarchy.model else None
    parameters = {item.name: item.parameter for item in with_sidecar.initializers} if with_sidecar else {}
    graphs = (graph for graph in model.graphs() if isinstance(graph, ir.Graph))
    sizes = []
    for value in (value for graph in graphs for value in graph.initializers.values()):
        parameter, owner = parameters.get(value.name or ""), None
        if with_sidecar is not None:
            owner = find_owner(with_sidecar.modules, parameter) if parameter else _find_reader(value, nodes)
        sizes.append(InitializerSize(*measure_initializer(value), parameter, owner))
    return sizes


def measure_initializer(value: ir.Value) -> tuple[int, int]:
    """Return how many elements an initializer has and how many bytes these take; strings take none."""
    tensor = value.const_value
    shape, dtype = (value.shape, value.dtype) if tensor is None else (tensor.shape, tensor.dtype)
    elements = prod(max(dim, 0) for dim in shape or () if isinstance(dim, int))
    if dtype is None or dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return elements, 0
    return elements, (elements * dtype.bitwidth + 7) // 8


def _find_reader(value: ir.Value, nodes: Mapping[ir.Node, Node]) -> str | None:
    """Return the lowest module above all whose work is done with an initializer; None if nothing reads it.

    Several calls of a module may share a node: the call above them all is that of another module.
    """
    readers = (nodes[node] for node in _walk_readers(value) if node in nodes)
    paths = {origin.module for reader in readers for origin in reader.origins}
    return find_common_path(paths) if paths else None


def _walk_readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that read a value, also behind nodes that only pass it on, as from few bits."""
    pending = [value]
    for current in pending:
        for node, place in current.uses():
            if place == 0 and name_operator(name_domain(node.domain), node.op_type) in PASSTHROUGH_OPS:
                pending.append(node.outputs[0])
            else:
                yield node


def group_by_call(sizes: Sequence[InitializerSize], hierarchy: Hierarchy) -> dict[CallId, set[int]]:
    """Return for each call the initializers, by position, of its module, of those below it and those that it calls."""
    by_module: dict[str, list[int]] = defaultdict(list)
    for position, size in enumerate(sizes):
        for path in () if size.owner is None else walk_up(size.owner):
            by_module[path].append(position)
    by_call: dict[CallId, set[int]] = defaultdict(set)
    for call in reversed(hierarchy.calls):  # every call comes after the one above it
        by_call[call.id].update(by_module.get(call.id.module, ()))
        if call.parent is not None:
            by_call[call.parent] |= by_call[call.id]
    return by_call
