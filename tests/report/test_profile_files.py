"""The files for viewers, read back by a reader of our own: slices nest, and add up to the tree's figures."""

from __future__ import annotations

import json
from collections import defaultdict
from math import fsum
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import hieronnx
from hieronnx.report.profile import profile_to_csv, profile_to_markdown, render_profile
from hieronnx.report.profile_files import profile_to_node_data, profile_to_speedscope, profile_to_trace
from support.exports import exported
from support.nets import export_stack

TOLERANCE = 0.01  # µs: slices are in whole nanoseconds


@pytest.fixture(scope="module", params=["stack", "bert"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> hieronnx.ProfileResult:
    if request.param == "bert":
        path = exported("bert", "torchscript").result.path
    else:
        path = export_stack(tmp_path_factory.mktemp("files") / "stack.onnx", [64, 64, 64])
    return hieronnx.profile(path, runs=3, optimization="extended", roofline=False)


def nest(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return each slice with the one around it, as viewers nest them: by their times alone, on one thread."""
    assert {(event["pid"], event["tid"]) for event in events} == {(1, 1)}
    stack: list[dict[str, Any]] = []
    nested = []
    for event in events:  # stable: where times are the same, in the order of the file
        while stack and event["ts"] >= stack[-1]["ts"] + stack[-1]["dur"] and not is_inside(event, stack[-1]):
            stack.pop()
        nested.append((event, stack[-1] if stack else None))
        stack.append(event)
    return nested


def is_inside(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Say whether a slice without length is of the one that it begins with."""
    return outer["cat"] == "module" and event["ts"] == outer["ts"] and event["dur"] == 0 == outer["dur"]


def test_the_slices_of_the_trace_nest_and_add_up_to_the_tree(result: hieronnx.ProfileResult) -> None:
    trace = json.loads(profile_to_trace(result))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert events == sorted(events, key=lambda event: event["ts"])
    times: dict[tuple[str, int], float] = defaultdict(float)
    kernels: dict[str, float] = defaultdict(float)
    parents = {call.id: call.parent for call in result.calls}
    for event, outer in nest(events):
        call = hieronnx.CallId(event["args"]["module"], event["args"]["call"])
        if outer is not None and event["dur"]:
            assert event["ts"] >= outer["ts"]
            assert event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + 1e-6
            above = hieronnx.CallId(outer["args"]["module"], outer["args"]["call"])
            assert above == (parents[call] if event["cat"] == "module" else call)
        if event["cat"] == "module":
            times[call] += event["dur"]
        else:
            kernels[event["name"]] += event["dur"]
    for call in result.calls:
        assert times[call.id] == pytest.approx(call.total_us, abs=TOLERANCE), call.id
    for kernel in result.kernels:
        assert kernels[kernel.name] == pytest.approx(kernel.us, abs=TOLERANCE)


# What speedscope publishes as its schema, of evented profiles: types, names and what is required.
NUMBER, STRING = {"type": "number"}, {"type": "string"}
FRAME = {"type": "object", "properties": {"name": STRING, "file": STRING}, "required": ["name"]}
EVENT = {
    "type": "object",
    "properties": {"type": {"enum": ["O", "C"]}, "frame": NUMBER, "at": NUMBER},
    "required": ["at", "frame", "type"],
}
UNITS = ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]
PROFILE = {
    "type": "object",
    "properties": {
        "type": {"enum": ["evented"]},
        "name": STRING,
        "unit": {"enum": UNITS},
        "startValue": NUMBER,
        "endValue": NUMBER,
        "events": {"type": "array", "items": EVENT},
    },
    "required": ["endValue", "events", "name", "startValue", "type", "unit"],
}
SPEEDSCOPE = {
    "type": "object",
    "properties": {
        "$schema": {"enum": ["https://www.speedscope.app/file-format-schema.json"]},
        "shared": {
            "type": "object",
            "properties": {"frames": {"type": "array", "items": FRAME}},
            "required": ["frames"],
        },
        "profiles": {"type": "array", "items": PROFILE},
        "exporter": STRING,
    },
    "required": ["$schema", "profiles", "shared"],
}


def test_speedscopes_file_fits_its_schema_is_balanced_and_adds_up(result: hieronnx.ProfileResult) -> None:
    document = json.loads(profile_to_speedscope(result))
    jsonschema.validate(document, SPEEDSCOPE)
    (profile,) = document["profiles"]
    frames = document["shared"]["frames"]
    stack: list[tuple[int, float]] = []
    times: dict[str, float] = defaultdict(float)
    now = 0.0
    for event in profile["events"]:
        assert event["at"] >= now
        now = event["at"]
        if event["type"] == "O":
            stack.append((event["frame"], now))
        else:
            frame, start = stack.pop()
            assert frame == event["frame"]
            times[frames[frame]["name"]] += now - start
    assert not stack
    assert profile["endValue"] == pytest.approx(result.total_us, abs=TOLERANCE)
    for kernel in result.kernels:
        assert times[kernel.name] == pytest.approx(kernel.us, abs=TOLERANCE)


def test_node_data_has_every_kernel_by_what_its_node_makes(result: hieronnx.ProfileResult) -> None:
    data = json.loads(profile_to_node_data(result))
    assert {stop["stop"] for stop in data["gradient"]} == {0, 1}
    assert fsum(item["value"] for item in data["results"].values()) == pytest.approx(result.total_us)


def test_tables_have_every_call_and_say_where_the_rest_is(result: hieronnx.ProfileResult) -> None:
    lines = profile_to_csv(result).splitlines()
    assert len(lines) == len(result.calls) + 1
    assert lines[0].startswith("module,call,")
    text = render_profile(result, all_calls=True)
    for call in result.calls:
        assert call.module in text
    assert "kernels, median of 3 runs" in text
    assert "more left out" in render_profile(result, top=2)
    assert "deeper" in render_profile(result, depth=0)
    assert profile_to_markdown(result, top=3).startswith("# ")
    assert "LayerNorm" in render_profile(result, by="class")
    assert "SkipLayerNormalization" in render_profile(result, by="operator")
    assert profile_to_csv(result, by="operator").startswith("name,us,")


def test_a_name_from_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    result = hieronnx.profile(export_stack(tmp_path / "a.onnx", [64]), runs=1, roofline=False)
    assert "\x1b" not in render_profile(result)
    assert "\x1b[" in render_profile(result, colour=True)
