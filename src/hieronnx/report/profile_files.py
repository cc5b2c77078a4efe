"""A profile for viewers: a trace for Perfetto and Chrome, a file for speedscope, node data for Model Explorer.

Trace and speedscope show one run in which every kernel takes its median: modules are slices around their kernels, and
the slices of a call add up to its time. A kernel that calls share is cut at their shares:

    BertLayer          ████████████████
    SelfOutput         ████████
    LayerNorm                  ████████
    kernel             █SkipLayerNorm█     half in each
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, Any

from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import label_call

if TYPE_CHECKING:
    from hieronnx.tools.profile.result import Kernel, ProfileResult

_NANOSECONDS = 1000  # in a microsecond
_SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d73027"}]


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the timeline in nanoseconds: of a call, or of a kernel's part in one."""

    start: int
    end: int
    depth: int
    call: CallId
    kernel: Kernel | None


def lay_out(result: ProfileResult) -> list[Slice]:
    """Lay the kernels out one after the other, with the calls around them; each slice after those around it."""
    tree = result.hierarchy.tree
    slices: list[Slice] = []
    around: list[int] = []  # the places of the slices that are open
    parts = list(_list_parts(result))
    times = _follow_each_other([us for _, _, us in parts])
    for (kernel, call, _), (start, end) in zip(parts, times, strict=True):
        way = list(tree.ancestors(call))[::-1]
        shared = sum(1 for _ in takewhile(lambda pair: slices[pair[0]].call == pair[1], zip(around, way, strict=False)))
        del around[shared:]
        for depth, inner in enumerate(way[shared:], shared):
            around.append(len(slices))
            slices.append(Slice(start, end, depth, inner, None))
        for place in around:
            slices[place] = replace(slices[place], end=end)
        slices.append(Slice(start, end, len(way), call, kernel))
    return slices


def _list_parts(result: ProfileResult) -> Iterator[tuple[Kernel, CallId, float]]:
    for kernel in result.kernels:
        for share in kernel.shares:
            yield kernel, CallId(share.module, share.call), share.us


def _follow_each_other(durations: list[float]) -> list[tuple[int, int]]:
    """Return start and end of stretches that follow each other, in whole nanoseconds."""
    ends = [0, *(round(us * _NANOSECONDS) for us in accumulate(durations))]
    return list(pairwise(ends))


# -- Perfetto, Chrome -------------------------------------------------------------------------------------


def profile_to_trace(result: ProfileResult) -> str:
    """Return a profile as a trace of Chrome's form, which Perfetto opens too."""
    about = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": result.model}}
    thread = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": f"median of {result.runs} runs"}}
    events = [_to_event(result, item) for item in lay_out(result)]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": [about, thread, *events]}) + "\n"


def _to_event(result: ProfileResult, item: Slice) -> dict[str, Any]:
    arguments: dict[str, Any] = {"module": item.call.module, "call": item.call.number}
    kernel = item.kernel
    if kernel is None:
        arguments["tag"] = result.hierarchy.tag_of(item.call)
    else:
        arguments |= {"operator": kernel.operator, "kind": kernel.kind, "count": kernel.count, "shared": kernel.shared}
    return {
        "name": _name_slice(result, item),
        "cat": "module" if kernel is None else "kernel",
        "ph": "X",
        "ts": item.start / _NANOSECONDS,
        "dur": (item.end - item.start) / _NANOSECONDS,
        "pid": 1,
        "tid": 1,
        "args": arguments,
    }


def _name_slice(result: ProfileResult, item: Slice) -> str:
    if item.kernel is not None:
        return item.kernel.name
    call = result.hierarchy.call_by_id[item.call]
    return label_call(call, result.hierarchy.modules[item.call.module].class_name)


# -- speedscope -------------------------------------------------------------------------------------------


def profile_to_speedscope(result: ProfileResult) -> str:
    """Return a profile as a file for speedscope."""
    frames: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = []
    open_slices: list[tuple[int, int]] = []

    def close_until(start: int, depth: int) -> None:
        while open_slices and len(open_slices) > depth:
            frame, end = open_slices.pop()
            events.append({"type": "C", "frame": frame, "at": min(end, start) / _NANOSECONDS})

    slices = lay_out(result)
    for item in slices:
        close_until(item.start, item.depth)
        key = _name_slice(result, item), str(item.call)
        frame = frames.setdefault(key, len(frames))
        events.append({"type": "O", "frame": frame, "at": item.start / _NANOSECONDS})
        open_slices.append((frame, item.end))
    end = max((item.end for item in slices), default=0)
    close_until(end, 0)
    profile = {
        "type": "evented",
        "name": f"{result.model}, median of {result.runs} runs",
        "unit": "microseconds",
        "startValue": 0,
        "endValue": end / _NANOSECONDS,
        "events": events,
    }
    named = [{"name": name, **({"file": path} if path else {})} for name, path in frames]
    document = {"$schema": _SPEEDSCOPE, "shared": {"frames": named}, "profiles": [profile], "exporter": "hieronnx"}
    return json.dumps(document) + "\n"


# -- Model Explorer ---------------------------------------------------------------------------------------


def profile_to_node_data(result: ProfileResult) -> str:
    """Return the kernels' times as node data for Model Explorer, by the tensors that the nodes make."""
    times = {kernel.node.output: {"value": kernel.us} for kernel in result.kernels if kernel.node is not None}
    return json.dumps({"results": times, "gradient": _GRADIENT}, indent=1) + "\n"
