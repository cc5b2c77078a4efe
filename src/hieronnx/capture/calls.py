"""Recording module calls: which module ran, as which of its runs, inside which other call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from hieronnx.hierarchy.records import ROOT, CallId
from hieronnx.hierarchy.tags import CallSite


def module_paths(model: nn.Module) -> dict[int, str]:
    """Map each module, by its id, to its canonical path: its first name in `named_modules()`."""
    return {id(module): path for path, module in model.named_modules()}


class CallRecorder:
    """The calls of one run of a model, in order, with the stack of those under way.

    When the root is entered anew the record begins anew: exporters may run a model more than once, and
    what they export is their last run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._paths = module_paths(model)
        self._aliases: dict[str, list[str]] = defaultdict(list)
        for alias, module in model.named_modules(remove_duplicate=False):
            self._aliases[self._paths[id(module)]].append(alias)
        self.sites: list[CallSite] = []
        self._counts: dict[str, int] = defaultdict(int)
        self._stack: list[CallSite] = []
        self._region_calls: dict[tuple[Hashable, Hashable], CallSite] = {}
        self._region_times: dict[Hashable, int] = {}
        self._times: dict[CallId, int] = {}
        self._clock = 0

    @property
    def current(self) -> CallId | None:
        """The innermost call under way."""
        return self._stack[-1].id if self._stack else None

    def path_of(self, module_id: int) -> str | None:
        """Return the canonical path of a module; None where it is not part of the model."""
        return self._paths.get(module_id)

    def enter(self, module: nn.Module, alias: str | None = None) -> CallId | None:
        """Note that a module's forward begins; None where the module is not part of the model.

        Args:
            module: The module.
            alias: The attribute path through which it was reached, where the caller saw that.
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
        if call is None:
            return
        while self._stack and self._stack.pop().id != call:
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
            found = self._region_calls.get((region, key))
            if found is None:
                found = self._region_calls[region, key] = self._add(path, site, None)
            if self._times[found.id] < self._region_times.get(region, 0):
                self._times[found.id] = self._tick()
            site = found
        return site.id if site is not None else None

    def begin_region(self, region: Hashable) -> None:
        """Note that a tracer works through a region from its beginning."""
        self._region_times[region] = self._tick()

    def settle(self, outermost: Callable[[Any], Hashable]) -> dict[CallId, CallId]:
        """Make one call of those that were recorded for one, and number the calls in the order of their last run.

        Args:
            outermost: Gives for a region the one that it is part of.

        Returns:
            The final id for each id that was given out.
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
        counts: dict[str, int] = defaultdict(int)
        numbered: dict[CallId, CallId] = {}
        for site in kept:
            numbered[site.id] = CallId(site.id.module, counts[site.id.module])
            counts[site.id.module] += 1
        final = {old: numbered[new] for old, new in final.items()}
        self.sites = [
            CallSite(final[site.id], None if site.parent is None else final[site.parent], site.via) for site in kept
        ]
        return final

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _add(self, path: str, parent: CallSite | None, alias: str | None) -> CallSite:
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        site = CallSite(call, parent.id if parent else None, self._resolve_via(path, parent, alias))
        self._times[call] = self._tick()
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

    def check_complete(self) -> None:
        """Make sure that there is a root call, also where nothing could be recorded."""
        if not self.sites:
            self.sites.append(CallSite(ROOT, None, ""))


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
