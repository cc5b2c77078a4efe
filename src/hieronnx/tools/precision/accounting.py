"""Accounting for a quantization: which nodes of the model compute in fewer bits now, and why the others do not.

It is seen in the two graphs, not in what a tool says. The nodes of the new graph that make a tensor of the old one, up
to other tensors of the old one, do the work of the node that made it there:

    A: x ─ MatMul ─ y        B: x ─ DynamicQuantizeLinear ─ MatMulInteger ─ Cast ─ Mul ─ y        in 8 bits
    A: x ─ Tanh ─ y          B: x ─ Tanh ─ y                                                      in float
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.graph.operators import DATA_MOVEMENT_OPS, DEQUANTIZE_OPS, QUANTIZE_OPS
from hieronnx.graph.shapes import infer_types
from hieronnx.graph.view import NO_TENSOR, View, ViewNode
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.hierarchy import Hierarchy, NodeKey
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.analyze.initializers import group_by_call, measure_initializers
from hieronnx.tools.carry.carrying import Transfer
from hieronnx.tools.carry.pair import Pair
from hieronnx.tools.precision.result import CallPrecision, FloatNodes, PrecisionReport

_FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"})
FEW_BITS = frozenset(
    kind.name for kind in ir.DataType if kind.name.lstrip("U").startswith(("INT4", "INT8", "INT16", "FLOAT8"))
)
"""The types that weights and what is computed are quantized to."""
_EQUAL_OPERANDS = frozenset({"Add", "Concat", "Mul", "Where"})
_QUANTIZED = "quantized"
_CONVERSIONS = QUANTIZE_OPS | DEQUANTIZE_OPS


@dataclass(frozen=True, slots=True)
class ToolReach:
    """What a tool was asked to quantize.

    Attributes:
        tool: The quantizer.
        bits: Of what it makes.
        known: The operators that it has a quantized form of; None for all but those that are blocked.
        chosen: Those of them that it was to quantize; None for all that it knows.
        excluded: The nodes that were to stay in float, by what identifies them in the file.
        blocked: The operators that it leaves in float.
        followers: The operators that it quantizes only where what they read is quantized already, beside those that
            move values.
        needs_weight: Whether it quantizes only nodes with a constant weight.
        enters_bodies: Whether it quantizes nodes in bodies of control flow.
    """

    tool: str
    bits: int
    known: Collection[str] | None
    chosen: Collection[str] | None
    excluded: Collection[NodeKey]
    blocked: Collection[str] = ()
    followers: Collection[str] = ()
    needs_weight: bool = False
    enters_bodies: bool = False


def report_precision(pair: Pair, moved: Transfer, reach: ToolReach) -> PrecisionReport:
    """Report what a tool made of each node, by call, and of the initializers."""
    verdicts = dict(_Judge(pair, moved, reach).judge())
    reasons = ((verdicts.get(node.key), node.op_type) for node in pair.hierarchy.nodes)
    kept = Counter((reason, op_type) for reason, op_type in reasons if reason not in (None, _QUANTIZED))
    before, after = _measure(pair.before.model, pair.hierarchy), _measure(pair.after.model, moved.hierarchy)
    return PrecisionReport(
        tool=reach.tool,
        bits=reach.bits,
        calls=tuple(_list_calls(pair.hierarchy, verdicts, before, after)),
        kept=tuple(FloatNodes(str(reason), op_type, number) for (reason, op_type), number in kept.most_common()),
    )


def count_bits(weight_type: Any, default: int = 8) -> int:
    """Return how many bits a type of weights has, by its name."""
    found = re.search(r"\d+", "" if weight_type is None else str(getattr(weight_type, "name", weight_type)))
    return default if found is None else int(found[0])


class _Judge:
    """Says of each node of the model as it was what became of it."""

    def __init__(self, pair: Pair, moved: Transfer, reach: ToolReach) -> None:
        self._a, self._b, self._reach = pair.a, pair.b, reach
        self._types_a = _read_types(pair.a, pair.before.model)
        # Of integers it is enough what initializers are.
        self._types_b = _read_types(pair.b, pair.after.model if reach.known is None else None)
        self._tensors, self._work = moved.carried.tensors, moved.carried.work
        self._known = {tensor for tensor in self._tensors if tensor is not None}
        self._workers: dict[int, list[int]] = defaultdict(list)
        for worker, done in self._work.items():
            for node in done:
                self._workers[node].append(worker)

    def judge(self) -> Iterator[tuple[NodeKey, str | None]]:
        """Yield each node and whether it is quantized, or why not; None where it computes no floats."""
        for index, node in enumerate(self._a.nodes):
            yield self._a.node_key(index), self._judge_node(index, node)

    def _judge_node(self, index: int, node: ViewNode) -> str | None:
        if not any(self._types_a.get(t, "FLOAT") in _FLOATS for t in node.makes):
            return None
        if self._a.node_key(index) in self._reach.excluded:
            return "excluded"
        if self._is_quantized(index, node):
            return _QUANTIZED
        return self._explain(index, node)

    def _explain(self, index: int, node: ViewNode) -> str:
        reach, operator = self._reach, node.op.rpartition("::")[2]
        if all(self._a.flow.constant[t] for t in node.makes):
            return "constant"
        known = reach.known is None or operator in reach.known or operator in (reach.chosen or ())
        if operator in reach.blocked or not known:
            return "no quantized kernel"
        if reach.chosen is not None and operator not in reach.chosen:
            return "operator not chosen"
        if self._a.node_key(index)[0] and not reach.enters_bodies:
            return "in control flow"
        if node.op in DATA_MOVEMENT_OPS or operator in reach.followers:
            return "input in float"
        weighted = len(node.inputs) > 1 and node.inputs[1] in self._a.constants
        return "left by the tool" if weighted or not reach.needs_weight else "no constant weight"

    def _is_quantized(self, index: int, node: ViewNode) -> bool:
        workers = [self._b.nodes[worker] for worker in self._find_workers(index)]
        if any(_is_integer_kernel(worker) for worker in workers):
            return True
        if self._reach.known is None:  # conversion to another float
            return any(self._types_b.get(t) == "FLOAT16" for worker in workers for t in worker.makes)
        chosen = self._reach.known if self._reach.chosen is None else self._reach.chosen
        return node.op.rpartition("::")[2] in chosen and any(self._reads_few_bits(node, worker) for worker in workers)

    def _reads_few_bits(self, node: ViewNode, worker: ViewNode) -> bool:
        """Say whether a worker has a node's floats in fewer bits: the first, or all where they are of equal standing.

        The others may be a bias, or bounds.
        """
        if worker.op in _CONVERSIONS:
            return False
        if worker.op != node.op:  # the node was merged with the one that it read
            return any(self._is_in_few_bits(worker, place) for place in range(len(worker.inputs)))
        places = [n for n, t in enumerate(node.inputs) if t != NO_TENSOR and self._types_a.get(t, "FLOAT") in _FLOATS]
        if node.op not in _EQUAL_OPERANDS:
            places = places[:1]
        return bool(places) and all(self._is_in_few_bits(worker, place) for place in places)

    def _is_in_few_bits(self, worker: ViewNode, place: int) -> bool:
        tensor = worker.inputs[place] if place < len(worker.inputs) else NO_TENSOR
        producer = None if tensor == NO_TENSOR else self._b.producers[tensor]
        converted = producer is not None and self._b.nodes[producer].op in DEQUANTIZE_OPS
        return converted or self._types_b.get(tensor) in FEW_BITS

    def _find_workers(self, index: int) -> set[int]:
        """Find the nodes of the new graph that do the work of a node."""
        b, found = self._b, set[int]()
        pending = [tensor for t in self._a.nodes[index].makes if (tensor := self._tensors[t]) is not None]
        while pending:
            producer = b.producers[pending.pop()]
            done = () if producer is None else self._work.get(producer, ())
            if producer is None or producer in found or (done and index not in done):
                continue
            found.add(producer)
            pending += [t for t in b.nodes[producer].inputs if t != NO_TENSOR and t not in self._known]
        return found.union(self._workers[index])


def _is_integer_kernel(node: ViewNode) -> bool:
    domain, _, operator = node.op.rpartition("::")
    return node.op not in _CONVERSIONS and category_of(operator, domain) == "quantization"


def _read_types(view: View, model: ir.Model | None) -> dict[int, str]:
    """Return the element types of tensors: as the file says, or inferred from a model where it does not."""
    known = {tensor: type_.dtype for tensor, type_ in enumerate(view.types) if type_ is not None}
    if model is None or len(known) == len(view.names):
        return known
    try:
        inferred = infer_types(model, {})
    except HieronnxError:  # what is not known counts as float
        return known
    by_name = {value.name: info.type.tensor_type.elem_type for value, info in inferred.items() if value.name}
    for tensor, name in enumerate(view.names):
        if tensor not in known and by_name.get(name):
            known[tensor] = onnx.TensorProto.DataType.Name(by_name[name])
    return known


# -- by call ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bytes:
    """The bytes of a model's initializers, and those of each call where it is known whose they are."""

    total: int
    by_call: Mapping[CallId, int] | None


def _measure(model: ir.Model, hierarchy: Hierarchy) -> _Bytes:
    nodes = ((hierarchy.node_by_key.get((key, first_output(node))), node) for key, node in walk_nodes(model))
    sizes = measure_initializers(model, hierarchy, {node: known for known, node in nodes if known is not None})
    total = sum(size.bytes for size in sizes)
    if not hierarchy.has_parameter_counts:
        return _Bytes(total, None)
    grouped = group_by_call(sizes, hierarchy)
    return _Bytes(total, {call: sum(sizes[position].bytes for position in own) for call, own in grouped.items()})


def _list_calls(
    hierarchy: Hierarchy, verdicts: Mapping[NodeKey, str | None], before: _Bytes, after: _Bytes
) -> Iterator[CallPrecision]:
    """Yield each call with the counts of its own nodes and of all below."""
    counts: dict[CallId, Counter[str | None]] = defaultdict(Counter)
    for node in hierarchy.nodes:
        counts[node.scope][verdicts.get(node.key)] += 1
    for call in reversed(hierarchy.calls):  # every call comes after the one above it
        if call.parent is not None:
            counts[call.parent].update(counts[call.id])
    for call in hierarchy.calls:
        found = counts[call.id]
        reasons = {reason: n for reason, n in found.most_common() if reason not in (None, _QUANTIZED)}
        whole = call.parent is None
        sizes = (s.total if whole else None if s.by_call is None else s.by_call[call.id] for s in (before, after))
        yield CallPrecision(
            call.id.module,
            call.id.number,
            call.tag,
            hierarchy.modules[call.id.module].class_name,
            found[_QUANTIZED],
            sum(reasons.values()),
            found[None],
            {str(reason): n for reason, n in reasons.items()},
            *sizes,
        )
