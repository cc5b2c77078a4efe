"""The baseline check: is a file what torch.onnx.export writes, node for node, but for hieronnx's metadata?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message

OURS = "hieronnx."
IF_MISSING = "namespace"
"""hieronnx sets this key on nodes where torch has not."""
TRACE_COUNTER = re.compile(r"<eval_with_key>\.\d+")


def assert_same_as_baseline(path: str | Path, baseline_path: str | Path, *, ignore_trace_counter: bool = False) -> None:
    """Assert that the file equals the baseline in everything but the node metadata that hieronnx adds.

    External data is compared by contents, wherever it is stored. torch numbers the code that it generates for
    the bodies of torch.cond and while_loop by a counter of the process, and writes that number into the
    nodes' stack traces, so that no two exports are equal: `ignore_trace_counter` leaves that number out.

    Raises:
        AssertionError: They differ; the message names the first difference.
    """
    ours, baseline = onnx.load(path), onnx.load(baseline_path)
    if ignore_trace_counter:
        for node in (*_walk(ours.graph), *_walk(baseline.graph)):
            _drop_trace_counter(node)
    difference = next(differences(ours, baseline, "model"), None)
    assert difference is None, f"{path} differs from the baseline {baseline_path} at {difference}"


def differences(ours: Message, baseline: Message, where: str) -> Iterator[str]:
    """Yield each place where two messages differ, with both values."""
    for descriptor in baseline.DESCRIPTOR.fields:
        place = f"{where}.{descriptor.name}"
        left, right = getattr(ours, descriptor.name), getattr(baseline, descriptor.name)
        if isinstance(baseline, onnx.NodeProto | onnx.ModelProto) and descriptor.name == "metadata_props":
            left, right = _comparable_metadata(left, right), list(right)
        if place.endswith(".data_location"):
            continue  # whether the contents, which onnx.load has brought in, were in another file
        if _is_repeated(right):
            yield from _list_differences(left, right, place)
        elif descriptor.has_presence and ours.HasField(descriptor.name) != baseline.HasField(descriptor.name):
            left, right = _presence(ours, descriptor.name), _presence(baseline, descriptor.name)
            yield f"{place}: {left}, baseline {right}"
        else:
            yield from _value_differences(left, right, place)


def _list_differences(ours: Any, baseline: Any, place: str) -> Iterator[str]:
    for index, (left, right) in enumerate(zip(ours, baseline, strict=False)):
        yield from _value_differences(left, right, f"{place}[{index}]{_label(right)}")
    if len(ours) != len(baseline):
        longer = max(ours, baseline, key=len)
        extra = _label(longer[min(len(ours), len(baseline))])
        yield f"{place}: {len(ours)} entries, baseline {len(baseline)}; the first without partner:{extra}"


def _value_differences(ours: Any, baseline: Any, place: str) -> Iterator[str]:
    if isinstance(baseline, Message):
        # Comparing whole messages first is fast; the walk is only for the place.
        if ours != baseline:
            yield from differences(ours, baseline, place)
    elif ours != baseline and not (ours != ours and baseline != baseline):  # two NaN are the same
        yield f"{place}: {_short(ours)}, baseline {_short(baseline)}"


def _comparable_metadata(ours: Any, baseline: Any) -> list[onnx.StringStringEntryProto]:
    known = {entry.key for entry in baseline}
    return [
        entry
        for entry in ours
        if not entry.key.startswith(OURS) and not (entry.key == IF_MISSING and IF_MISSING not in known)
    ]


def _walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _walk(body)


def _drop_trace_counter(node: onnx.NodeProto) -> None:
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.stack_trace":
            entry.value = TRACE_COUNTER.sub("<eval_with_key>", entry.value)


def _is_repeated(value: Any) -> bool:
    return not isinstance(value, str | bytes | Message) and hasattr(value, "__len__")


def _presence(message: Message, name: str) -> str:
    return _short(getattr(message, name)) if message.HasField(name) else "not set"


def _label(value: Any) -> str:
    names = [str(getattr(value, name)) for name in ("op_type", "key", "name") if getattr(value, name, "")]
    return f" ({' '.join(names)})" if names else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
