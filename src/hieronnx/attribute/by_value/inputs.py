"""The inputs of both runs: a second set unlike the first, and which argument each input of the file takes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

from hieronnx.errors import HieronnxError
from hieronnx.runtime.sessions import Array, FileInput

InputSet: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments by position and by name."""

_CHOICES = 64
_FEW = 4
"""Inputs of which all orders are tried, where names do not tell."""


def array_of(tensor: Tensor) -> Array:
    """Return a tensor as an array; a type that numpy lacks as float32."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    lacking = plain.dtype == torch.bfloat16 or (plain.is_floating_point() and plain.element_size() == 1)
    found: Array = (plain.float() if lacking else plain).numpy()
    return found


def vary(values: Any) -> Any:
    """Return inputs of the same kind with other values: what two different ones share is no coincidence.

    Floating-point numbers are drawn anew at the same scale; of whole numbers only those are used that are there.
    Scalars stay as they are: they may count something.
    """
    generator = torch.Generator().manual_seed(1)
    return tree_map(lambda leaf: _vary_tensor(leaf, generator) if isinstance(leaf, Tensor) else leaf, values)


def _vary_tensor(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.numel() < 2 or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    if tensor.is_complex():
        parts = _vary_tensor(torch.view_as_real(tensor.detach().resolve_conj()), generator)
        return torch.view_as_complex(parts)
    if not tensor.is_floating_point():
        return _vary_whole(tensor, generator)
    present = tensor.detach().cpu().double()
    finite = present[torch.isfinite(present)]
    if not finite.numel() or torch.unique(finite).numel() <= 2:  # a mask, or a place that is to be filled
        return _vary_whole(tensor, generator)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    drawn = drawn * finite.std() + finite.mean()
    if finite.min() >= 0:  # pixels, lengths: what is never negative may have to be so
        drawn = drawn.abs().clamp(finite.min(), finite.max())
    return torch.where(torch.isfinite(present), drawn, present).to(tensor.dtype).to(tensor.device)


def _vary_whole(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Draw anew among the values that are there; a mask of ones alone gets a last place that is not shown."""
    present = tensor.detach().cpu()
    distinct: Tensor = torch.unique(present)
    if distinct.numel() == 1:
        varied = present.clone()
        if tensor.ndim >= 2 and tensor.shape[-1] > 1 and float(distinct[0]) == 1.0:
            varied.view(-1)[-1:] = 0
        return varied.to(tensor.device)
    if distinct.numel() == 2 and tensor.ndim >= 2:
        rows = present.flip(0)  # whole rows, so that none is all hidden
        if not torch.equal(rows, present):
            return rows.to(tensor.device)
    drawn = distinct[torch.randint(distinct.numel(), tensor.shape, generator=generator)]
    if distinct.numel() == 2:  # a sequence that begins hidden may have nothing to look at
        drawn[..., :1] = present[..., :1]
    return drawn.to(tensor.device)


def name_arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Array]]:
    """Return the tensors and numbers among the arguments, named after the forward's parameters."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    found = []
    for name, value in bound.arguments.items():
        for path, leaf in tree_flatten_with_path(value)[0]:
            if isinstance(leaf, Tensor | bool | int | float):
                # torch names a flattened input by its path: `cache_0_key`.
                words = "".join(c if c.isalnum() else " " for c in keystr(path)).split()
                found.append(("_".join([name, *words]), array_of(torch.as_tensor(leaf))))
    return found


def list_choices(
    inputs: Sequence[FileInput], arguments: Sequence[tuple[str, Array]], name: str
) -> list[Callable[[Sequence[tuple[str, Array]]], dict[str, Array]]]:
    """List the ways to give the arguments to a file: by name, and the others where they fit, those in order first.

    An exporter may drop inputs and rename them, so there may be several ways.

    Raises:
        HieronnxError: If there is none.
    """
    places: dict[str, int] = {}
    for wanted in inputs:
        for position, (argument, array) in enumerate(arguments):
            if argument == wanted.name and position not in places.values() and _fits(wanted, array):
                places[wanted.name] = position
                break
    left = [position for position in range(len(arguments)) if position not in places.values()]
    unnamed = [wanted for wanted in inputs if wanted.name not in places]
    ways = [places | way for way in islice(_fit(unnamed, left, arguments), _CHOICES)]
    if not ways:
        missing = ", ".join(f"'{wanted.name}'" for wanted in unnamed)
        raise HieronnxError(
            f"the inputs given do not fit those of '{name}': nothing fits {missing}; give inputs of its types and sizes"
        )
    return [_feeder(inputs, way) for way in ways]


def _fit(
    unnamed: Sequence[FileInput], left: Sequence[int], arguments: Sequence[tuple[str, Array]]
) -> Iterator[dict[str, int]]:
    """Yield the arguments that inputs may take, with those in order first; few inputs may be in any other order."""
    fitting = [[position for position in left if _fits(wanted, arguments[position][1])] for wanted in unnamed]
    names = [wanted.name for wanted in unnamed]
    for chosen in _choose_in_order(fitting):
        yield dict(zip(names, chosen, strict=True))
    if 1 < len(unnamed) <= _FEW:
        for chosen in product(*fitting):
            if len(set(chosen)) == len(chosen) and list(chosen) != sorted(chosen):
                yield dict(zip(names, chosen, strict=True))


def _choose_in_order(fitting: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to choose one of each that is after the one before, without trying what leads nowhere."""
    last: list[int] = []
    for positions in reversed(fitting):
        before = last[-1] if last else math.inf
        last.append(max((position for position in positions if position < before), default=-1))
    pending: list[tuple[int, ...]] = [()]
    while pending:
        chosen = pending.pop()
        if len(chosen) == len(fitting):
            yield chosen
            continue
        low, high = chosen[-1] if chosen else -1, last[len(fitting) - 1 - len(chosen)]
        after = (position for position in fitting[len(chosen)] if low < position <= high)
        pending.extend((*chosen, position) for position in sorted(after, reverse=True))


def _fits(wanted: FileInput, array: Array) -> bool:
    if wanted.dtype is None or not _same_kind(wanted.dtype, array.dtype):
        return False
    if wanted.shape is None:
        return True
    sizes = zip(wanted.shape, array.shape, strict=False)
    return len(wanted.shape) == array.ndim and all(size in (None, actual) for size, actual in sizes)


def _same_kind(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    # A file in half precision, or with 32-bit indices, is given the same values.
    return a == b or (a.kind == b.kind and a.kind in "fiu")


def _feeder(
    inputs: Sequence[FileInput], places: Mapping[str, int]
) -> Callable[[Sequence[tuple[str, Array]]], dict[str, Array]]:
    def feed(arguments: Sequence[tuple[str, Array]]) -> dict[str, Array]:
        return {i.name: arguments[places[i.name]][1].astype(i.dtype, copy=False) for i in inputs}

    return feed
