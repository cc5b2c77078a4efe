"""The reference run: the values of all tensors that the module calls of one eager run received and returned.

With `ExactMode` around it, every operation runs once more in double precision: what each call alone would give on the
inputs that it received, but for rounding, is then known, and how far the model's own arithmetic is from that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hieronnx.capture import private_torch
from hieronnx.capture.calls import CallIO, CallRecorder, IORecorder
from hieronnx.capture.eager import array_of, run_calls
from hieronnx.capture.exact import ExactMode, Noise
from hieronnx.hierarchy.records import CallId

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What the calls of one run exchanged.

    Attributes:
        calls: What each received and returned, by the numbers of the values.
        values: The values by their numbers, as they were when a call received or returned them.
        noise: How far rounding took what a call returned from what it would be, by the call and the place, for the
            calls that were watched; by the number of the value alone from the nearest boundaries before it.
    """

    calls: Mapping[CallId, CallIO]
    values: Mapping[Hashable, Array]
    noise: Mapping[Hashable, Noise] = field(default_factory=dict)


def run_reference(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    watched: Collection[CallId] | None = None,
    boundaries: Collection[Hashable] = (),
    keep: bool = True,
) -> ReferenceRun:
    """Run the model once and keep what its calls exchange; inputs, buffers and torch's state stay untouched.

    Args:
        model: The model.
        args: Its inputs by position.
        kwargs: Its inputs by keyword.
        watched: The calls of which the noise is wanted; None: of none, and nothing runs twice.
        boundaries: The numbers of the values from which noise counts anew, as an earlier run gave them.
        keep: Whether the values are kept, or only the noise.
    """
    recorder = _Recorder(model, watched, boundaries, keep)
    run_calls(model, args, kwargs, recorder.run_call, recorder.exact or nullcontext())
    return ReferenceRun(recorder.io.calls, recorder.values, recorder.noise)


class _Recorder:
    """Keeps the values that calls exchange, each once however many calls it passes through."""

    def __init__(
        self, model: nn.Module, watched: Collection[CallId] | None, boundaries: Collection[Hashable], keep: bool
    ) -> None:
        self.call_recorder = CallRecorder(model)
        self.io = IORecorder(self._number)
        self.values: dict[Hashable, Array] = {}
        self.noise: dict[Hashable, Noise] = {}
        self.exact = None if watched is None else ExactMode()
        self._watched, self._boundaries, self._keep = watched or (), frozenset(boundaries), keep
        self._numbers = WeakIdKeyDictionary()
        self._count = 0
        self._last: list[Tensor] = []

    def run_call(
        self, call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one module call, hooks and all; a module that the model does not register makes no call."""
        scope = self.call_recorder.enter(module)
        if scope is None:
            return call(module, *args, **kwargs)
        with private_torch.disable_dispatch_modes():
            self.io.note_received(scope, module, args, kwargs)
        watching = self.exact is not None and scope in self._watched
        if self.exact is not None and watching:
            self.exact.begin()
        try:
            result = call(module, *args, **kwargs)
        finally:
            self.call_recorder.leave(scope)
        with private_torch.disable_dispatch_modes():
            self.io.note_returned(scope, result)
            if self.exact is not None and watching:
                names = [name for name, _ in self.io.calls[scope].returned or ()]
                for name, noise in zip(names, self.exact.end(self._last), strict=False):
                    if noise is not None:
                        self.noise[scope, name] = noise
        return result

    def _number(self, tensors: Sequence[Tensor]) -> Iterator[int | None]:
        """Number the present values of tensors, and keep those that are new."""
        self._last = list(tensors)
        for tensor in self._last:
            yield self._number_one(tensor) if _is_plain(tensor) else None

    def _number_one(self, tensor: Tensor) -> int:
        version = None if tensor.is_inference() else tensor._version
        if tensor in self._numbers and version is not None:
            number, seen = self._numbers[tensor]
            if seen == version:
                return int(number)
        number = self._count
        self._count += 1
        self._numbers[tensor] = number, version
        if self._keep:
            self.values[number] = np.array(array_of(tensor))  # a copy, for it may be written to
        if self.exact is not None and number in self._boundaries:
            noise = self.exact.reset(tensor)
            if noise is not None:
                self.noise[number] = noise
        return number


def _is_plain(tensor: Tensor) -> bool:
    strided = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
    return strided and not private_torch.is_functorch_wrapped_tensor(tensor)
