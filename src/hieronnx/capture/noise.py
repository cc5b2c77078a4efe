"""What a model gives, and how far that moves where every call rounds a little otherwise, as another runtime does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hieronnx.capture.eager import array_of, run_calls
from hieronnx.capture.private_torch import pytree

_ROUNDINGS = 4
"""How many roundings of its own format each result of a call is moved by."""


def run_outputs(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    noise: int | None = None,
    roundings: int = _ROUNDINGS,
) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Run a model once and return the tensors that it gives; nothing is left of the run.

    With `noise`, a seed, the inputs and what each call returns are moved by some roundings, and what is drawn at random
    is drawn anew.
    """
    generator = torch.Generator().manual_seed(noise or 0)

    def disturb(value: Any) -> Any:
        if noise is None or not isinstance(value, Tensor) or not value.is_floating_point() or value.is_sparse:
            return value
        size = roundings * torch.finfo(value.dtype).eps
        factor = 1 + size * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return (value.double() * factor.to(value.device)).to(value.dtype)

    def run_call(call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if noise is not None and module is model:
            torch.manual_seed(noise)
            args, kwargs = pytree.tree_map(disturb, (args, kwargs))
        return pytree.tree_map(disturb, call(module, *args, **kwargs))

    def finish(result: Any) -> list[np.ndarray[Any, np.dtype[Any]]]:
        return [np.array(array_of(leaf)) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]

    outputs: list[np.ndarray[Any, np.dtype[Any]]] = run_calls(model, args, kwargs, run_call, nullcontext(), finish)
    return outputs
