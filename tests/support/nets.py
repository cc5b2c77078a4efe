"""Models of blocks, one after the other, of which some can be made slow; and what a profile of them should say."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import hieronnx


class Block(nn.Module):
    """Two layers with an activation between them, added to what comes in."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(self.act(self.up(x))))


class Repeating(nn.Module):
    """Products one after the other, with weights that are not parameters of layers."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.weight, self.times = nn.Parameter(torch.eye(width) * 0.9), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = torch.tanh(x @ self.weight)
        return x


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def export_stack(path: Path, inner: Sequence[int], *, width: int = 64, repeating: int | None = None) -> Path:
    """Export blocks of these inner widths; the one at `repeating` is products one after the other instead."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = [Block(width, size) for size in inner]
    if repeating is not None:
        blocks[repeating] = Repeating(width, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hieronnx.export(Stack(blocks, width).eval(), (torch.randn(4, 32, width),), path, exporter="torchscript")
    return path


class FoldedNorm(nn.Sequential):
    """A convolution, the norm that exporters fold into its weight, and an activation."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        norm = nn.BatchNorm2d(outputs)
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.running_mean)
        super().__init__(nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False), norm, nn.ReLU())
