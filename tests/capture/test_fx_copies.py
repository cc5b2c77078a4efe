"""Tensors of a trace that equal earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hieronnx.capture import private_torch
from hieronnx.capture.dynamo import _FxValues
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
    "a view and what may be a copy": (False, lambda y: (y.view(1, 6), y.transpose(1, 2).reshape(1, 6))),
    "a view and what is a copy in one block": (False, lambda y: (y.view(6), y.transpose(1, 2).contiguous().view(6))),
    "a view and one of another type and back": (False, lambda y: (y.view(6), y.half().float().view(6))),
    "the bits as another type and back": (False, lambda y: (y.view(6), y.view(torch.int32).view(torch.float).view(6))),
    "two results of one operation": (False, lambda y: torch.aminmax(y, dim=2)),
}


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize(("same", "make"), PAIRS.values(), ids=PAIRS)
def test_views_are_the_same_if_they_show_the_same_elements_in_the_same_form(
    pre_dispatch: bool, same: bool, make: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> None:
    trace = make_fx(lambda x: tuple(make(x.relu())), tracing_mode="fake", pre_dispatch=pre_dispatch)
    graph = trace(torch.randn(1, 2, 3)).graph
    first, second = map(find_view, graph.output_node().all_input_nodes)
    assert (first is not None and first == second) == same


def follow_rows(rows: int, written: int = 0) -> tuple[_FxValues, torch.fx.Graph]:
    """Return what follows the rows of a table, and a graph that makes them twice; one writes to the table between."""
    aten, graph, values = torch.ops.aten, torch.fx.Graph(), _FxValues()
    table, old = graph.placeholder("table"), torch.fx.Graph().placeholder("old")
    table.meta["val"] = torch.empty(rows, 4)
    for again in (False, True):
        for row in range(rows):
            node = graph.call_function(aten.select.int, (table, 0, row))
            node.meta["val"] = table.meta["val"][row]
            if not again:
                old.meta.clear()
                values._number_of(old)
                values.follow(old, node)
            if again and row < written:
                graph.call_function(aten.add_.Tensor, (table, 1))
    return values, graph


@pytest.mark.parametrize("written", [0, 1])
def test_a_view_that_is_made_again_is_the_same_unless_something_was_written_since(written: int) -> None:
    values, graph = follow_rows(4, written)
    values.keep_values(graph, {})
    # What comes before the write is not lost; what comes behind it is.
    assert [len(same) for same in values._same_views.values()] == [2] + [1 if written else 2] * 3


def test_what_works_in_place_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    works_in_place, looked = private_torch.works_in_place, list[torch.fx.Node]()
    monkeypatch.setattr(private_torch, "works_in_place", lambda n: looked.append(n) or works_in_place(n))
    monkeypatch.setattr("hieronnx.capture.fx_copies.works_in_place", private_torch.works_in_place)
    values, graph = follow_rows(50)
    looked.clear()
    values.keep_values(graph, {})
    assert len(looked) == len(graph.nodes)
