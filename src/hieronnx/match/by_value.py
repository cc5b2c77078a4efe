"""Fixed points by value: which tensors of two files hold the same, found by running both on the same inputs.

For tools that rename everything. Both files run in ONNX Runtime as they are written; a tensor of the one is a tensor
of the other if their values agree and nothing else agrees about as well. Where several tensors hold the same values
(a residual, a reshape) only those are paired that their shape, their operator or what is around them tells apart: what
lies between fixed points is for the rules of carry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.operators import DATA_MOVEMENT_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import View
from hieronnx.match.fingerprints import Fingerprint, FingerprintIndex, order_distance, take_fingerprint
from hieronnx.runtime.sessions import Array, FileInput, Runner, open_runner

_FAR = 0.1
"""How far from its counterpart a tensor may be, as a part of its scale: int8 is not nearer."""
_ROUNDED = 1e-3
_SAME, _CLEAR, _EXACT = 2.0, 4.0, 1e-5
_DYNAMIC_SIZES = (4, 2, 1)

_Taken: TypeAlias = dict[int, Fingerprint]


def match_tensors_by_value(
    original: OpenedModel, transformed: OpenedModel, a: View, b: View, inputs: Mapping[str, Array] | None = None
) -> dict[int, int]:
    """Return for tensors of B the tensors of A that hold the same values.

    Args:
        original: The model A.
        transformed: The model B.
        a: The view of A.
        b: The view of B.
        inputs: An array for each input of A; random ones by default.

    Raises:
        HieronnxError: If one of the files cannot be run on these inputs.
    """
    with open_runner(original) as before, open_runner(transformed) as after:
        feeds = _choose_feeds(before, after, inputs)
        taken_a = _take(before, feeds, a)
        taken_b = _take(after, _fit(after.inputs, before.inputs, feeds), b)
    return _pair(a, b, taken_a, taken_b)


# -- running both -------------------------------------------------------------------------------------------


def _choose_feeds(before: Runner, after: Runner, inputs: Mapping[str, Array] | None) -> Mapping[str, Array]:
    """Return inputs on which both files run: those that were given, or random ones."""
    if inputs is not None:
        missing = [item.name for item in before.inputs if item.name not in inputs]
        if missing:
            raise HieronnxError(f"there is no array for the input '{missing[0]}'; give one for each input")
        return inputs
    failure: HieronnxError | None = None
    for size in _DYNAMIC_SIZES if any(None in (item.shape or ()) for item in before.inputs) else _DYNAMIC_SIZES[:1]:
        feeds = draw_inputs(before.inputs, size)
        try:
            before.run(feeds)
            after.run(_fit(after.inputs, before.inputs, feeds))
        except HieronnxError as error:
            failure = failure or error
        else:
            return feeds
    raise HieronnxError(f"{failure}; give inputs of your own, an array for each") from failure


def draw_inputs(inputs: Iterable[FileInput], dynamic_size: int) -> dict[str, Array]:
    """Draw inputs: normal floats, and 0 or 1 for all else, which is good for ids and masks alike."""
    random = np.random.default_rng(0)
    drawn: dict[str, Array] = {}
    for item in inputs:
        if item.dtype is None:
            raise HieronnxError(f"the input '{item.name}' is not a tensor of numbers; it cannot be drawn at random")
        shape = tuple(dynamic_size if size is None else size for size in item.shape or ())
        floating = np.issubdtype(item.dtype, np.floating)
        values = random.standard_normal(shape) if floating else random.integers(0, 2, shape)
        drawn[item.name] = np.asarray(values).astype(item.dtype)
    return drawn


def _fit(wanted: Sequence[FileInput], given: Sequence[FileInput], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of A as those of B: by name, else in their order, in the types that B declares."""
    by_position = {w.name: g.name for w, g in zip(wanted, given, strict=False)} if len(wanted) == len(given) else {}
    fitted = {}
    for item in wanted:
        source = item.name if item.name in feeds else by_position.get(item.name)
        if source is None:
            raise HieronnxError(f"the transformed model has an input '{item.name}' that the original has not")
        fitted[item.name] = feeds[source] if item.dtype is None else feeds[source].astype(item.dtype)
    return fitted


def _take(runner: Runner, feeds: Mapping[str, Array], view: View) -> _Taken:
    """Take the fingerprints of all tensors that a run shows; in a loop those of the first iteration."""
    numbers = {(view.graphs[graph].key, view.names[t]): t for t, graph in enumerate(view.tensor_graphs)}
    taken: _Taken = {}

    def visit(graph: str, name: str, array: Array) -> None:
        tensor = numbers.get((graph, name))
        if tensor is not None and tensor not in taken and array.size and array.dtype.kind in "biufc":
            taken[tensor] = take_fingerprint(array)

    runner.read_initializers(visit)
    for name, array in feeds.items():
        visit("", name, array)
    runner.run_exposed(feeds, visit)
    return {tensor: found for tensor, found in taken.items() if found.telling}


# -- pairing ------------------------------------------------------------------------------------------------


def _pair(a: View, b: View, of_a: _Taken, of_b: _Taken) -> dict[int, int]:
    """Pair the tensors whose values agree: class by class of those that hold the same."""
    values = Values(a)
    first: dict[int, int] = {}
    for tensor in of_a:  # equal computations count once
        first.setdefault(values.number[tensor], tensor)
    index = FingerprintIndex((tensor, of_a[tensor]) for tensor in first.values())
    classes: dict[frozenset[int], list[int]] = defaultdict(list)
    for tensor, found in of_b.items():
        alike = _find_alike(index, found, of_a)
        if alike:
            classes[alike].append(tensor)
    pairs: dict[int, int] = {}
    for members_a, members_b in classes.items():
        pairs.update(_pair_class(a, b, sorted(members_a), members_b))
    return pairs


def _find_alike(index: FingerprintIndex, wanted: Fingerprint, of_a: _Taken) -> frozenset[int]:
    """Return the tensors of A that hold these values, none where that is not clear; in this order, if any does."""
    near = index.find(wanted, _FAR)
    if not near:
        return frozenset()
    in_order = sorted((order_distance(wanted, of_a[tensor]), tensor) for _, tensor in near)
    ordered = _choose_clear(in_order, _FAR)
    if ordered or near[0][0] > _ROUNDED or wanted.plain:
        # Rounded values are like many others if their order does not count.
        return ordered
    return _choose_clear(near, _ROUNDED)


def _choose_clear(near: Sequence[tuple[float, int]], farthest: float) -> frozenset[int]:
    """Return the nearest, and those about as near; none if there are others not much farther away."""
    least = near[0][0]
    alike = frozenset(tensor for found, tensor in near if found <= _SAME * least + _EXACT)
    unclear = any(_SAME * least + _EXACT < found < _CLEAR * least + 2 * _EXACT for found, _ in near)
    return frozenset() if unclear or least > farthest else alike


def _pair_class(a: View, b: View, of_a: Sequence[int], of_b: Sequence[int]) -> dict[int, int]:
    """Pair tensors that all hold the same values, as far as something tells them apart."""
    left_a, left_b = list(of_a), list(of_b)
    pairs: dict[int, int] = {}
    for describe in (_describe_nothing, _describe_all, _describe_operator, _describe_work):
        groups_a, groups_b = _group(a, left_a, describe), _group(b, left_b, describe)
        for form, members in groups_b.items():
            others = groups_a.get(form, [])
            if form is not None and len(members) == len(others) == 1:
                pairs[members[0]] = others[0]
        left_b = [tensor for tensor in left_b if tensor not in pairs]
        taken = set(pairs.values())
        left_a = [tensor for tensor in left_a if tensor not in taken]
    return pairs


def _group(view: View, tensors: Iterable[int], describe: Callable[[View, int], Hashable]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for tensor in tensors:
        groups[describe(view, tensor)].append(tensor)
    return groups


def _describe_nothing(view: View, tensor: int) -> Hashable:
    return ()


def _describe_all(view: View, tensor: int) -> Hashable:
    producer = view.producers[tensor]
    if producer is None:
        return "given", tensor in view.constants
    node = view.nodes[producer]
    return node.op, node.attributes, node.outputs.index(tensor)


def _describe_operator(view: View, tensor: int) -> Hashable:
    producer = view.producers[tensor]
    return None if producer is None else view.nodes[producer].op


def _describe_work(view: View, tensor: int) -> Hashable:
    """Tell the one who made the values from those who only move them."""
    producer = view.producers[tensor]
    return None if producer is None or view.nodes[producer].op in DATA_MOVEMENT_OPS else "made"
