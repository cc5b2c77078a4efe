"""Pairing the tensors of two graphs by the values that they held when both ran on the same inputs.

For tools that rename everything. A tensor of B is a tensor of A if their fingerprints agree and nothing else agrees
about as well:

    A: x ─ MatMul ─ a ─ Reshape ─ r          B: x ─ Gemm ─ t1 ─ Reshape ─ t2

All of `a`, `r`, `t1` and `t2` hold the same values, so they are a class of their own. In it those are paired that their
operator and attributes tell apart (`r`, `t2`), or that one is computed and the others only move it (`a`, `t1`). What
lies between these fixed points is for the rules of carry.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

from hieronnx.graph.operators import DATA_MOVEMENT_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import View
from hieronnx.match.align.sequences import group
from hieronnx.match.fingerprints import Fingerprint, FingerprintIndex, order_distance

_FAR = 0.1
"""How far from its counterpart a tensor may be, as a part of its scale: int8 is not nearer."""
_ROUNDED = 1e-3
_SAME, _CLEAR, _EXACT = 2.0, 4.0, 1e-5


def pair_by_fingerprints(
    a: View, b: View, prints_a: Mapping[int, Fingerprint], prints_b: Mapping[int, Fingerprint]
) -> dict[int, int]:
    """Return for tensors of B the tensors of A that hold the same values: found class by class of equal ones."""
    number = Values(a).number
    first = {number[tensor]: tensor for tensor in reversed(list(prints_a))}  # equal computations count once
    index = FingerprintIndex((tensor, prints_a[tensor]) for tensor in first.values())
    classes = group(prints_b, lambda tensor: _find_equal(index, prints_b[tensor], prints_a))
    pairs: dict[int, int] = {}
    for members_a, members_b in classes.items():
        pairs.update(_pair_class(a, b, sorted(members_a), members_b))
    return pairs


def _find_equal(index: FingerprintIndex, wanted: Fingerprint, prints_a: Mapping[int, Fingerprint]) -> frozenset[int]:
    """Return the tensors of A that hold these values, none where that is not clear; in this order, if any does."""
    near = index.find(wanted, _FAR)
    if not near:
        return frozenset()
    in_order = sorted((order_distance(wanted, prints_a[tensor]), tensor) for _, tensor in near)
    ordered = _choose_nearest(in_order, _FAR)
    if ordered or near[0][0] > _ROUNDED or wanted.low_information:
        # Rounded values are like many others if their order does not count.
        return ordered
    return _choose_nearest(near, _ROUNDED)


def _choose_nearest(near: Sequence[tuple[float, int]], farthest: float) -> frozenset[int]:
    """Return the nearest tensors, given by distance; none if the next ones are not clearly farther away."""
    least = near[0][0]
    same, clear = _SAME * least + _EXACT, _CLEAR * least + 2 * _EXACT
    if least > farthest or any(same < distance < clear for distance, _ in near):
        return frozenset()
    return frozenset(tensor for distance, tensor in near if distance <= same)


def _pair_class(a: View, b: View, of_a: Sequence[int], of_b: Sequence[int]) -> dict[int, int]:
    """Pair tensors that all hold the same values, as far as something tells them apart."""
    pairs: dict[int, int] = {}
    for level in range(4):
        paired_a = set(pairs.values())
        groups_a = group((t for t in of_a if t not in paired_a), partial(_describe, a, level))
        groups_b = group((t for t in of_b if t not in pairs), partial(_describe, b, level))
        for form, members in groups_b.items():
            others = groups_a.get(form, ())
            if form is not None and len(members) == len(others) == 1:
                pairs[members[0]] = others[0]
    return pairs


def _describe(view: View, level: int, tensor: int) -> Hashable:
    """Say of a tensor nothing, what makes it, by which operator, or that it was computed and not only moved."""
    producer = view.producers[tensor]
    if producer is None:
        return ((), ("given", tensor in view.constants), None, None)[level]
    node = view.nodes[producer]
    computed = None if node.op in DATA_MOVEMENT_OPS else "computed"
    return ((), (node.op, node.attributes, node.outputs.index(tensor)), node.op, computed)[level]
