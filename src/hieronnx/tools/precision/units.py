"""What can stay in float by itself: the nodes of one module that are in 8 bits, without those of modules below it.

How much of the outputs' error each is to blame for is not known before it is tried. It is estimated from the error
that every call makes alone: the error of the whole is divided among the modules below it as the squares of what these
make, and each part in the same way, down to the innermost. So a module is held to those beside it alone, whatever the
way from there to the outputs does to all of them::

    whole 1.0  ─→  layer.0 (error 2)  0.8  ─→  query (error 1)  0.4
                                               key   (error 1)  0.4
                   layer.1 (error 1)  0.2  ─→  …
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import onnx_ir as ir

from hieronnx.files.opening import open_model
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.hierarchy import Hierarchy, walk_up
from hieronnx.tools.analyze.counting import analyze
from hieronnx.tools.analyze.result import AnalyzedNode
from hieronnx.tools.precision.accounting import FEW_BITS
from hieronnx.tools.verify.result import VerifyResult

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Unit:
    """The nodes of one module that are in 8 bits, if nothing is kept in float.

    Attributes:
        module: The module's path.
        noise: The part of the outputs' error that it is likely to make, as the square; all together make 1.
        multiply_adds: In 8 bits, of all its calls.
        bytes: In float, of the weights that are in 8 bits.
    """

    module: str
    noise: float
    multiply_adds: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Units:
    """All units of a model, and what the whole model costs."""

    all: tuple[Unit, ...]
    multiply_adds: int
    bytes: int
    children: Mapping[str, tuple[str, ...]]
    """For each module those right below it that have nodes."""

    @classmethod
    def of(cls, source: Path, quantized: Path, verified: VerifyResult, dims: Mapping[str, int]) -> Units:
        """List the units of a model, of which everything was quantized and every call was compared."""
        hierarchy = verified.hierarchy
        modules = list_in_few_bits(hierarchy)
        adds, sizes = _count_products(quantized, dims), _count_weights(open_model(quantized).model, hierarchy)
        noise = _divide_noise(modules, _list_errors(verified))
        analyzed = analyze(source, dims=dims)
        units = (Unit(path, noise[path], adds[path], sizes[path]) for path in modules)
        return cls(tuple(units), analyzed.total.multiply_adds, analyzed.bytes, cls.find_children(hierarchy))

    @staticmethod
    def find_children(hierarchy: Hierarchy) -> dict[str, tuple[str, ...]]:
        """Return for each module those right below it that have nodes, themselves or below; lists are passed over."""
        children: defaultdict[str, dict[str, None]] = defaultdict(dict)
        called = {call.id.module for call in hierarchy.calls}
        for node in hierarchy.nodes:
            way = [path for path in walk_up(node.scope.module) if path in called or not path]
            for child, parent in pairwise(way):
                children[parent][child] = None
        return {parent: tuple(found) for parent, found in children.items()}

    def name(self, kept: Collection[str]) -> tuple[str, ...]:
        """Return selections that leave these modules' own nodes in float, a module's path where all below it stays."""
        wanted = {unit.module for unit in self.all}
        return tuple(sorted(self._name_below("", set(kept), wanted)))

    def _name_below(self, path: str, kept: set[str], wanted: set[str]) -> Iterator[str]:
        inside = {module for module in wanted if path in walk_up(module)}
        if not inside & kept:
            return
        if path and inside <= kept and (len(inside) > 1 or inside == {path}):
            yield path
            return
        below = self.children.get(path, ())
        if path in kept:
            without = f"({' or '.join(below)})" if len(below) > 1 else "".join(below)
            yield f"{path} and not {without}" if path else f"not {without}"
        for child in below:
            yield from self._name_below(child, kept, wanted)


def list_in_few_bits(hierarchy: Hierarchy) -> list[str]:
    """Return the modules with work in few bits of their own; what finds a range as it runs is none."""
    scopes = (
        node.scope.module
        for node in hierarchy.nodes
        if category_of(node.op_type, node.domain) == "quantization" and node.op_type != "DynamicQuantizeLinear"
    )
    return list(dict.fromkeys(scopes))


# -- what it costs ----------------------------------------------------------------------------------------


def list_products(quantized: Path, dims: Mapping[str, int]) -> Iterator[AnalyzedNode]:
    """Yield the nodes with multiply-adds of which both factors are in few bits."""
    model = open_model(quantized).model
    made = {value.name: node.op_type for _, node in walk_nodes(model) for value in node.outputs}
    factors = {
        (graph, first_output(node)): {made.get(value.name) for value in node.inputs[:2] if value is not None}
        for graph, node in walk_nodes(model)
    }
    for node in analyze(quantized, dims=dims).nodes:
        in_few = node.category == "quantization" or factors[node.graph, node.output] == {"DequantizeLinear"}
        if node.multiply_adds and in_few:
            yield node


def _count_products(quantized: Path, dims: Mapping[str, int]) -> Counter[str]:
    """Count the multiply-adds in few bits, by module."""
    counts: Counter[str] = Counter()
    for node in list_products(quantized, dims):
        counts[node.attribution.scope.module if node.attribution is not None else ""] += node.multiply_adds or 0
    return counts


def _count_weights(model: ir.Model, hierarchy: Hierarchy) -> Counter[str]:
    """Count the bytes in float of the weights that are in few bits, by the module that reads each first."""
    readers = {
        value.name: known.scope.module
        for graph, node in reversed(list(walk_nodes(model)))
        if (known := hierarchy.node_by_key.get((graph, first_output(node)))) is not None
        for value in node.inputs
        if value is not None
    }
    sizes: Counter[str] = Counter()
    for name, value in model.graph.initializers.items():
        weight = value.const_value
        if weight is not None and weight.dtype.name in FEW_BITS and weight.size > 1:
            sizes[readers.get(name, "")] += weight.size * _FLOAT_BYTES
    return sizes


# -- what it is likely to do ------------------------------------------------------------------------------


def _list_errors(verified: VerifyResult) -> dict[str, float]:
    """Return the square of the error that each module makes alone, of its calls the worst; more than all is all."""
    errors: dict[str, float] = {}
    for call in verified.calls:
        errors[call.module] = max(errors.get(call.module, 0.0), min(call.introduced.severity, 1.0) ** 2)
    return errors


def _divide_noise(modules: Sequence[str], errors: Mapping[str, float]) -> dict[str, float]:
    """Divide 1 among modules, from the root down."""
    noise: dict[str, float] = {}
    waiting = [("", 1.0)]
    while waiting:
        path, amount = waiting.pop()
        parts = _find_parts(path, modules, errors)
        whole = math.fsum(parts.values())
        for part, error in parts.items():
            share = amount * error / whole if whole else amount / len(parts)
            if part == path:
                noise[part] = share
            else:
                waiting.append((part, share))
    return noise


def _find_parts(path: str, modules: Sequence[str], errors: Mapping[str, float]) -> dict[str, float]:
    """Return what a module's error is made of: the nearest modules below it with an error, and its own nodes."""
    found: dict[str, float | None] = {}
    for module in modules:
        way = list(walk_up(module))
        if path in way and module != path:
            between = way[: way.index(path)]
            nearest = next((above for above in reversed(between) if above in errors), module)
            found[nearest] = errors.get(nearest)
    known = [error for error in found.values() if error is not None]
    usual = math.fsum(known) / len(known) if known else errors.get(path, 1.0)
    parts = {part: usual if error is None else error for part, error in found.items()}
    if path in modules:  # what those below do not explain is its own
        left = errors.get(path, usual) - math.fsum(parts.values())
        parts[path] = max(left, min(parts.values(), default=1.0))
    return parts
