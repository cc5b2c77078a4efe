"""Containers, and the names that they give to what is in them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ._calls import WIDTH, Block


def linear_root() -> nn.Module:
    return nn.Linear(WIDTH, 4)


def sequential_root() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 4))


class SequentialInSequential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(Block(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), Block())
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), inner, nn.Sequential(Block()))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class SlicedSequential(nn.Module):
    """`self.body[:2]` is a new Sequential that no module owns; its children are owned."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(), Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.body[:2](x) + self.body[2](x)


class TwoModuleLists(nn.Module):
    """Two lists of one class under one parent: the last segments `0`, `1` are not unique."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.ModuleList(Block() for _ in range(2))
        self.image = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.text:
            x = block(x)
        for block in self.image:
            y = block(y)
        return x + y


class ModuleListOfModuleLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.ModuleList(Block() for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            for block in stage:
                x = block(x)
            x = x * 1.5
        return x


class ReversedModuleList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in reversed(self.blocks):
            x = block(x)
        return x


class OddModuleDictKeys(nn.Module):
    """Keys that a tag must escape, or that look like something else: a call number, an index, a path."""

    KEYS = ("a/b", "at@1", "til~de", "with space", "0", "~1", "dash-ed", "é")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({key: Block() for key in self.KEYS})

    def forward(self, x: Tensor) -> Tensor:
        for key in self.KEYS:
            x = self.blocks[key](x)
        return x


class ParameterListModule(nn.Module):
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for weight in self.weights:
                x = torch.tanh(x @ weight)
            return x

    def __init__(self) -> None:
        super().__init__()
        self.mixer = self.Mixer()

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x)


class ParameterDictModule(nn.Module):
    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.terms = nn.ParameterDict({"scale": torch.randn(WIDTH), "shift": torch.randn(WIDTH)})

        def forward(self, x: Tensor) -> Tensor:
            return x * self.terms["scale"] + self.terms["shift"]

    def __init__(self) -> None:
        super().__init__()
        self.affine = self.Affine()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.affine(x))


class ParametrizedWeight(nn.Module):
    """A weight that a module of its own computes whenever the weight is read."""

    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        parametrize.register_parametrization(self.linear, "weight", self.Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


class NamedLikeOperations(nn.Module):
    """A buffer and a parameter have the names that the exporter gives to results of operations."""

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.linear(x.mean(-1, keepdim=True) + x)

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(self.Gate() for _ in range(3))
        self.register_buffer("mean", torch.rand(WIDTH))
        self.mul = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) * self.mul
        for gate in self.gates:
            x = gate(x)
        return x
