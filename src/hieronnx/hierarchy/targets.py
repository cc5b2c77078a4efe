"""Selecting calls by the names that people give them: tags, module paths, `path@n`, and globs over these.

Every command selects by these rules. What works on one call (extract) takes a module's path for its first call; what
selects nodes (tree, analyze, quantize, `nodes_in`) for all its calls. What names no call is an InputError.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from hieronnx.errors import InputError
from hieronnx.hierarchy.records import Call, CallId, Module


def find_calls(calls: Sequence[Call], modules: Mapping[str, Module], target: str) -> list[Call]:
    """Find the calls that a target names: exactly, or else as a glob; of those inside one another the outermost."""
    if exact := _find_exact(calls, modules, target):
        return [exact]
    matched = match_calls(calls, target)
    if not matched:
        raise InputError(f"no module call '{target}'; {_suggest(calls, modules, target)}")
    outermost = find_outermost(calls, matched)
    return [call for call in calls if call.id in outermost]


def match_calls(calls: Sequence[Call], pattern: str) -> set[CallId]:
    """Return the calls whose path, path@n, attribute path or own tag a glob matches."""
    return {call.id for call in calls if any(fnmatchcase(name, pattern) for name in _names(call))}


def find_outermost(calls: Sequence[Call], matched: Collection[CallId]) -> set[CallId]:
    """Return the matched calls that lie below no other."""
    inside: set[CallId | None] = set()
    outermost: set[CallId] = set()
    for call in calls:  # each after the one above it
        if call.parent in inside or call.id in matched:
            inside.add(call.id)
            if call.parent not in inside:
                outermost.add(call.id)
    return outermost


def _names(call: Call) -> tuple[str, ...]:
    return (str(call.id), call.id.module, call.via, *((call.tag,) if call.tagged else ()))


def _find_exact(calls: Sequence[Call], modules: Mapping[str, Module], target: str) -> Call | None:
    for position in range(3):  # a call's own name before its module's, and that before the names of others
        for call in calls:
            if _names(call)[position] == target:
                return call
    if numbered := _find_numbered(calls, target):
        return numbered
    tagged = next((call for call in calls if call.tagged and call.tag == target), None)
    if tagged is None and target in modules:
        below = any(call.via.startswith(f"{target}.") for call in calls)
        hint = f"; '{target}.*' matches the calls below it" if below else ", so the file has no nodes of it"
        raise InputError(f"module '{target}' ({modules[target].class_name}) is never called itself{hint}")
    return tagged


def _find_numbered(calls: Sequence[Call], target: str) -> Call | None:
    """Find what `path@n` means where that is no call's own name: the first call, or one that is not there."""
    path, at, number = target.rpartition("@")
    runs = [call for call in calls if call.id.module == path] if at else []
    if not runs or not (number.isascii() and number.isdecimal()):
        return None
    if int(number) == 0:
        return runs[0]
    name = f"'{path}'" if path else "the root"
    last = f"has {len(runs)} calls, the last is '{runs[-1].id}'" if len(runs) > 1 else "has one call; name it so"
    raise InputError(f"no call '{target}': {name} {last}")


def _suggest(calls: Sequence[Call], modules: Mapping[str, Module], target: str) -> str:
    """Suggest what may have been meant: a wider pattern, or names that look alike."""
    wider = f"*{target.strip('*')}*"
    patterns = [wider] if wider != target and match_calls(calls, wider) else []
    names = dict.fromkeys(name for call in calls for name in _names(call) if name)
    near = difflib.get_close_matches(target, [*names, *(m for m in modules if m not in names)], 3, 0.5)
    near = [*patterns, *near][:3]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else "'hieronnx tree --all' lists all calls"
