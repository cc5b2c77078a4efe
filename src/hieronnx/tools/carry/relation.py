"""Whether two files have anything to do with each other: tools keep what goes in and out, and most weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from hieronnx.errors import HieronnxError
from hieronnx.graph.view import TensorType, View
from hieronnx.tools.carry.contents import compare_contents
from hieronnx.tools.carry.transfer import Transfer
from hieronnx.tools.carry.views import Pair

_FEWEST_ELEMENTS = 8  # shapes, axes and scales tell nothing
_SAME_CONTENT = 0.25  # tools leave nine in ten as they are; models of one seed may begin alike
_NAMED_ALIKE = 0.1
_SHAPED_ALIKE = 0.8
_COMPUTED_ALIKE = 0.1
_HELD = 0.25


def check_related(pair: Pair, transfer: Transfer) -> None:
    """Make sure that one graph can have been made of the other.

    Raises:
        HieronnxError: If nothing speaks for it.
    """
    if not pair.b.nodes or _are_related(pair, transfer):
        return
    before, after = pair.before.name, pair.after.name
    reason = "too little agrees of their weights, inputs and outputs" if pair.known is None else "too few values agree"
    remedy = ", or --by-value (by_value=True), which runs both to find out" if pair.known is None else ""
    raise HieronnxError(
        f"'{after}' does not seem to be made of '{before}': {reason}; give the file that the tool was run on{remedy}"
    )


def _are_related(pair: Pair, transfer: Transfer) -> bool:
    if pair.known is not None and _compute_alike(pair, pair.known):
        return True
    before, after = _weights(pair.a), _weights(pair.b)
    named = _share_named(pair, before, after) >= _NAMED_ALIKE
    if not named and not _is_interface_alike(pair):
        return False
    contents = compare_contents(pair.before, pair.a, pair.after, pair.b)
    if contents.share >= _SAME_CONTENT:
        return True
    if contents.compared and not contents.quantized:
        return False
    # Contents tell nothing: the weights were made anew, or are not there.
    if named or not before or not after or _share_shaped(pair, before, after) >= _SHAPED_ALIKE:
        return True
    return _find_held_share(pair, transfer) >= _HELD


def _compute_alike(pair: Pair, known: Collection[int]) -> bool:
    """Say whether an output agrees, or many values on the way: a few do in any two models that are fed the same."""
    made = {tensor for tensor in known if pair.b.producers[tensor] is not None}
    return not made.isdisjoint(pair.b.graphs[0].outputs) or len(made) >= _COMPUTED_ALIKE * len(pair.b.nodes)


def _find_held_share(pair: Pair, transfer: Transfer) -> float:
    """Return the share of nodes after that make a value of the graph before."""
    held = {tensor for tensor in transfer.carried.tensors if tensor is not None}
    known = sum(not held.isdisjoint(node.outputs) for node in pair.b.nodes)
    return known / len(pair.b.nodes) if pair.b.nodes else 0.0


def is_renamed(pair: Pair) -> bool:
    """Say whether hardly a tensor that the graph after computes has a name of the graph before."""
    names = set(pair.a.names)
    made = [tensor for tensor, producer in enumerate(pair.b.producers) if producer is not None]
    return sum(pair.b.names[tensor] in names for tensor in made) < _NAMED_ALIKE * len(made)


# -- weights ----------------------------------------------------------------------------------------------


def _weights(view: View) -> list[int]:
    return [tensor for tensor in view.constants if math.prod(_shape(view, tensor)) >= _FEWEST_ELEMENTS]


def _shape(view: View, tensor: int) -> tuple[int, ...]:
    """Return the sizes in order of size: a transposed weight has them too."""
    type_ = view.types[tensor]
    return tuple(sorted(size for size in type_.shape if size is not None)) if type_ is not None else ()


def _share_named(pair: Pair, before: Sequence[int], after: Sequence[int]) -> float:
    """Return the share of weights after that have the shape and the name of one before, or begin with its name."""
    known = {(pair.a.names[tensor], _shape(pair.a, tensor)) for tensor in before}
    found = sum(
        any((name, _shape(pair.b, tensor)) in known for name in _beginnings(pair.b.names[tensor])) for tensor in after
    )
    return found / len(after) if after else 0.0


def _beginnings(name: str) -> Iterable[str]:
    """Yield a name and what tools may have added to: `weight_quantized` was `weight`."""
    yield name
    for position, character in enumerate(name):
        if character in "_/:" and position:
            yield name[:position]


def _share_shaped(pair: Pair, before: Sequence[int], after: Sequence[int]) -> float:
    known = {_shape(pair.a, tensor) for tensor in before}
    return sum(_shape(pair.b, tensor) in known for tensor in after) / len(after)


# -- what goes in and out ---------------------------------------------------------------------------------


def _is_interface_alike(pair: Pair) -> bool:
    """Say whether each input and output after has a place for it before, names and precision aside."""
    main_a, main_b = pair.a.graphs[0], pair.b.graphs[0]
    return _fit(pair, main_a.inputs, main_b.inputs) and _fit(pair, main_a.outputs, main_b.outputs)


def _fit(pair: Pair, before: Sequence[int], after: Sequence[int]) -> bool:
    free = [pair.a.types[tensor] for tensor in before if tensor not in pair.a.constants]
    for tensor in (t for t in after if t not in pair.b.constants):
        fitting = next((i for i, type_ in enumerate(free) if _agree(type_, pair.b.types[tensor])), None)
        if fitting is None:
            return False
        del free[fitting]
    return True


def _agree(a: TensorType | None, b: TensorType | None) -> bool:
    if a is None or b is None:
        return True
    sizes = zip(a.shape, b.shape, strict=False)
    same_kind = ("FLOAT" in a.dtype) == ("FLOAT" in b.dtype)
    return same_kind and len(a.shape) == len(b.shape) and all(m == n or None in (m, n) for m, n in sizes)
