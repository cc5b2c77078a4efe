"""Recording module calls: which module ran, as which of its runs, inside which other call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules import module as module_hooks

from hieronnx.hierarchy import ROOT, CallId
from hieronnx.tags import CallSite

__all__ = ["CallRecorder", "module_paths", "watch_calls"]


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
        self._region_calls: dict[Hashable, CallSite] = {}

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

        Args:
            region: What that tracer traced in one go; equal keys in different regions are different calls.
            stack: From the outermost, a key that tells calls apart and the module's canonical path.
        """
        site = self._stack[-1] if self._stack else None
        for key, path in stack:
            found = self._region_calls.get((region, key))
            if found is None:
                found = self._region_calls[region, key] = self._add(path, site, None)
            site = found
        return site.id if site is not None else None

    def _add(self, path: str, parent: CallSite | None, alias: str | None) -> CallSite:
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        site = CallSite(call, parent.id if parent else None, self._resolve_via(path, parent, alias))
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
def watch_calls(
    recorder: CallRecorder, entered_call: Callable[[nn.Module, CallId], None] | None = None
) -> Iterator[None]:
    """Record the calls of any module while the context lasts, with nothing registered on the model itself.

    Global hooks leave alone what modules look at in themselves (fast paths ask for their own hooks).

    Args:
        recorder: What records.
        entered_call: Called with each module of the model and its call, before its forward runs.
    """
    entered: list[CallId | None] = []

    def before(module: nn.Module, _args: object) -> None:
        call = recorder.enter(module)
        entered.append(call)
        if call is not None and entered_call is not None:
            entered_call(module, call)

    def after(_module: nn.Module, _args: object, _output: object) -> None:
        recorder.leave(entered.pop())

    handles = [
        module_hooks.register_module_forward_pre_hook(before),
        module_hooks.register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
