"""Which calls have a line of their own in a tree of calls, and what lies below each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hieronnx.errors import InputError
from hieronnx.hierarchy.records import Call, CallId, Hierarchy
from hieronnx.hierarchy.tags import escape, matches


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
    matched = {call.id for call in hierarchy.calls if pattern is None or _matches(call, pattern)}
    if not matched:
        raise InputError(_describe_no_match(hierarchy, pattern or ""))
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
    ways = {above for call in matched for above in hierarchy.ancestors(call)}
    return TreeRows(hierarchy, nearest, below, _find_topmost(hierarchy, matched), ways)


def _matches(call: Call, pattern: str) -> bool:
    return matches(pattern, call.id.module, str(call.id), call.via, call.tag)


def _describe_no_match(hierarchy: Hierarchy, pattern: str) -> str:
    message = f"no module path or tag matches '{pattern}'"
    wider = f"*{pattern.strip('*')}*"
    if wider != pattern and any(_matches(call, wider) for call in hierarchy.calls):
        return f"{message}; did you mean '{wider}'?"
    return f"{message}; a pattern looks like '*.0.*' or '*/{hierarchy.calls[-1].tag.rpartition('/')[2]}'"


def _find_topmost(hierarchy: Hierarchy, matched: set[CallId]) -> set[CallId]:
    """Return the matches that lie below no other."""
    inside: set[CallId | None] = set()
    topmost: set[CallId] = set()
    for call in hierarchy.calls:
        if call.parent in inside:
            inside.add(call.id)
        elif call.id in matched:
            inside.add(call.id)
            topmost.add(call.id)
    return topmost


def label_call(call: Call, class_name: str) -> str:
    """Return the last segment of a call's tag; for one without a tag of its own, what it would look like."""
    if call.tagged:
        return call.tag.rpartition("/")[2]
    path, number = call.id
    name = f"{escape(class_name)}.{escape(path.rpartition('.')[2])}"
    return f"{name}@{number}" if number else name
