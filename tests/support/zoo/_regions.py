"""Parts of a forward that torch sets apart: no_grad, autocast, checkpoints, functions with a backward of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ._calls import WIDTH, Block


class NoGradRegion(nn.Module):
    """A child whose forward is partly under no_grad, calling a grandchild there and outside, twice over."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.scale = nn.Parameter(torch.randn(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                frozen = self.block(x) * self.scale + 0.5
            return self.block(frozen) - x

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()
        self.after = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.child(self.child(x)))


class AutocastRegion(nn.Module):
    """A child that computes part of its forward with autocast turned off."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                x = self.block(x.float()) * 1.5
            return torch.sin(x)

    def __init__(self) -> None:
        super().__init__()
        self.first = self.Child()
        self.second = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Checkpointed(nn.Module):
    """Children that run inside an activation checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(lambda x, block=block: block(x) + 0.25, x, use_reentrant=False) * 1.5
        return x


class _ScaledSine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sin(x) * 1.7

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class CustomFunction(nn.Module):
    """A child that calls an autograd.Function, twice."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return _ScaledSine.apply(self.block(x)) + 0.1

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(self.child(x))


class VectorizedMap(nn.Module):
    """A child that is mapped over the rows by torch.vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.block(row) * 2.0)(x) + 0.5
