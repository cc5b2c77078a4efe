"""The tensors that a module call takes and gives, with the names of the arguments that hold them."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import nn

from hieronnx.hierarchy.records import CallId

Places: TypeAlias = tuple[tuple[str, int | None], ...]
"""Tensors by name, each with the number that stands for it; None where nothing does."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_SIZES = (torch.SymBool, torch.SymFloat, torch.SymInt)  # they lead to all that torch knows of the trace
_CLOSED = (nn.Module, type, FunctionType, MethodType, ModuleType)
# An object that leads to more than that is no argument but a whole program.
_OBJECT_LIMIT = 2000
_DEPTH_LIMIT = 30


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one call received and returned; None where that is not known."""

    received: Places | None
    returned: Places | None = None

    def moved(self, move: Callable[[int], int | None]) -> Exchange:
        """Return the same with other numbers for the tensors."""

        def move_all(places: Places | None) -> Places | None:
            return places and tuple((name, None if number is None else move(number)) for name, number in places)

        return Exchange(move_all(self.received), move_all(self.returned))


class PassRecorder:
    """Notes what each call of a run received and returned, as the tensors were at that time."""

    def __init__(self, number: Callable[[Sequence[torch.Tensor]], Iterable[int | None]]) -> None:
        """Take what gives tensors the numbers that stand for their values of that moment."""
        self.exchanges: dict[CallId, Exchange] = {}
        self._number = number
        self._signatures: dict[Any, _Signature] = {}

    def clear(self) -> None:
        """Forget all calls: the run begins anew."""
        self.exchanges.clear()

    def note_received(self, call: CallId, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note what a call is given."""
        forward = getattr(module.forward, "__func__", module.forward)
        signature = self._signatures.get(forward)
        if signature is None:
            signature = self._signatures[forward] = _Signature.of(module.forward)
        self.exchanges[call] = Exchange(self._place(signature.name(args, kwargs)))

    def note_returned(self, call: CallId, result: Any) -> None:
        """Note what a call gave back."""
        self.exchanges[call] = Exchange(self.exchanges[call].received, self._place([("", result)]))

    def _place(self, named: Iterable[tuple[str, Any]]) -> Places | None:
        finder = _TensorFinder()
        names, tensors = [], []
        for name, value in named:
            for path, tensor in finder.find(name, value, 0):
                names.append(path)
                tensors.append(tensor)
        return None if finder.gave_up else tuple(zip(names, self._number(tensors), strict=True))


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments of a `forward`, as far as Python tells them."""

    positional: tuple[str, ...]
    rest: str
    """What takes further arguments by position; they are named by their places in it."""
    order: Mapping[str, int]

    @classmethod
    def of(cls, forward: Callable[..., Any]) -> _Signature:
        try:
            parameters = inspect.signature(forward).parameters
        except (TypeError, ValueError):  # written in C, traced or scripted
            return cls((), "", {})
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = tuple(name for name, parameter in parameters.items() if parameter.kind in kinds)
        rest = next((name for name, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), "")
        return cls(positional, rest, {name: place for place, name in enumerate(parameters)})

    def name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Name what a call is given, in the order of the signature."""
        known = len(self.positional)
        named = [
            (self.positional[place] if place < known else _join(self.rest, str(place - known)), value)
            for place, value in enumerate(args)
        ]
        if kwargs:
            last = len(self.order)
            named += sorted(kwargs.items(), key=lambda item: self.order.get(item[0], last))
        return named


def _join(above: str, step: str) -> str:
    return f"{above}.{step}" if above else step


class _TensorFinder:
    """Finds the tensors inside an argument, without running any code of the objects on the way to them."""

    def __init__(self) -> None:
        self.gave_up = False
        self._objects: set[int] = set()

    def find(self, name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a value, each with the way to it."""
        if isinstance(value, torch.Tensor):
            yield name, value
            return
        if isinstance(value, _PLAIN + _SIZES) or self.gave_up:
            return
        if depth > _DEPTH_LIMIT:
            self.gave_up = True
            return
        for step, inner in self._open(value):
            yield from self.find(_join(name, str(step)), inner, depth + 1)

    def _open(self, value: Any) -> Iterable[tuple[Any, Any]]:
        if isinstance(value, list | tuple | deque):
            return enumerate(value)
        if isinstance(value, dict):
            return dict.items(value)
        if isinstance(value, _CLOSED) or id(value) in self._objects:
            return ()
        self._objects.add(id(value))
        self.gave_up = len(self._objects) > _OBJECT_LIMIT
        return _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an object itself holds, in its slots and its dictionary."""
    for owner in reversed(type(value).__mro__):
        for name, slot in vars(owner).items():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # it holds nothing yet
                    yield name, slot.__get__(value)
    yield from getattr(value, "__dict__", {}).items()
