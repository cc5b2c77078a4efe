"""The values of example inputs: the same each time, from no global generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hieronnx.capture.specs import InputSpec
from hieronnx.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Limits:
    """How to choose an input's values: by `kind`, below `count`, without `excluded`, `end` in last place."""

    kind: str = ""
    count: int = 2
    excluded: frozenset[int] = frozenset()
    end: int | None = None


def make_generator() -> torch.Generator:
    """Return the generator that values are drawn from: a new one, the same each time."""
    import torch

    return torch.Generator().manual_seed(0)


def draw(spec: InputSpec, generator: torch.Generator, limits: Limits) -> Tensor:
    """Make the values of one input."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.range is not None:
        return _draw_range(spec, generator, dtype)
    if limits.kind == "mask":
        return _draw_mask(spec.shape, dtype)
    if dtype.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(dtype)
    allowed = [value for value in range(limits.count) if value not in limits.excluded]
    choice = torch.tensor(allowed or [0])
    drawn = choice[torch.randint(len(choice), spec.shape, generator=generator)]
    if limits.end is not None:
        drawn[..., -1:] = limits.end
    return drawn.to(dtype)


def _draw_range(spec: InputSpec, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    import torch

    low, high = spec.range or (0, 1)
    if dtype.is_floating_point:
        return (low + (high - low) * torch.rand(spec.shape, generator=generator)).to(dtype)
    bounds = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (bounds[0] <= low and high <= bounds[1] and low == int(low) and high == int(high)):
        raise InputError(
            f"input '{spec.name}': range [{low}, {high}] must be of whole numbers "
            f"between {bounds[0]} and {bounds[1]} for {spec.dtype}"
        )
    return torch.randint(int(low), int(high) + 1, spec.shape, generator=generator).to(dtype)


def _draw_mask(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return ones, but 0 at the last position of the last row: a mask of ones alone would be folded away."""
    import torch

    mask = torch.ones(shape, dtype=dtype)
    if shape and shape[-1] > 1:
        mask.view(-1)[-1:] = 0
    return mask


def read_device(model: nn.Module) -> torch.device:
    """Return where a model's parameters are, the CPU where it has none."""
    import torch

    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
