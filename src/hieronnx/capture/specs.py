"""Specs of inputs, and the values drawn for them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from hieronnx.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Parameters: TypeAlias = Mapping[str, inspect.Parameter]

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
MOST_ELEMENTS = 2**31
"""How large an example may be: larger than any model takes, and small enough to be made."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input to make: a forward parameter's name, dtype and shape.

    Attributes:
        name: of the parameter.
        dtype: torch's name of it, one of `DTYPES`.
        shape: the sizes; empty for a scalar.
        range: the lowest and the highest value, both included. Without it floats are normal, integers are
            ids where the model says how many there are, else 0 or 1.

    Raises:
        InputError: the dtype is unknown, a size is negative, the sizes are absurd or the range is empty.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            hint = suggest(self.dtype, DTYPES) or f"; expected one of {', '.join(DTYPES)}"
            raise InputError(f"input '{self.name}': unknown dtype '{self.dtype}'{hint}")
        if any(size < 0 for size in self.shape):
            raise InputError(f"input '{self.name}': shape {list(self.shape)} has a negative size")
        if math.prod(self.shape) > MOST_ELEMENTS:
            raise InputError(
                f"input '{self.name}': shape {list(self.shape)} has more than {MOST_ELEMENTS:,} elements, more than an "
                "example may have; give smaller sizes"
            )
        if self.range is not None and self.range[0] > self.range[1]:
            raise InputError(f"input '{self.name}': range {list(self.range)} must be [lowest, highest]")


@dataclass(frozen=True, slots=True)
class Limits:
    """How to choose an input's values: by `kind`, below `count`, without `excluded`, `end` in last place."""

    kind: str = ""
    count: int = 2
    excluded: frozenset[int] = frozenset()
    end: int | None = None


def draw_all(model: nn.Module, specs: Mapping[InputSpec, Limits]) -> dict[str, Tensor]:
    """Make inputs where a model's parameters are: the same values each time, from no global generator."""
    import torch

    generator = torch.Generator().manual_seed(0)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {spec.name: _draw(spec, generator, limits).to(device) for spec, limits in specs.items()}


def _draw(spec: InputSpec, generator: torch.Generator, limits: Limits) -> Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.range is not None:
        return _draw_range(spec, *spec.range, generator, dtype)
    if limits.kind == "mask":  # a mask of ones alone would be folded away
        mask = torch.ones(spec.shape, dtype=dtype)
        if spec.shape and spec.shape[-1] > 1:
            mask.view(-1)[-1:] = 0
        return mask
    if dtype.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(dtype)
    allowed = [value for value in range(limits.count) if value not in limits.excluded]
    drawn = torch.tensor(allowed or [0])[torch.randint(len(allowed) or 1, spec.shape, generator=generator)]
    if limits.end is not None:
        drawn[..., -1:] = limits.end
    return drawn.to(dtype)


def _draw_range(spec: InputSpec, low: float, high: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    import torch

    if dtype.is_floating_point:
        return (low + (high - low) * torch.rand(spec.shape, generator=generator)).to(dtype)
    bounds = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (bounds[0] <= low and high <= bounds[1] and low == int(low) and high == int(high)):
        raise InputError(
            f"input '{spec.name}': range [{low}, {high}] must be of whole numbers "
            f"between {bounds[0]} and {bounds[1]} for {spec.dtype}"
        )
    return torch.randint(int(low), int(high) + 1, spec.shape, generator=generator).to(dtype)


def required(parameters: Parameters) -> list[str]:
    """List the parameters that a call must pass."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters.values() if p.default is p.empty and p.kind not in variadic]


def suggest(name: str, choices: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean …?`, or nothing where no choice is near."""
    near = get_close_matches(name, choices, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
