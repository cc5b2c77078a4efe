"""Fingerprints: equal for equal values in any layout, near for near ones, and never for others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hieronnx.match.fingerprints import FingerprintIndex, distance, order_distance, take_fingerprint

SIZES = [(7,), (3, 5, 7), (40, 50), (3, 100, 100), (300, 400)]


def draw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SIZES)
def test_a_reshape_keeps_both_levels_and_a_transpose_only_the_first(shape: tuple[int, ...]) -> None:
    array = draw(shape)
    taken = take_fingerprint(array)
    flat = take_fingerprint(array.ravel())
    assert distance(taken, flat) == order_distance(taken, flat) == 0.0
    if array.ndim > 1:
        turned = take_fingerprint(array.T)
        assert distance(taken, turned) < 1e-12
        assert order_distance(taken, turned) > 0.1


@pytest.mark.parametrize("shape", SIZES)
def test_half_precision_is_near_and_other_values_are_far(shape: tuple[int, ...]) -> None:
    array = draw(shape)
    taken = take_fingerprint(array)
    half = take_fingerprint(array.astype(np.float16))
    assert 0 < distance(taken, half) < 1e-3
    assert order_distance(taken, half) < 1e-3
    assert distance(taken, take_fingerprint(draw(shape, seed=1))) > 1e-3


@given(st.integers(1, 20_000), st.integers(0, 100), st.floats(1e-7, 1e-3))
@settings(max_examples=50, deadline=None)
def test_a_fingerprint_moves_by_no_more_than_the_values_do(size: int, seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    array = rng.normal(size=size)
    scale = float(np.sqrt(np.mean(array**2)))
    moved = array + noise * scale * rng.uniform(-1, 1, size=size)
    assert distance(take_fingerprint(array), take_fingerprint(moved)) <= 4 * noise


def test_masks_are_equal_in_any_precision() -> None:
    hidden = np.random.default_rng(0).random((2, 1, 8, 8)) > 0.5
    full = take_fingerprint(np.where(hidden, np.finfo(np.float32).min, 0).astype(np.float32))
    half = take_fingerprint(np.where(hidden, np.finfo(np.float16).min, 0).astype(np.float16))
    endless = take_fingerprint(np.where(hidden, -np.inf, 0).astype(np.float32))
    assert distance(full, half) == distance(full, endless) == 0.0
    assert order_distance(full, half) == order_distance(full, endless) == 0.0
    other = take_fingerprint(np.where(hidden[..., ::-1], -np.inf, 0).astype(np.float32))
    assert distance(full, other) == 0.0
    assert order_distance(full, other) > 0.1


@pytest.mark.parametrize(
    ("array", "distinctive"),
    [
        (np.zeros(100), False),
        (np.arange(64), False),
        (np.array([2, 3, 8, 8]), False),
        (np.array([0.5, 0.25]), False),
        (np.array([True, False] * 8), True),
        (np.linspace(0, 1, 12), True),
        (np.array([5, 9, 5, 17, 3, 44, 2, 8]), True),
        (np.array([np.nan, 1.0, 2.5, -0.5]), True),
    ],
)
def test_what_others_have_by_chance_tells_nothing(array: np.ndarray, distinctive: bool) -> None:
    assert take_fingerprint(array).distinctive == distinctive


def test_complex_numbers_count_as_their_parts() -> None:
    array = draw((4, 6)) + 1j * draw((4, 6), seed=1)
    parts = np.stack([array.real, array.imag], axis=-1)
    assert distance(take_fingerprint(array), take_fingerprint(parts)) == 0.0
    assert order_distance(take_fingerprint(array), take_fingerprint(parts)) == 0.0


def test_the_index_finds_what_is_near_and_nothing_else() -> None:
    arrays = [draw((50, 20), seed) for seed in range(200)]
    index = FingerprintIndex((number, take_fingerprint(array)) for number, array in enumerate(arrays))
    for number, array in enumerate(arrays):
        wanted = take_fingerprint(array.T.astype(np.float16))
        assert [found for _, found in index.find(wanted, 2e-3)] == [number]


def test_an_empty_tensor_has_a_fingerprint() -> None:
    taken = take_fingerprint(np.zeros((0, 3), dtype=np.float32))
    assert not taken.distinctive
    assert distance(taken, taken) == 0.0
