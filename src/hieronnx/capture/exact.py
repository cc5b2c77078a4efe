"""Double precision beside a run: each operation runs again on what its inputs would be but for rounding.

Rounding is counted from where a level begins: there all tensors are taken as they are. One level goes from call
boundary to call boundary; another begins with each call that is watched, and ends with it::

    level of the call     x ──→ MatMul ──→ Add ──→ Gelu ──→ y        what the call would give for this x
    level of boundaries   x ──→ MatMul ──→ Add │ Gelu ──→ y          what Gelu alone would give for what it was given
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hieronnx.capture import private_torch
from hieronnx.capture.private_torch import pytree

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}


Noise: TypeAlias = tuple[float, float]
"""How far rounding took a tensor from its exact values: the root of the mean square, and the most."""


class ExactMode(private_torch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operation again in double precision, once for each level that is under way."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._boundaries = _Level()
        self._levels = [self._boundaries]

    def begin(self) -> None:
        """Begin a level: from here on rounding counts for it."""
        self._levels.append(_Level())

    def end(self, tensors: Iterable[Tensor]) -> list[Noise | None]:
        """End the level that began last; return how far rounding took these tensors."""
        level = self._levels.pop()
        return [level.measure(tensor) for tensor in tensors]

    def reset(self, tensor: Tensor) -> Noise | None:
        """Return how far rounding took a tensor since the last boundary, and take it as it is from here on."""
        noise = self._boundaries.measure(tensor)
        if noise is not None:
            del self._boundaries.exact[tensor]
        return noise

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation as it is, and in double precision."""
        kwargs = dict(kwargs or {})
        if isinstance(func, private_torch.HigherOrderOperator):
            return func(*args, **kwargs)
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if not _can_repeat(func, args, kwargs):
            return func(*args, **kwargs)
        widened = [level.widen((args, kwargs)) for level in self._levels]
        result = func(*args, **kwargs)
        for level, (wide_args, wide_kwargs) in zip(self._levels, widened, strict=True):
            try:
                wide = func(*wide_args, **wide_kwargs)
            except (NotImplementedError, RuntimeError):  # there is no such kernel in double precision
                continue
            level.note(result, wide)
        return result


class _Level:
    """The exact values of tensors since a level began."""

    def __init__(self) -> None:
        self.exact = WeakIdKeyDictionary()

    def widen(self, values: Any) -> Any:
        """Return the arguments of an operation in double precision."""
        return pytree.tree_map(self._widen_one, values)

    def _widen_one(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _WIDE.get(value, value)
        if not isinstance(value, Tensor) or value.dtype not in _WIDE:
            return value
        if value not in self.exact:
            wide = value.detach().to(_WIDE[value.dtype])
            if wide is value:
                wide = value.detach().clone()
            if isinstance(value, nn.Parameter):  # it would be kept for the whole run
                return wide
            self.exact[value] = wide
        return self.exact[value]

    def note(self, result: Any, wide: Any) -> None:
        """Note what an operation gave, and what it gave in double precision."""
        for tensor, exact in zip(pytree.tree_leaves(result), pytree.tree_leaves(wide), strict=False):
            are_tensors = isinstance(tensor, Tensor) and isinstance(exact, Tensor)
            if are_tensors and tensor.dtype in _WIDE and tensor.shape == exact.shape:
                self.exact[tensor] = exact

    def measure(self, tensor: Tensor) -> Noise | None:
        """Return how far rounding took a tensor; None where it is not known."""
        exact = self.exact.get(tensor)  # type: ignore[no-untyped-call]
        if exact is None or exact.shape != tensor.shape or not tensor.numel():
            return None
        apart = (tensor.detach().to(exact.dtype) - exact).abs()
        apart = apart[torch.isfinite(apart)]
        if not apart.numel():
            return None
        return float(apart.square().mean().sqrt()), float(apart.max())


def _can_repeat(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Say whether an operation on floats can run twice: it draws nothing, and writes to nothing but floats."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if not any(isinstance(leaf, Tensor) and leaf.dtype in _WIDE for leaf in pytree.tree_leaves((args, kwargs))):
        return False
    written = (
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return all(leaf.dtype in _WIDE for leaf in pytree.tree_leaves(list(written)) if isinstance(leaf, Tensor))
