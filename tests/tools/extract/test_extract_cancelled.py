"""Extract where the exporter cancelled work across a call's boundary, or a call takes what it was never passed.

The module's own records are the judge: a part asks for what its call received, and lists by name all else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hieronnx
from support.exports import quiet
from support.extracted import PartCheck

both_exporters = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


class Turned(nn.Module):
    """Works on the axes of its input in another order, and gives them back in that order."""

    def __init__(self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.before, self.after = before, after
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(torch.relu(self.linear(self.before(x))))
        return result


class Chain(nn.Module):
    """Modules one after the other; the tensor between the first two may be read at the end, too."""

    def __init__(self, *layers: nn.Module, again: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        between = x
        for number, layer in enumerate(self.layers):
            x = layer(x)
            between = x if number == 0 else between
        return x + between.sum() if self.again else x


def keep(x: Tensor) -> Tensor:
    return x


def turn(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def split(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1, 4)


def join(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)


class Recurrent(nn.Module):
    """Two recurrent layers, each with its rows first."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.first, self.second = kind(4, 6, batch_first=True), kind(6, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x)[0])[0]
        return result


class Remembering(nn.Module):
    """Keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.sigmoid(self.linear(x))
        return torch.tanh(self.state)


class Recalling(nn.Module):
    """Reads what another one kept, which it has as no part of itself."""

    def __init__(self, recall: Callable[[], Tensor | None]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.recall = recall

    def forward(self, x: Tensor) -> Tensor:
        state = self.recall()
        assert state is not None
        result: Tensor = self.linear(x) + state
        return result


class Remembered(nn.Module):
    """One module reads what its sibling kept, through a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Remembering()
        self.second = Recalling(lambda: self.first.state)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


class Accumulating(nn.Module):
    """Adds what it received at its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x if self.last is None else x + self.last)
        self.last = x
        return result


class Twice(nn.Module):
    """Calls a module twice that keeps state between its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Accumulating()

    def forward(self, x: Tensor) -> Tensor:
        self.cell.last = None
        first = torch.relu(self.cell(x))
        result: Tensor = self.cell(torch.sigmoid(first))
        self.cell.last = None
        return result


class Query(nn.Module):
    """Multiplies what it receives by what else it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, query: Tensor, x: Tensor) -> Tensor:
        return torch.matmul(query, self.linear(x).transpose(1, 2))


class LearnedQuery(nn.Module):
    """Passes a parameter of its own to a module."""

    def __init__(self) -> None:
        super().__init__()
        self.query_tokens = nn.Parameter(torch.randn(3, 4))
        self.attention = Query()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(self.query_tokens, x)
        return result


def rows() -> Tensor:
    return torch.randn(2, 4, 4)


def flat_rows() -> Tensor:
    return torch.randn(2, 16)


# What is built, what is fed, and the calls that ask for something that they did not receive, by exporter.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[str, set[str]]]] = {
    "transposes": (
        lambda: Chain(Turned(keep, turn, 4), Turned(turn, keep, 4)),
        rows,
        {"dynamo": {"layers.1"}, "torchscript": {"layers.1"}},
    ),
    "transposes_read_again": (
        lambda: Chain(Turned(keep, turn, 4), Turned(turn, keep, 4), again=True),
        rows,
        {"torchscript": {"layers.1"}},  # the other exporter keeps them all
    ),
    "reshapes": (
        lambda: Chain(Turned(split, join, 4), Turned(split, join, 4)),
        flat_rows,
        {"dynamo": {"layers.1"}},  # the other exporter keeps them all
    ),
    "lstms": (lambda: Recurrent(nn.LSTM), rows, {"dynamo": {"second"}, "torchscript": {"second"}}),
    "grus": (lambda: Recurrent(nn.GRU), rows, {"dynamo": {"second"}, "torchscript": {"second"}}),
    "closure": (Remembered, rows, {"dynamo": {"second"}, "torchscript": {"second"}}),
    "state": (Twice, rows, {"dynamo": {"cell@1"}, "torchscript": {"cell@1"}}),
    "parameter": (LearnedQuery, rows, {}),
}


# TorchScript forgets the second of two transposes that cancel before the graph is there to be followed.
UNKNOWN = {"transposes-torchscript": {"layers.1.linear"}, "transposes_read_again-torchscript": {"layers.1.linear"}}


def check(name: str, exporter: str, folder: Path) -> PartCheck:
    torch.manual_seed(0)
    build, feed, _ = CASES[name]
    model, x = build().eval(), feed()
    with quiet():
        hieronnx.export(model, (x,), output=folder / "model.onnx", exporter=exporter)
    return PartCheck(folder / "model.onnx", model, (x,), {})


@both_exporters
@pytest.mark.parametrize("name", CASES)
def test_a_part_lists_all_that_its_call_did_not_receive(name: str, exporter: str, tmp_path: Path) -> None:
    checked = check(name, exporter, tmp_path)
    verdicts = checked.check_all()
    assert not verdicts.wrong
    assert checked.find_misfits() == []
    assert set(verdicts.undeclared_inputs) == CASES[name][2].get(exporter, set())
    assert set(verdicts.unknown) == UNKNOWN.get(f"{name}-{exporter}", set())


@both_exporters
def test_a_parameter_that_is_passed_is_told(exporter: str, tmp_path: Path) -> None:
    part = hieronnx.extract(check("parameter", exporter, tmp_path).extractor.source.opened.path or "", "attention")
    assert [item.arguments for item in part.inputs] == [("x",)]
    assert [(held.argument, held.parameter) for held in part.constant_arguments] == [("query", "query_tokens")]
