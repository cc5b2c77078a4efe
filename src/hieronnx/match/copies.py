"""Seeing through what leaves a value as it was: sizes that do not change, axes that are put back, pieces of a split."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from hieronnx.graph.operators import COMMUTATIVE_OPS, NEUTRAL_OPERANDS, RESHAPE_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import NO_TENSOR, TensorType, View, ViewNode
from hieronnx.match.structure import Matcher


def number_through_copies(view: View, values: Values) -> list[int]:
    """Number the tensors of a graph; one that is a copy of another has its number."""
    copies = _Copies(view, values)
    for node in view.nodes:
        if node.inputs and node.outputs and NO_TENSOR not in (node.inputs[0], node.outputs[0]):
            copies.add(node)
    return [copies.same.get(number, number) for number in values.number]


class _Copies:
    """Walks a graph in order, and finds the tensors that are copies of earlier ones."""

    def __init__(self, view: View, values: Values) -> None:
        self.same: dict[int, int] = {}
        """For the number of a copy that of what it is a copy of."""
        self._view, self._values = view, values
        self._turned: dict[int, tuple[int, tuple[int, ...]]] = {}
        """By number, what was turned how."""
        self._reshaped: dict[int, tuple[int, Hashable]] = {}
        """By number, what was reshaped, and the type that it had."""

    def add(self, node: ViewNode) -> None:
        """Look at a node that comes after all that it reads."""
        number = self._values.number
        read, made = number[node.inputs[0]], number[node.outputs[0]]
        read = self.same.get(read, read)
        if node.op == "Transpose":
            self._add_turn(node, read, made)
        elif node.op in RESHAPE_OPS:
            self._add_reshape(node, read, made)
        elif node.op in NEUTRAL_OPERANDS:
            self._add_neutral(node, made)
        elif node.op == "Expand" or (node.op == "Slice" and self._is_forward(node)):
            before = self._known_type(node.inputs[0])
            if before is not None and before == self._known_type(node.outputs[0]):
                self.same[made] = read

    def _add_neutral(self, node: ViewNode, made: int) -> None:
        for data, other in ((0, 1), (1, 0)) if node.op in COMMUTATIVE_OPS else ((0, 1),):
            content = self._values.elements(node.inputs[other])
            before = self._known_type(node.inputs[data])
            neutral = content is not None and bool((content == NEUTRAL_OPERANDS[node.op]).all())
            if neutral and before is not None and before == self._known_type(node.outputs[0]):
                read = self._values.number[node.inputs[data]]
                self.same[made] = self.same.get(read, read)

    def _add_turn(self, node: ViewNode, read: int, made: int) -> None:
        turn = node.attribute("perm")
        if isinstance(turn, tuple):
            source, before = self._turned.get(read, (read, tuple(range(len(turn)))))
            whole = tuple(before[axis] for axis in turn)
            self._turned[made] = source, whole
            if whole == tuple(range(len(whole))):
                self.same[made] = source

    def _add_reshape(self, node: ViewNode, read: int, made: int) -> None:
        type_ = self._known_type(node.inputs[0])
        source = self._reshaped.get(read) or (None if type_ is None else (read, type_))
        if source is not None:
            self._reshaped[made] = source
            if source[1] == self._known_type(node.outputs[0]):
                self.same[made] = source[0]

    def _known_type(self, tensor: int) -> Hashable:
        """Return the type of a tensor, with its sizes by number or name; None where one is not known."""
        type_, axes = self._view.types[tensor], self._view.axes[tensor]
        return None if type_ is None or axes is None or None in axes else (type_.dtype, axes)

    def _is_forward(self, node: ViewNode) -> bool:
        """Say whether the steps of a Slice are known and go forward."""
        steps = node.inputs[4] if len(node.inputs) > 4 else NO_TENSOR
        content = None if steps == NO_TENSOR else self._values.elements(steps)
        return steps == NO_TENSOR or (content is not None and bool((content > 0).all()))


# -- pieces -----------------------------------------------------------------------------------------------


def pair_pieces(matcher: Matcher) -> Iterator[tuple[int, int]]:
    """Yield the elements of a sequence that A splits a tensor into, each with the output of a Split of it in B."""
    a, values = matcher.a, matcher.values
    splits: dict[int, list[ViewNode]] = {}
    for node in matcher.b.nodes:
        known = matcher.known[node.inputs[0]] if node.op == "Split" else None
        if known is not None:
            splits.setdefault(values.number[known], []).append(node)
    for node in a.nodes if splits else ():
        producer = a.producers[node.inputs[0]] if node.op == "SequenceAt" else None
        split = None if producer is None else a.nodes[producer]
        if split is None or split.op != "SplitToSequence" or len(split.inputs) < 2:
            continue
        start = _start_of_piece(values, split, node)
        for other in splits.get(values.number[split.inputs[0]], ()) if start is not None else ():
            piece = _find_piece(matcher.b, other, a.types[node.outputs[0]], split.attribute("axis") or 0, start)
            if piece is not None:
                yield node.outputs[0], piece


def _start_of_piece(values: Values, split: ViewNode, node: ViewNode) -> int | None:
    """Return where on the axis the piece begins that a node takes of a sequence; None where that is not known."""
    sizes, place = values.elements(split.inputs[1]), values.elements(node.inputs[1])
    if sizes is None or place is None or place.size != 1 or place.flat[0] < 0:
        return None
    return int(place.flat[0] * sizes.flat[0] if sizes.size == 1 else sizes[: place.flat[0]].sum())


def _find_piece(b: View, split: ViewNode, type_: TensorType | None, axis: Hashable, start: int | None) -> int | None:
    """Return the output of a Split that is of this type and begins there."""
    other = split.attribute("axis") or 0
    if type_ is None or not isinstance(axis, int) or not isinstance(other, int):
        return None
    rank, begins = len(type_.shape), 0
    if axis % rank != other % rank:
        return None
    for output in split.outputs:
        held = b.types[output]
        size = None if held is None else held.shape[axis]
        if begins == start and held == type_:
            return output
        if size is None:
            return None
        begins += size
    return None
