"""The rows of a tree of calls: the calls that have a line of their own, and what lies below each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.targets import find_outermost


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The lines of a tree before any is left out.

    Attributes:
        hierarchy: whose calls they are.
        nearest: for each call, the line that it counts in: its own, or the nearest above it.
        below: the lines directly below each.
        matches: the topmost calls that were asked for.
        ways: the calls that were asked for and all above them.
    """

    hierarchy: Hierarchy
    nearest: Mapping[CallId, CallId]
    below: Mapping[CallId, list[CallId]]
    matches: set[CallId]
    ways: set[CallId]

    def walk(self, call: CallId) -> Iterator[CallId]:
        """Yield a line and all below it."""
        waiting = [call]
        while waiting:
            line = waiting.pop()
            yield line
            waiting += self.below[line]


def select_rows(hierarchy: Hierarchy, *, pattern: str | None = None, all_calls: bool = False) -> TreeRows:
    """Decide which calls have a line: those with a tag of their own or all, and what the pattern matches.

    Raises:
        InputError: If the pattern matches nothing.
    """
    matched = hierarchy.select_calls("*" if pattern is None else pattern)
    listed = {call.id for call in hierarchy.calls if all_calls or call.tagged}
    if pattern is not None:
        listed |= matched  # what was asked for is shown, tag or not
    nearest: dict[CallId, CallId] = {}
    below: dict[CallId, list[CallId]] = defaultdict(list)
    for call in hierarchy.calls:
        if call.parent is None:
            nearest[call.id] = call.id
        elif call.id in listed:
            below[nearest[call.parent]].append(call.id)
            nearest[call.id] = call.id
        else:
            nearest[call.id] = nearest[call.parent]
    ways = {above for call in matched for above in hierarchy.tree.ancestors(call)}
    return TreeRows(hierarchy, nearest, below, find_outermost(hierarchy.calls, matched), ways)
