"""Finding arrays by their values."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from hieronnx.attribute.weight_index import Array, WeightIndex


def index_of(*arrays: Array) -> WeightIndex:
    index = WeightIndex()
    for number, array in enumerate(arrays):
        index.add((f"w{number}",), array)
    return index


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("rounding", [np.float16, bfloat16])
@pytest.mark.parametrize("shape", [(8,), (48,), (6, 8)])
def test_a_rounded_array_is_found_in_either_direction(rounding: np.typing.DTypeLike, shape: tuple[int, ...]) -> None:
    array = draw(*shape)
    rounded = array.astype(rounding).astype(np.float32 if rounding is bfloat16 else rounding)
    for known, wanted in ((array, rounded), (rounded, array)):
        holding = index_of(draw(*shape, seed=1), known).find(wanted)
        assert holding is not None
        assert holding.parameters == ("w1",)


def test_what_is_near_an_array_of_few_values_is_not_that_array_rounded() -> None:
    ones = np.ones(32, np.float32)
    assert index_of(ones).find(ones + draw(32) / 1000) is None
    assert index_of(ones + draw(32) / 1000).find(ones) is None


def test_an_array_near_another_that_no_rounding_made_is_another() -> None:
    array = draw(32)
    assert index_of(array).find(array * np.float32(1.001)) is None


def test_equal_arrays_of_other_shapes_are_all_found_and_one_value_throughout_tells_nothing() -> None:
    zeros = np.zeros(16, np.float32)
    holding = index_of(zeros.reshape(1, 1, 16), draw(16), zeros).find(zeros)
    assert holding is not None
    assert (holding.parameters, holding.telling) == (("w0", "w2"), False)
    distinctive = index_of(draw(16)).find(draw(16))
    assert distinctive is not None
    assert distinctive.telling


@pytest.mark.parametrize("axis", [0, 1])
def test_an_array_that_was_scaled_channel_by_channel_is_found_along_either_axis(axis: int) -> None:
    array = draw(6, 6, 2, 2)
    scale = np.expand_dims(draw(6, seed=2), tuple(other for other in range(4) if other != axis))
    holding = index_of(draw(6, 6, 2, 2, seed=1), array).find(array * scale)
    assert holding is not None
    assert (holding.parameters, holding.how) == (("w1",), "scaled")
