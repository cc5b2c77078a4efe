"""Pairing tensors by their values: what holds the same, and what tells those apart that hold the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hieronnx.match.by_value import pair_by_fingerprints
from hieronnx.match.fingerprints import take_fingerprint
from support.onnx_text import view

BEFORE = """
    main (float[4, 6] x) => (float[24] r) <float[6, 6] w> {
        a = MatMul (x, w)
        r = Flatten (a)
    }
"""
AFTER = """
    main (float[4, 6] p) => (float[24] t) <float[6, 6] n> {
        s = Gemm (p, n)
        t = Flatten (s)
    }
"""


def draw(seed: int, shape: tuple[int, ...] = (4, 6)) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def pair(
    before: str, values_a: Mapping[str, np.ndarray], after: str, values_b: Mapping[str, np.ndarray]
) -> dict[str, str]:
    a, b = view(before), view(after)
    prints_a = {a.names.index(name): take_fingerprint(array) for name, array in values_a.items()}
    prints_b = {b.names.index(name): take_fingerprint(array) for name, array in values_b.items()}
    return {b.names[t]: a.names[s] for t, s in pair_by_fingerprints(a, b, prints_a, prints_b).items()}


def test_tensors_of_the_same_values_are_paired_and_others_are_not() -> None:
    found = pair(BEFORE, {"x": draw(0), "a": draw(1)}, AFTER, {"p": draw(0), "s": draw(2)})
    assert found == {"p": "x"}


def test_a_rounded_tensor_is_paired_with_what_it_was() -> None:
    rounded = np.round(draw(1) * 50) / 50
    assert pair(BEFORE, {"x": draw(0), "a": draw(1)}, AFTER, {"s": rounded}) == {"s": "a"}


def test_of_those_that_hold_the_same_the_operator_and_the_work_tell_which_is_which() -> None:
    same = draw(1)
    values_a = {"a": same, "r": same.ravel()}
    assert pair(BEFORE, values_a, AFTER, {"s": same, "t": same.ravel()}) == {"s": "a", "t": "r"}


def test_nothing_is_paired_where_two_are_about_as_near() -> None:
    wanted = draw(1)
    near = {"x": wanted + 0.010 * draw(3), "a": wanted + 0.025 * draw(4)}
    assert pair(BEFORE, near, AFTER, {"s": wanted}) == {}
