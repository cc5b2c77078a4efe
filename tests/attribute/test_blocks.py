"""Tensors in blocks of channels come back in the usual order, with the channels that a model has."""

from __future__ import annotations

import numpy as np
import pytest

from hieronnx.attribute.blocks import BlockedTensors, decode_filter


def block_filter(array: np.ndarray, block: int) -> np.ndarray:
    """Put a filter into blocks, as ONNX Runtime does."""
    outputs = -(-array.shape[0] // block) * block
    few = array.shape[1] < block
    inputs = array.shape[1] if few else -(-array.shape[1] // block) * block
    whole = np.zeros((outputs, inputs, *array.shape[2:]), array.dtype)
    whole[: array.shape[0], : array.shape[1]] = array
    if few:
        split = whole.reshape(outputs // block, block, inputs, *array.shape[2:])
        return np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1)).reshape(whole.shape)
    split = whole.reshape(outputs // block, block, inputs // block, block, *array.shape[2:])
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1)).reshape(whole.shape)


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (12, 3, 3, 3), (32, 1, 5, 5), (24, 20, 1, 1)])
def test_a_filter_in_blocks_is_that_of_the_model(shape: tuple[int, ...], block: int) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = decode_filter(block_filter(array, block), block)
    assert found is not None
    assert np.array_equal(found, array)


def test_what_cannot_be_in_blocks_is_not() -> None:
    assert decode_filter(np.ones((12, 3, 3, 3)), 8) is None
    assert decode_filter(np.ones((16, 12, 3, 3)), 8) is None
    assert decode_filter(np.ones((16, 16)), 8) is None


def test_a_tensor_in_blocks_has_the_channels_of_the_model() -> None:
    array = np.arange(2 * 16 * 3 * 3, dtype=np.float32).reshape(2, 16, 3, 3)
    blocked = array.reshape(2, 2, 8, 3, 3).transpose(0, 1, 3, 4, 2).reshape(array.shape)
    tensors = BlockedTensors(8, {0: 12, 1: None})
    assert np.array_equal(tensors.decode(0, blocked), array[:, :12])
    assert np.array_equal(tensors.decode(1, blocked), array)
    assert tensors.decode(2, blocked) is blocked
