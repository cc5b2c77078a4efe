"""The record of one zoo model, and what makes every build of it the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")

BOTH = ("dynamo", "torchscript")
DYNAMO = ("dynamo",)
TORCHSCRIPT = ("torchscript",)


def no_kwargs() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Case:
    """A tiny model for one edge case.

    Attributes:
        name: The case's key in `CASES`.
        build: Makes the model, in eval mode; every build has the same parameters.
        args: Makes the positional example inputs; the same values every time.
        kwargs: Makes the keyword example inputs, in the order of the forward's signature.
        exporters: The routes that give a file which ONNX Runtime runs to eager's values.
        why_not: For an exporter that is not listed, what torch or ONNX Runtime said, in one line.
        tolerance: The largest absolute difference from eager that is only rounding.
        transformers: Whether the model needs the Transformers library.
    """

    name: str
    build: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = no_kwargs
    exporters: tuple[str, ...] = BOTH
    why_not: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-4
    transformers: bool = False


def seed(make: Callable[[], T], number: int) -> Callable[[], T]:
    """Return `make` as a function that always draws the same numbers and leaves torch's generator alone."""

    def seeded() -> T:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            return make()

    return seeded


def seed_model(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return `make` as a reproducible build whose model is in eval mode, with random parameters."""
    return seed(lambda: randomise(make()).eval(), 0)


def seed_inputs(make: Callable[[], T]) -> Callable[[], T]:
    """Return `make` as a reproducible maker of example inputs."""
    return seed(make, 1)


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Move every parameter and running statistic off its default, so that no two calls compute the same."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.3 * torch.randn(buffer.shape))
        elif name.endswith("running_var"):
            buffer.mul_(0.5 + torch.rand(buffer.shape))
    return model
