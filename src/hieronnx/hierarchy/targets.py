"""Finding calls by the names that people give them: tags, module paths, `path@n`, and globs over these."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hieronnx.errors import AmbiguousTargetError, HieronnxError, InputError
from hieronnx.hierarchy.records import Call, CallId, Hierarchy
from hieronnx.hierarchy.tags import matches

_MOST_NAMED = 8


def find_call(hierarchy: Hierarchy, target: str) -> Call:
    """Find the one call that a target names; a module's path alone names its first call.

    Raises:
        HieronnxError: If the target names none, or several.
    """
    found = find_calls(hierarchy, target)
    if len(found) > 1:
        names = [str(call.id) or "the root" for call in found]
        listed = ", ".join(names[:_MOST_NAMED]) + f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED)
        raise AmbiguousTargetError(f"'{target}' matches {len(found)} calls: {listed}; name one of them")
    return found[0]


def find_calls(hierarchy: Hierarchy, target: str) -> list[Call]:
    """Find the calls that a target names: exactly, or else as a glob; of those inside one another the outermost.

    Raises:
        HieronnxError: If it names none.
    """
    if exact := _find_exact(hierarchy, target):
        return [exact]
    matched = [call for call in hierarchy.calls if matches(target, *_names(call))]
    if not matched:
        raise InputError(_describe_unknown(hierarchy, target))
    return _outermost(hierarchy, matched)


def _names(call: Call) -> tuple[str, ...]:
    return (str(call.id), call.id.module, call.via, *((call.tag,) if call.tagged else ()))


def _find_exact(hierarchy: Hierarchy, target: str) -> Call | None:
    for position in range(3):  # a call's own name before its module's, and that before the names of others
        for call in hierarchy.calls:
            if _names(call)[position] == target:
                return call
    if numbered := _find_numbered(hierarchy, target):
        return numbered
    tagged = next((call for call in hierarchy.calls if call.tagged and call.tag == target), None)
    if tagged is None and target in hierarchy.modules:
        raise HieronnxError(_describe_never_called(hierarchy, target))
    return tagged


def _find_numbered(hierarchy: Hierarchy, target: str) -> Call | None:
    """Find what `path@n` means where that is no call's own name: the first call, or one that is not there."""
    path, at, number = target.rpartition("@")
    calls = [call for call in hierarchy.calls if call.id.module == path] if at else []
    if not calls or not (number.isascii() and number.isdecimal()):
        return None
    if int(number) == 0:
        return calls[0]
    name = f"'{path}'" if path else "the root"
    last = f"has {len(calls)} calls, the last is '{calls[-1].id}'" if len(calls) > 1 else "has one call; name it so"
    raise InputError(f"no call '{target}': {name} {last}")


def _describe_never_called(hierarchy: Hierarchy, path: str) -> str:
    below = any(call.via.startswith(f"{path}.") for call in hierarchy.calls)
    hint = f"; '{path}.*' matches the calls below it" if below else ", so the file has no nodes of it"
    return f"module '{path}' ({hierarchy.modules[path].class_name}) is never called itself{hint}"


def _outermost(hierarchy: Hierarchy, calls: Sequence[Call]) -> list[Call]:
    inside = {call.id for call in calls}
    covered: set[CallId | None] = set()
    for call in hierarchy.calls:  # each after the one above it
        if call.parent in covered or call.parent in inside:
            covered.add(call.id)
    return [call for call in calls if call.id not in covered]


def _describe_unknown(hierarchy: Hierarchy, target: str) -> str:
    names = dict.fromkeys(name for call in hierarchy.calls for name in _names(call) if name)
    near = difflib.get_close_matches(target, [*names, *(m for m in hierarchy.modules if m not in names)], 3, 0.5)
    hint = (
        f"did you mean {' or '.join(repr(name) for name in near)}?" if near else "'hieronnx tree --all' lists all calls"
    )
    return f"no module call '{target}'; {hint}"
