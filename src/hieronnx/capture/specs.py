"""Specs of inputs, and what a model's forward and its own examples say of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from hieronnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn

Parameters: TypeAlias = Mapping[str, inspect.Parameter]
Given: TypeAlias = Mapping[str, "InputSpec"]

DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


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
        InputError: the dtype is unknown, a size is negative or the range is empty.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            message = f"input '{self.name}': unknown dtype '{self.dtype}'"
            hint = suggest(self.dtype, DTYPES) or f"; expected one of {', '.join(DTYPES)}"
            raise InputError(message + hint)
        if any(size < 0 for size in self.shape):
            raise InputError(f"input '{self.name}': shape {list(self.shape)} has a negative size")
        if self.range is not None and self.range[0] > self.range[1]:
            raise InputError(f"input '{self.name}': range {list(self.range)} must be [lowest, highest]")


def required(parameters: Parameters) -> list[str]:
    """List the parameters that a call must pass."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters.values() if p.default is p.empty and p.kind not in variadic]


def read_example(model: nn.Module, attribute: str, parameters: Parameters) -> dict[str, Any] | None:
    """Return the inputs that a model offers: a mapping, a tensor or a sequence, or what makes one."""
    from torch import Tensor, nn

    try:
        found = getattr(model, attribute, None)
        if callable(found) and not isinstance(found, nn.Module):
            found = found()
    except Exception as error:
        raise InputError(f"{type(model).__name__}.{attribute} raised {describe(error)}") from error
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, Tensor):
        found = (found,)
    return dict(zip(parameters, found, strict=False)) if isinstance(found, (tuple, list)) else None


def describe_missing(model: nn.Module, missing: Sequence[str]) -> str:
    """Return what to say where nothing tells how to make some inputs."""
    options = " ".join(f"--input '{name}=dtype[shape]'" for name in missing)
    listed = ", ".join(missing)
    return (
        f"cannot tell what {type(model).__name__}.forward takes as {listed}; "
        f"pass {options}, for example --input '{missing[0]}=float32[1,3]'"
    )


def suggest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean …?`, or nothing where no known name is near."""
    near = get_close_matches(name, known, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def describe(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
