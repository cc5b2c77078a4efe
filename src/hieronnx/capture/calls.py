"""Recording module calls: which module ran, as which of its runs, inside which other call, on which tensors."""

from __future__ import annotations

import inspect
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import nn

from hieronnx.hierarchy.records import ROOT, CallId
from hieronnx.hierarchy.tags import CallSite

NumberedTensors: TypeAlias = tuple[tuple[str, int | None], ...]
"""Tensors by the argument that holds them, each with the number that stands for it; None where nothing does."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_SIZES = (torch.SymBool, torch.SymFloat, torch.SymInt)  # they lead to all that torch knows of the trace
_CLOSED = (nn.Module, type, FunctionType, MethodType, ModuleType)
# An object that leads to more than that is no argument but a whole program.
_OBJECT_LIMIT = 2000
_DEPTH_LIMIT = 30


class CallRecorder:
    """The calls of one run of a model, in order, with the stack of those under way.

    When the root is entered again the record begins again: exporters may run a model more than once, and
    what they export is their last run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        """The canonical path of each module, by its id: its first name in `named_modules()`."""
        self._aliases: dict[str, list[str]] = defaultdict(list)
        for alias, module in model.named_modules(remove_duplicate=False):
            self._aliases[self._paths[id(module)]].append(alias)
        self.sites: list[CallSite] = []
        self._counts: dict[str, int] = defaultdict(int)
        self._stack: list[CallSite] = []
        self._region_calls: dict[tuple[Hashable, Hashable], CallSite] = {}
        self._region_times: dict[Hashable, int] = {}
        self._times: dict[CallId, int] = {}
        self._clock = count(1)

    @property
    def current(self) -> CallId | None:
        """The innermost call under way."""
        return self._stack[-1].id if self._stack else None

    def path_of(self, module_id: int) -> str | None:
        """Return the canonical path of a module; None where it is not part of the model."""
        return self._paths.get(module_id)

    def enter(self, module: nn.Module, alias: str | None = None) -> CallId | None:
        """Note that a module's forward begins; None where the module is not part of the model.

        `alias` is the attribute path through which it was reached, where the caller saw that.
        """
        path = self._paths.get(id(module))
        if path is None or (path and not self._stack):
            return None
        if not path and not self._stack:
            self.sites.clear()
            self._counts.clear()
            self._region_calls.clear()
            self._times.clear()
        site = self._add(path, self._stack[-1] if self._stack else None, alias)
        self._stack.append(site)
        return site.id

    def leave(self, call: CallId | None) -> None:
        """Note that a call has ended, and with it whatever began inside it and never said so."""
        while call is not None and self._stack and self._stack.pop().id != call:
            pass

    def enter_recorded(self, region: Hashable, stack: Sequence[tuple[Hashable, str]]) -> CallId | None:
        """Return the innermost call of a stack that another tracer recorded inside the current call.

        Such tracers work through a region more than once, and through regions inside others on their own first;
        `settle` finds out in the end which of the calls are one.

        Args:
            region: What that tracer traced in one go; equal keys in different regions may be different calls.
            stack: From the outermost, a key that tells calls apart and the module's canonical path.
        """
        site = self._stack[-1] if self._stack else None
        for key, path in stack:
            inner = self._region_calls.get((region, key))
            if inner is None:
                inner = self._region_calls[region, key] = self._add(path, site, None)
            if self._times[inner.id] < self._region_times.get(region, 0):
                self._times[inner.id] = next(self._clock)
            site = inner
        return site.id if site is not None else None

    def begin_region(self, region: Hashable) -> None:
        """Note that a tracer works through a region from its beginning."""
        self._region_times[region] = next(self._clock)

    def settle(self, outermost: Callable[[Any], Hashable]) -> dict[CallId, CallId]:
        """Make one call of those that were recorded for one, and number the calls in the order of their last run.

        `outermost` gives for a region the one that it is part of. Return the final id for each id that was given out.
        """
        same: dict[Hashable, CallId] = {}
        final: dict[CallId, CallId] = {site.id: site.id for site in self.sites}
        for (region, key), site in self._region_calls.items():
            first = same.setdefault((outermost(region), key), site.id)
            final[site.id] = first
            self._times[first] = max(self._times[first], self._times[site.id])
        order: dict[CallId, tuple[int, ...]] = {}
        for site in self.sites:  # a call comes after its caller, whichever was seen last
            above = () if site.parent is None else order[final[site.parent]]
            order.setdefault(final[site.id], (*above, self._times[final[site.id]]))
        kept = sorted((s for s in self.sites if final[s.id] == s.id), key=lambda site: order[site.id])
        counts: dict[str, Iterator[int]] = defaultdict(count)
        numbered = {site.id: CallId(site.id.module, next(counts[site.id.module])) for site in kept}
        final = {old: numbered[new] for old, new in final.items()}
        self.sites = [CallSite(final[s.id], None if s.parent is None else final[s.parent], s.via) for s in kept]
        return final

    def _add(self, path: str, parent: CallSite | None, alias: str | None) -> CallSite:
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        site = CallSite(call, parent.id if parent else None, self._resolve_via(path, parent, alias))
        self._times[call] = next(self._clock)
        self.sites.append(site)
        return site

    def _resolve_via(self, path: str, parent: CallSite | None, alias: str | None) -> str:
        """Return the attribute path of a call: as seen, or the name that the module has below its caller."""
        names = self._aliases[path]
        if alias in names or len(names) == 1:
            return alias if alias in names else names[0]
        prefix = f"{parent.via}." if parent is not None and parent.via else ""
        below = [name for name in names if name.startswith(prefix)]
        if alias is not None:
            below = [name for name in below if name.rpartition(".")[2] == alias.rpartition(".")[2]] or below
        return (below or names)[0]


@contextmanager
def module_calls_through(
    run: Callable[[Callable[..., Any], nn.Module, tuple[Any, ...], dict[str, Any]], Any],
) -> Iterator[None]:
    """Let every module call go through `run(original, module, args, kwargs)`, with nothing registered on the model.

    torch's global hooks would not do: the one before has no keyword arguments, and the one after runs before
    the module's own hooks, whose operations belong to the call and may replace its outputs.
    """
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(original, module, args, kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


# -- what calls receive and return ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallIO:
    """The tensors that one call received and returned; None where that is not known."""

    received: NumberedTensors | None
    returned: NumberedTensors | None = None

    def renumber(self, number_of: Callable[[int], int | None]) -> CallIO:
        """Return the same with other numbers for the tensors."""
        received, returned = (
            tensors and tuple((name, None if old is None else number_of(old)) for name, old in tensors)
            for tensors in (self.received, self.returned)
        )
        return CallIO(received, returned)


class IORecorder:
    """Records what each call of a run received and returned, as the tensors were at that time."""

    def __init__(self, number: Callable[[Sequence[torch.Tensor]], Iterable[int | None]]) -> None:
        """Take the function that gives tensors the numbers that stand for their values of that moment."""
        self.calls: dict[CallId, CallIO] = {}
        self._number = number
        self._parameters: dict[Any, Mapping[str, inspect.Parameter]] = {}
        """The parameters of each `forward`."""

    def note_received(self, call: CallId, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note what a call is given."""
        forward = getattr(module.forward, "__func__", module.forward)
        if forward not in self._parameters:
            try:
                self._parameters[forward] = inspect.signature(module.forward).parameters
            except (TypeError, ValueError):  # written in C, traced or scripted
                self._parameters[forward] = {}
        self.calls[call] = CallIO(self._number_all(_name_arguments(self._parameters[forward], args, kwargs)))

    def note_returned(self, call: CallId, result: Any) -> None:
        """Note what a call returned."""
        self.calls[call] = CallIO(self.calls[call].received, self._number_all([("", result)]))

    def _number_all(self, named: Iterable[tuple[str, Any]]) -> NumberedTensors | None:
        finder = _TensorFinder()
        names, tensors = [], []
        for name, value in named:
            for path, tensor in finder.find(name, value, 0):
                names.append(path)
                tensors.append(tensor)
        return None if finder.gave_up else tuple(zip(names, self._number(tensors), strict=True))


def name_received(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors among the arguments of a module by the names that `Call.received` has for them."""
    found: list[torch.Tensor] = []

    def number(tensors: Sequence[torch.Tensor]) -> Iterator[int]:
        found.extend(tensors)
        yield from range(len(tensors))

    recorder = IORecorder(number)
    recorder.note_received(ROOT, module, args, kwargs)
    return {name: found[position] for name, position in recorder.calls[ROOT].received or () if position is not None}


def _name_arguments(
    parameters: Mapping[str, inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Name what a call is given, in the order of the signature; what `*args` takes, by its index in that."""
    names = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters.values() if p.kind is p.VAR_POSITIONAL), "")
    names += [_join(rest, str(index)) for index in range(len(args) - len(names))]
    by_keyword = [(name, kwargs[name]) for name in dict.fromkeys((*parameters, *kwargs)) if name in kwargs]
    return [*zip(names, args, strict=False), *by_keyword]


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
