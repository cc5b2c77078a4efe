"""Comparing the inputs and outputs of two models: their number, types, shapes and dynamic axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from hieronnx.graph.view import View
from hieronnx.match.align.alignment import pair_ends
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.result import Difference, ValueChange

_INPUTS_ARE_NO_DEFAULTS = 4


def compare_interfaces(wiring: Wiring, a: ir.Model, b: ir.Model, *, names: bool) -> Iterator[ValueChange]:
    """Yield the inputs and outputs that differ; of bodies and functions too, whose types do not count."""
    values_a, values_b = _find_values(wiring.a.view, a), _find_values(wiring.b.view, b)
    comparer = _EndComparer(wiring, values_a, values_b, names)
    for graph_b, graph_a in sorted(wiring.alignment.graph_in_a.items()):
        yield from comparer.compare("input", graph_a, graph_b)
        yield from comparer.compare("output", graph_a, graph_b)
    yield from _compare_defaults(wiring, a, b)


def _compare_defaults(wiring: Wiring, a: ir.Model, b: ir.Model) -> Iterator[ValueChange]:
    """Yield the inputs with a default, an initializer of their name, that only one of the models has.

    Before IR version 4 every initializer had to be among the inputs: there it means nothing.
    """
    if min(a.ir_version, b.ir_version) < _INPUTS_ARE_NO_DEFAULTS:
        return
    a_side, b_side = wiring.a, wiring.b
    defaults_a = dict.fromkeys(t for t in a_side.view.graphs[0].inputs if t in a_side.initializers)
    defaults_b = dict.fromkeys(t for t in b_side.view.graphs[0].inputs if t in b_side.initializers)
    for tensor in defaults_a:
        if wiring.tensor_in_b.get(tensor) not in defaults_b:
            yield ValueChange("input", "removed", "", a_side.view.names[tensor], None)
    for tensor in defaults_b:
        if wiring.tensor_in_a.get(tensor) not in defaults_a:
            yield ValueChange("input", "added", "", None, b_side.view.names[tensor])


def _find_values(view: View, model: ir.Model) -> Mapping[int, ir.Value]:
    tensors, values = view.graphs[0], model.graph
    return dict(zip((*tensors.inputs, *tensors.outputs), (*values.inputs, *values.outputs), strict=True))


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
        if of_a in self.values_a and of_b in self.values_b:
            left, right = self.values_a[of_a], self.values_b[of_b]
            if not self._same_type(left, right):
                yield Difference("type", "", _show_type(left), _show_type(right))
        if self.names and name_a != name_b:
            yield Difference("name", "", name_a, name_b)

    def _same_type(self, a: ir.Value, b: ir.Value) -> bool:
        if a.type != b.type or (a.shape is None) != (b.shape is None):
            return False
        if a.shape is None or b.shape is None:
            return True
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
