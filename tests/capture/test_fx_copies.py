"""Tensors of a trace that equal earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hieronnx.capture.fx_copies import find_original, find_view

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


PAIRS: dict[str, tuple[bool, Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    "a piece of a split and a slice": (True, lambda y: (y.split(1, dim=1)[1], y[:, 1:2])),
    "two forms of one shape": (True, lambda y: (y.unsqueeze(0), y.view(1, 1, 2, 3))),
    "two pieces of a split": (False, lambda y: (y.split(1, dim=1)[0], y.split(1, dim=1)[1])),
    "a tensor and one turned": (False, lambda y: (y.view(1, 3, 2), y.transpose(1, 2))),
    "two results of one operation": (False, lambda y: torch.aminmax(y, dim=2)),
}


@pytest.mark.parametrize(("same", "make"), PAIRS.values(), ids=PAIRS)
def test_views_are_the_same_if_they_show_the_same_elements_in_the_same_form(
    same: bool, make: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> None:
    graph = make_fx(lambda x: tuple(make(x.relu())), tracing_mode="fake")(torch.randn(1, 2, 3)).graph
    first, second = map(find_view, graph.output_node().all_input_nodes)
    assert (first is not None and first == second) == same
