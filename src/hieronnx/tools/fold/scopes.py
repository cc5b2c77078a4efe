"""Scopes relative to a call, so that the nodes of a function that many calls share can tell theirs.

A relative scope is a way through the tree of calls: a step for each call on the way, `..` for one up. A step names the
child's module, without the caller's path where it lies below that, and behind `@` how often the caller had called it
before::

    call encoder.layer.3, scope encoder.layer.3.attention.self@1      attention/self@1
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from hieronnx.errors import InputError
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import escape

UP = ".."
"""The step to the caller."""


class RelativeScopes:
    """The relative scopes of one tree of calls, both ways."""

    def __init__(self, tree: CallTree) -> None:
        self._tree = tree
        self._steps: dict[CallId, str] = {}
        self._ways: dict[tuple[CallId, str], CallId] = {}
        self._known: set[CallId] = set()

    def tell(self, base: CallId, scope: CallId) -> str:
        """Return the way from a call to a scope; nothing where it is that call."""
        above, target = ([*self._tree.ancestors(call)][::-1] for call in (base, scope))
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(above, target, strict=False)))
        for caller in target[shared - 1 : -1]:
            self._learn(caller)
        return "/".join([UP] * (len(above) - shared) + [self._steps[call] for call in target[shared:]])

    def find(self, base: CallId, way: str) -> CallId:
        """Return the scope that a way leads to from a call.

        Raises:
            InputError: If it leads nowhere.
        """
        call = base
        for step in filter(None, way.split("/")):
            self._learn(call)
            found = self._parent(call) if step == UP else self._ways.get((call, step))
            if found is None:
                raise InputError(f"call '{base}' has no '{way}' below it: '{step}' leads to no call")
            call = found
        return call

    def find_all(self, base: CallId, ways: Iterable[str]) -> tuple[CallId, ...]:
        """Return the scopes that some ways lead to.

        Raises:
            InputError: If one leads nowhere.
        """
        return tuple(self.find(base, way) for way in ways)

    def _parent(self, call: CallId) -> CallId | None:
        return next((above for above in self._tree.ancestors(call) if above != call), None)

    def _learn(self, caller: CallId) -> None:
        """Name the steps to the calls that one made."""
        if caller in self._known:
            return
        self._known.add(caller)
        times: dict[str, int] = {}
        for call in self._tree.children[caller]:
            below = f"{caller.module}." if caller.module else ""
            inside = call.module != "" and call.module.startswith(below)
            name = escape(call.module.removeprefix(below)) if inside else f":{escape(call.module)}"
            number = times[name] = times.get(name, -1) + 1
            self._steps[call] = step = f"{name}@{number}" if number else name
            self._ways[caller, step] = call
