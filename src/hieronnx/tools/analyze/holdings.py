"""What a model's initializers hold, and which modules it belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod

import onnx_ir as ir

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId


@dataclass(frozen=True, slots=True)
class Holding:
    """An initializer: how large it is, and whose it is."""

    name: str
    elements: int
    bytes: int
    parameter: str | None
    """The parameter or buffer that it holds, where the hierarchy knows."""
    owner: str | None
    """The module that has the parameter; else the lowest one above all nodes that read it. None if not known."""


def find_holdings(model: ir.Model, hierarchy: Hierarchy | None, scopes: Mapping[ir.Node, CallId]) -> list[Holding]:
    """List a model's initializers; only a sidecar knows whose they are.

    Args:
        model: The model.
        hierarchy: Its hierarchy, if it has one.
        scopes: The call that each node belongs to.
    """
    told = hierarchy is not None and bool(hierarchy.model)
    parameters = {held.name: held.parameter for held in hierarchy.initializers} if hierarchy and told else {}
    holdings = []
    for value in _initializers(model):
        parameter = parameters.get(value.name or "")
        owner = None
        if hierarchy is not None and told:
            owner = _find_owner(parameter, hierarchy) if parameter else _find_reader(value, scopes)
        holdings.append(Holding(value.name or "", *_measure(value), parameter, owner))
    return holdings


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        if isinstance(graph, ir.Graph):
            yield from graph.initializers.values()


def _measure(value: ir.Value) -> tuple[int, int]:
    """Return how many elements an initializer has and how many bytes these take; strings take none."""
    tensor = value.const_value
    shape, dtype = (value.shape, value.dtype) if tensor is None else (tensor.shape, tensor.dtype)
    elements = prod(max(dim, 0) for dim in shape or () if isinstance(dim, int))
    if dtype is None or dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return elements, 0
    return elements, (elements * dtype.bitwidth + 7) // 8


def _find_owner(parameter: str, hierarchy: Hierarchy) -> str:
    """Return the module that a parameter's path leads into; keys of lists of parameters are no modules."""
    path = parameter
    while path:
        path = path.rpartition(".")[0]
        if path in hierarchy.modules:
            return path
    return ""


def _find_reader(value: ir.Value, scopes: Mapping[ir.Node, CallId]) -> str | None:
    """Return the lowest module above all nodes that read an initializer; None if nothing reads it."""
    paths = {scopes[use.node].module for use in value.uses() if use.node in scopes}
    if not paths:
        return None
    segments = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, segments))


def hold_by_call(holdings: Sequence[Holding], hierarchy: Hierarchy) -> dict[CallId, set[int]]:
    """Return for each call the holdings, by position, of its module, of those below it and of those that it calls."""
    by_module: dict[str, list[int]] = defaultdict(list)
    for position, holding in enumerate(holdings):
        for path in _ways_up(holding.owner):
            by_module[path].append(position)
    held: dict[CallId, set[int]] = {}
    for call in reversed(hierarchy.calls):  # every call comes after the one above it
        mine = held.setdefault(call.id, set())
        mine.update(by_module.get(call.id.module, ()))
        if call.parent is not None:
            held.setdefault(call.parent, set()).update(mine)
    return held


def _ways_up(path: str | None) -> Iterable[str]:
    """Yield a module's path and those above it, up to the root."""
    while path is not None:
        yield path
        path = (path.rpartition(".")[0] if "." in path else "") if path else None
