"""A profile against another: which calls are slower or faster by more than noise.

What else a machine does only ever adds time, so that the least time of a kernel is what it takes. Sessions of one
model differ as well, by where its memory lies: each side has several. A call has changed if all sessions of one side
are slower than all of the other, with a gap between them:

    before   |··x·xx··|                       changed
    after                    |·x··xx·|
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.profile.changes import CallChange, ProfileComparison
from hieronnx.tools.profile.result import ProfileResult

_LEAST_CHANGE = 0.05
_LEAST_CHANGE_APART = 0.1
"""Where the runs of both were not taken in turns."""
_RESOLUTION_US = 1.0
"""Of ONNX Runtime's profiler, for each kernel that runs."""


class SavedCall(msgspec.Struct):
    """What is compared of a call."""

    module: str
    call: int
    total_us: float
    spread_us: float
    kernels: int
    floor_us: list[float]


class _SavedProfile(msgspec.Struct):
    """What is read of a saved profile."""

    model: str
    total_us: float
    calls: list[SavedCall]


@dataclass(frozen=True, slots=True)
class Summary:
    """What is compared of a profile."""

    name: str
    total_us: float
    calls: Mapping[CallId, SavedCall]


def is_saved(other: Any) -> bool:
    """Say whether what a profile is to be compared with is a saved one, not a model."""
    return isinstance(other, str | os.PathLike) and Path(other).suffix.lower() == ".json"


def read_saved(path: Any) -> Summary:
    """Read a profile that `--json` printed.

    Raises:
        HieronnxError: If it is none.
    """
    try:
        saved = msgspec.json.decode(Path(path).read_bytes(), type=_SavedProfile)
    except OSError as error:
        raise HieronnxError(f"cannot read '{path}': {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HieronnxError(
            f"'{path}' is no saved profile ({error}); 'hieronnx profile model.onnx --json > {path}' makes one"
        ) from error
    return Summary(str(path), saved.total_us, {CallId(call.module, call.call): call for call in saved.calls})


def summarize_calls(result: ProfileResult) -> Summary:
    """Return what is compared of a profile."""
    calls = {
        call.id: SavedCall(call.module, call.call, call.total_us, call.spread_us, call.kernels, list(call.floor_us))
        for call in result.calls
    }
    return Summary(result.model, result.total_us, calls)


def compare_profiles(before: Summary, after: Summary, *, interleaved: bool) -> ProfileComparison:
    """Compare two profiles, call by call."""
    least = _LEAST_CHANGE if interleaved else _LEAST_CHANGE_APART
    changes = [
        _compare_call(call, before.calls.get(call), after.calls.get(call), least)
        for call in dict.fromkeys((*after.calls, *before.calls))
    ]
    return ProfileComparison(before.name, before.total_us, after.total_us, interleaved, tuple(changes))


def _compare_call(call: CallId, before: SavedCall | None, after: SavedCall | None, least: float) -> CallChange:
    percent = noise = None
    changed = False
    if before is not None and after is not None and min(*before.floor_us, *after.floor_us, 1) >= 0:
        a, b = before.floor_us, after.floor_us
        percent = 100 * (median(b) / median(a) - 1) if median(a) else None
        noise = 100 * max(_scatter(a), _scatter(b))
        gap = max(min(b) - max(a), min(a) - max(b))
        resolution = _RESOLUTION_US * max(before.kernels, after.kernels) ** 0.5
        changed = gap > max(least * min(median(a), median(b)), resolution)
    elif before is not None or after is not None:
        changed = bool((before or after).total_us)  # type: ignore[union-attr]  # one of them is there
    return CallChange(
        module=call.module,
        call=call.number,
        before_us=None if before is None else before.total_us,
        after_us=None if after is None else after.total_us,
        before_spread_us=None if before is None else before.spread_us,
        after_spread_us=None if after is None else after.spread_us,
        percent=percent,
        noise_percent=noise,
        changed=changed,
    )


def _scatter(floors: Sequence[float]) -> float:
    """Return how far sessions are apart, as a part of their time."""
    return (max(floors) - min(floors)) / median(floors) if median(floors) else 0.0
