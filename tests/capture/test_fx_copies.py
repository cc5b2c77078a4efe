"""Tensors of a trace that equal earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hieronnx.capture.fx_copies import find_original

COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "there and back": lambda y: y.squeeze(0).unsqueeze(0),
    "a stack of one": lambda y: torch.stack([y.squeeze(0)]),
    "a copy": lambda y: y.clone(),
    "flat and back": lambda y: y.view(6).view(1, 2, 3),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "another shape": lambda y: y.unsqueeze(0),
    "a stack of two": lambda y: torch.stack([y.squeeze(0), y.squeeze(0)])[:1],
    "other values": lambda y: (y + 1).squeeze(0).unsqueeze(0) * 2,
    "written to since": lambda y: y.squeeze(0).add_(1).unsqueeze(0),
    "the axes changed": lambda y: y.transpose(1, 2).reshape(1, 2, 3),
}


def trace_original(copy: Callable[[Tensor], Tensor]) -> str | None:
    graph = make_fx(lambda x: copy(x.relu()))(torch.randn(1, 2, 3)).graph
    (returned,) = graph.output_node().all_input_nodes
    original = find_original(returned)
    return None if original is None else original.name


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_what_was_reshaped_there_and_back_is_what_it_was(copy: Callable[[Tensor], Tensor]) -> None:
    assert trace_original(copy) == "relu"


@pytest.mark.parametrize("copy", OTHERS.values(), ids=OTHERS)
def test_what_may_have_other_values_is_no_copy(copy: Callable[[Tensor], Tensor]) -> None:
    assert trace_original(copy) is None
