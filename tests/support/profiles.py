"""Profiles checked by what their records say alone, and traces that are made up."""

from __future__ import annotations

from collections import defaultdict
from math import fsum

import pytest

import hieronnx
from hieronnx.tools.profile.result import KINDS


def check_sums(result: hieronnx.ProfileResult) -> None:
    """Make sure that times add up, whichever way, by what the records say alone."""
    assert fsum(kernel.us for kernel in result.kernels) == pytest.approx(result.total_us, abs=1e-6)
    assert fsum(call.own_us for call in result.calls) == pytest.approx(result.total_us, abs=1e-6)
    assert fsum(result.by_kind.values()) == pytest.approx(result.total_us, abs=1e-6)
    assert set(result.by_kind) == set(KINDS)
    shares: dict[tuple[str, int], float] = defaultdict(float)
    for kernel in result.kernels:
        assert fsum(share.us for share in kernel.shares) == pytest.approx(kernel.us, abs=1e-9)
        assert fsum(share.part for share in kernel.shares) == pytest.approx(1)
        for share in kernel.shares:
            shares[share.module, share.call] += share.us
    below: dict[tuple[str, int], float] = defaultdict(float)
    for call in reversed(result.calls):
        below[call.module, call.call] += call.own_us
        assert call.own_us == pytest.approx(shares[call.module, call.call], abs=1e-6)
        assert call.total_us == pytest.approx(below[call.module, call.call], abs=1e-6)
        if call.parent is not None:
            below[tuple(call.parent)] += below[call.module, call.call]


def make_event(name: str, ts: int, dur: int, cat: str = "Node", tid: int = 1) -> dict[str, object]:
    """Make an event as ONNX Runtime's profiler writes it; times in microseconds."""
    return {"cat": cat, "pid": 1, "tid": tid, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": {}}
