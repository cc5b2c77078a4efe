"""Tensors of two graphs whose nodes are matched: which constant of B is which of A, and where A's values are in B.

A tool may rename a constant (quantized, transposed, folded) and everything that is computed from constants alone. No
fixed point lies before these; but a node that stands for one of A reads what that one reads, if only one can be meant:

    A: MatMul(x, weight)          B: MatMulInteger(small, weight_quantized)          weight_quantized is weight
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence

from hieronnx.graph.operators import BLOCKED_DOMAIN, BOUNDING_OPS, DEQUANTIZE_OPS, QUANTIZE_OPS, RESHAPE_OPS
from hieronnx.graph.view import NO_TENSOR, TensorType, View, ViewNode
from hieronnx.match.kinds import find_readers, see_through
from hieronnx.match.structure import Matcher


def pair_constants(matcher: Matcher, work: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return for nodes of B that compute constants the nodes of A that they stand for.

    `work` has for each node of B the nodes of A whose work it does. The matcher learns which tensor each constant is.
    """
    nodes: dict[int, int] = {}
    pending = list(work.items())
    while pending:
        for of_b, of_a in _pair_read(matcher, *pending.pop()):
            matcher.tensor_in_a[of_b] = of_a
            producer_b, producer_a = matcher.b.producers[of_b], matcher.a.producers[of_a]
            if producer_b is None or producer_a is None or producer_b in work or producer_b in nodes:
                continue
            nodes[producer_b] = producer_a
            pending.append((producer_b, (producer_a,)))
    return nodes


def _pair_read(matcher: Matcher, index: int, nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pair the constants that a node of B reads with those that its nodes of A read, where only one can be meant."""
    a, b, in_a, number = matcher.a, matcher.b, matcher.tensor_in_a, matcher.values.number
    reads = b.nodes[index].reads
    unknown = see_through(b, (t for t in reads if b.flow.constant[t] and in_a[t] is None))
    of_b = [t for t in unknown if in_a[t] is None]
    if not of_b:
        return
    paired = {number[same] for t in reads if (same := in_a[t]) is not None}
    read_by_a = see_through(a, (t for node in nodes for t in a.nodes[node].reads if a.flow.constant[t]))
    inside = set(nodes)
    of_a = [t for t in read_by_a if a.producers[t] not in inside and number[t] not in paired]
    sizes_a, sizes_b = ({t: _size(view, t) for t in tensors} for view, tensors in ((a, of_a), (b, of_b)))
    shared = {size for size in {*sizes_a.values()} & {*sizes_b.values()} if size is not None and size > 1}
    for fitting in ({None}, shared):
        left_a, left_b = ([t for t, size in sizes.items() if size in fitting] for sizes in (sizes_a, sizes_b))
        if len(left_a) == len(left_b) == 1:
            yield left_b[0], left_a[0]


def _size(view: View, tensor: int) -> int | None:
    """Return how many elements a tensor has that is held, 0 where that is not known; None for one that is computed."""
    if view.producers[tensor] is not None:
        return None
    type_ = view.types[tensor]
    shape = () if type_ is None else type_.shape
    return 0 if None in shape else math.prod(size for size in shape if size is not None)


def map_tensors(matcher: Matcher) -> list[int | None]:
    """Return for each tensor of A the tensor of B that holds its value; None where none is known to.

    It is the tensor that was matched with it, or else one that was matched with an equal computation of A.
    """
    a, b = matcher.a, matcher.b
    exact = dict(_pair_pieces(matcher))
    reshaped = _find_reshaped(matcher)
    pairs = [(t, same) for t, same in enumerate(matcher.tensor_in_a) if same is not None and t not in reshaped]
    pairs = [(of_b, of_a) for of_b, of_a in pairs if _has_value(matcher, of_b, of_a)]
    numbers = matcher.values.see_through_copies(_find_types(matcher, pairs))
    equal: dict[int, list[int]] = defaultdict(list)
    for of_b, of_a in pairs:
        exact.setdefault(of_a, of_b)
        equal[numbers[of_a]].append(of_b)
    visible = _find_visible(matcher)
    tensors: list[int | None] = []
    for tensor, number in enumerate(numbers):
        graphs = visible.get(a.tensor_graphs[tensor], ())
        others = (t for t in equal.get(number, ()) if b.tensor_graphs[t] in graphs)
        found = exact[tensor] if tensor in exact else next(others, None)
        tensors.append(None if found is None else _look_behind_rounding(matcher, found, tensor))
    return tensors


def _find_types(matcher: Matcher, pairs: Iterable[tuple[int, int]]) -> dict[int, Hashable]:
    """Return the types that B tells of tensors of A: sizes are numbers, or have names that inputs of A have, too."""
    a, b = matcher.a, matcher.b
    named = {size for tensor in a.graphs[0].inputs for size in a.axes[tensor] or ()}
    types: dict[int, Hashable] = {}
    for of_b, of_a in pairs:
        type_, sizes = b.full_type(of_b), b.axes[of_b] or ()
        if type_ is not None and all(isinstance(size, int) or size in named for size in sizes):
            types.setdefault(of_a, type_)
    return types


def _look_behind_rounding(matcher: Matcher, of_b: int, of_a: int) -> int:
    """Return where a value is that A bounds, and B bounds only where it rounds: behind that.

    Quantizers drop a Relu before a rounding that holds nothing below zero, and give its name to what it read::

        A: Conv ─→ x ─→ Relu ─→ y          B: Conv ─→ y ─→ QuantizeLinear ─→ DequantizeLinear ─→ here
    """
    b, maker_a, maker_b = matcher.b, matcher.a.producers[of_a], matcher.b.producers[of_b]
    if maker_a is None or maker_b is None or matcher.a.nodes[maker_a].op not in BOUNDING_OPS:
        return of_b
    if b.nodes[maker_b].op == matcher.a.nodes[maker_a].op or of_b in b.graphs[b.tensor_graphs[of_b]].outputs:
        return of_b
    rounded = _find_only_reader(b, of_b, QUANTIZE_OPS)
    restored = None if rounded is None else _find_only_reader(b, rounded, DEQUANTIZE_OPS)
    return of_b if restored is None else restored


def _find_only_reader(view: View, tensor: int, ops: Container[str]) -> int | None:
    """Return what is made of a tensor that one node alone reads, if that is one of some operators."""
    readers = view.consumers[tensor]
    return view.nodes[readers[0]].outputs[0] if len(readers) == 1 and view.nodes[readers[0]].op in ops else None


def _has_value(matcher: Matcher, of_b: int, of_a: int) -> bool:
    """Say whether a tensor of B has the value of its match: its name alone may have been given to another."""
    producer = matcher.b.producers[of_b]
    if producer in matcher.passed_on:
        return False  # in another type or layout
    if matcher.fixed.get(of_b) == of_a:
        return True
    if producer is not None:
        match = matcher.matches.get(producer)
        return match is None or match.proven
    if of_b not in matcher.b.constants or matcher.a.producers[of_a] is not None:
        return True  # an input; or what A computed, and B holds under its name
    return matcher.a.constants.get(of_a) == matcher.b.constants[of_b]


def _find_reshaped(matcher: Matcher) -> set[int]:
    """Find the tensors of B that need not have the sizes of their matches: a tool may compute with matrices instead.

        A: x ─ Reshape ─ r ─ MatMul ─ m ─ Relu ─ y           B: x ─ Reshape ─ new ─ Gemm ─ m ─ Relu ─ y

    Sizes that both graphs tell are known. Where they are not told, what is reshaped under a new name has other sizes,
    unless the same operators read it; so has what is made of such tensors alone, up to a Reshape that makes a tensor of
    A again, or to an output. What operators on blocks of channels read or make is no matrix.
    """
    a, b = matcher.a, matcher.b
    outputs, constant = {tensor for graph in b.graphs for tensor in graph.outputs}, b.flow.constant
    reshaped: set[int] = set()
    for node in b.nodes:
        data = [tensor for tensor in node.reads if not constant[tensor]]
        for tensor in node.makes:
            same = matcher.tensor_in_a[tensor]
            if tensor in outputs or constant[tensor] or _is_told(matcher, tensor, same) or _is_blocked(b, tensor):
                continue
            if node.op not in RESHAPE_OPS:
                is_same = not data or not reshaped.issuperset(data)
            elif same is not None and a.names[same] != b.names[tensor]:
                readers = {a.nodes[reader].op for reader in find_readers(a, same)[0]}
                is_same = all(b.nodes[reader].op in readers for reader in find_readers(b, tensor)[0])
            else:
                is_same = same is not None
            if not is_same:
                reshaped.add(tensor)
    return reshaped


def _is_blocked(view: View, tensor: int) -> bool:
    """Say whether an operator on blocks of channels, which takes no matrices, reads or makes a tensor."""
    nodes = (index for index in (view.producers[tensor], *view.consumers[tensor]) if index is not None)
    return any(view.nodes[index].op.startswith(f"{BLOCKED_DOMAIN}::") for index in nodes)


def _is_told(matcher: Matcher, of_b: int, of_a: int | None) -> bool:
    """Say whether both graphs tell the same sizes of a tensor."""
    sizes = None if of_a is None else matcher.a.axes[of_a]
    return sizes is not None and None not in sizes and sizes == matcher.b.axes[of_b]


def _find_visible(matcher: Matcher) -> dict[int, list[int]]:
    """Return for each graph of A the graphs of B whose tensors its match can read: itself and all around it."""
    visible = {}
    for of_b, of_a in matcher.graph_in_a.items():
        visible[of_a] = [of_b]
        while (owner := matcher.b.graphs[visible[of_a][-1]].owner) is not None:
            visible[of_a].append(matcher.b.nodes[owner].graph)
    return visible


def _pair_pieces(matcher: Matcher) -> Iterator[tuple[int, int]]:
    """Pair `SequenceAt(SplitToSequence(x), 1)` of A with the second output of a Split of the same tensor in B."""
    a, b, number = matcher.a, matcher.b, matcher.values.number
    splits: dict[int, list[ViewNode]] = defaultdict(list)
    for node in b.nodes:
        same = matcher.tensor_in_a[node.inputs[0]] if node.op == "Split" else None
        if same is not None:
            splits[number[same]].append(node)
    for node in a.nodes if splits else ():
        producer = a.producers[node.inputs[0]] if node.op == "SequenceAt" else None
        position = None if producer is None else matcher.values.elements(node.inputs[1])
        if producer is None or position is None or a.nodes[producer].op != "SplitToSequence":
            continue
        sequence, piece = a.nodes[producer], node.outputs[0]
        for split in splits.get(number[sequence.inputs[0]], ()):
            output = split.outputs[position.item()] if 0 <= position.item() < len(split.outputs) else NO_TENSOR
            type_ = None if output == NO_TENSOR or a.types[piece] != b.types[output] else b.types[output]
            if type_ is not None and _axis(split, type_) == _axis(sequence, type_):
                yield piece, output


def _axis(node: ViewNode, type_: TensorType) -> int:
    axis = node.attribute("axis")
    return axis % len(type_.shape) if isinstance(axis, int) else 0


def find_behind(matcher: Matcher, index: int) -> tuple[int, tuple[int, ...]] | None:
    """Find what a node without a match was put behind: it makes a tensor of A from that very tensor.

        A: x ─ MatMul ─ a ─ Relu ─ y          B: x ─ MatMul ─ new ─ Mul ─ a ─ Relu ─ y

    Returns the tensor, `new`, and the nodes behind it, Mul; None if others read `new` as well.
    """
    b, number = matcher.b, matcher.values.number
    is_open = len(b.nodes[index].makes) == 1 and index not in matcher.matches and index not in matcher.passed_on
    if not is_open:
        return None
    made = b.nodes[index].makes[0]
    same = matcher.find_by_name(made)
    if same is None:  # its name may be that of a fixed point which has another in B
        same = matcher.renamed.get(b.names[made])
    if same is None:
        return None
    nodes, _ = matcher.gather_group(index)
    read = {t: matcher.tensor_in_a[t] for n in nodes for t in b.nodes[n].reads}
    found = [t for t, of_a in read.items() if of_a is not None and number[of_a] == number[same]]
    if len(found) != 1 or found[0] in b.graphs[b.tensor_graphs[found[0]]].outputs:
        return None
    between = (found[0], *(t for n in nodes if n != index for t in b.nodes[n].makes))
    readers = {r for t in between for r in b.consumers[t] if not all(b.flow.constant[o] for o in b.nodes[r].makes)}
    return (found[0], nodes) if readers.issubset(nodes) else None
