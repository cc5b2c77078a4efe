"""Tags: each parses and names one call, and each call has one."""

from __future__ import annotations

from collections.abc import Mapping

from hieronnx.errors import InputError
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId
from hieronnx.hierarchy.tags import Segment, parse_tag
from hieronnx.tools.validate.findings import Finding, call_place

_REMEDY = "export the model anew, or restore the file"


def check_tags(hierarchy: Hierarchy, source: str) -> list[Finding]:
    """Check the tag of every call against that of its parent, and that no two calls share one."""
    holders: dict[str, CallId] = {}
    segments: dict[CallId, tuple[Segment, ...] | None] = {}
    found = []
    for call in hierarchy.calls:
        if reason := _why_wrong(hierarchy, call, holders, segments):
            found.append(Finding("tags", "error", f"{source}: {call_place(call.id)}", reason, _REMEDY))
        holders.setdefault(call.tag, call.id)
    return found


def _why_wrong(
    hierarchy: Hierarchy,
    call: Call,
    holders: Mapping[str, CallId],
    segments: dict[CallId, tuple[Segment, ...] | None],
) -> str:
    """Say what is wrong with a call's tag; nothing if it is right. Its segments are kept for the calls below."""
    parent = None if call.parent is None else hierarchy.call_by_id[call.parent]
    if parent is not None and call.tag == parent.tag:  # no tag of its own
        segments[call.id] = segments[parent.id]
        return ""
    try:
        own = segments[call.id] = parse_tag(call.tag)
    except InputError:
        segments[call.id] = None
        return f"'{call.tag}' is not a tag; one looks like /Model/Encoder/Layer.0"
    if call.tag in holders:
        return f"its tag '{call.tag}' is that of call '{holders[call.tag]}' too"
    above = () if parent is None else segments[parent.id]
    if above is not None and own[:-1] != above:
        return f"its tag '{call.tag}' is not one step below '{parent.tag if parent else ''}', the tag of its parent"
    name = hierarchy.modules[call.id.module].qualified_class.rpartition(".")[2]
    return "" if own[-1].class_name == name else f"its tag '{call.tag}' does not name its class '{name}'"
