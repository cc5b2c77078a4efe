"""A profile against another: which calls are slower or faster by more than noise.

What else a machine does comes and goes, and adds time to whatever runs then. So runs of both are taken in turns, each
a few in a row with those of the other a pair, of which the least times count. Nothing is assumed of the noise but that
it does not favour one of them: then either is the slower one of a pair as often. A call has changed if chance gives
such pairs less than once in a hundred profiles, if all sessions agree, and if the middle of the pairs, the medians and
the least times of all, which noise only adds to, say so. Runs of another time have no pairs: they are ranked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, erfc, sqrt
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.profile.changes import CallChange, ProfileComparison
from hieronnx.tools.profile.result import ProfileResult

_Samples: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_CHANCE = 0.01
"""How likely it may be that noise is taken for a change, anywhere in a model."""
_IN_A_ROW = 3
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
    samples_us: list[float]
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
        call.id: SavedCall(
            module=call.module,
            call=call.call,
            total_us=call.total_us,
            spread_us=call.spread_us,
            kernels=call.kernels,
            samples_us=list(call.samples_us),
            floor_us=list(call.floor_us),
        )
        for call in result.calls
    }
    return Summary(result.model, result.total_us, calls)


def compare_profiles(before: Summary, after: Summary, *, interleaved: bool) -> ProfileComparison:
    """Compare two profiles, call by call; if they are interleaved, each run of one is paired with one of the other."""
    calls = dict.fromkeys((*after.calls, *before.calls))
    chance = _CHANCE / len(calls) if calls else _CHANCE
    changes = [
        _compare_call(call, before.calls.get(call), after.calls.get(call), chance, interleaved) for call in calls
    ]
    common = [(before.calls[call], after.calls[call]) for call in calls if call in before.calls and call in after.calls]
    conclusive = any(_can_tell(len(a.samples_us), len(b.samples_us), chance, interleaved) for a, b in common)
    return ProfileComparison(
        before.name, before.total_us, after.total_us, interleaved, conclusive or not common, tuple(changes)
    )


def _can_tell(runs_before: int, runs_after: int, chance: float, interleaved: bool) -> bool:
    """Say whether so many runs can tell a change from noise, if all of them agree."""
    if not min(runs_before, runs_after):
        return False
    if interleaved:
        return _tell_by_pairs(np.ones(min(runs_before, runs_after) // _IN_A_ROW)) <= chance
    return _tell_by_ranks(np.zeros(runs_before), np.ones(runs_after)) <= chance


def _compare_call(
    call: CallId, before: SavedCall | None, after: SavedCall | None, chance: float, interleaved: bool
) -> CallChange:
    percent = noise = None
    if before is not None and after is not None:
        percent, noise, changed = _judge(before, after, chance, interleaved)
    else:
        there = before or after
        changed = there is not None and there.total_us > 0
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


def _judge(
    before: SavedCall, after: SavedCall, chance: float, interleaved: bool
) -> tuple[float | None, float | None, bool]:
    """Return by how many percent a call is slower, how far that is from certain, and whether it has changed."""
    a, b = np.array(before.samples_us), np.array(after.samples_us)
    if not a.any() or not b.any():
        return None, None, bool(a.any() or b.any())
    if interleaved and min(len(a), len(b)) < _IN_A_ROW:
        return None, None, False
    least = np.log1p(_LEAST_CHANGE if interleaved else _LEAST_CHANGE_APART)
    if interleaved:
        ratios = _take_logs(_take_least(b)) - _take_logs(_take_least(a))
        sessions = np.array_split(ratios, min(len(before.floor_us), len(ratios)))
        likely = _tell_by_pairs(ratios) <= chance and len({bool(np.median(part) > 0) for part in sessions}) == 1
    else:
        ratios = np.median(_take_logs(b)) - _take_logs(a)
        likely = _tell_by_ranks(a, b) <= chance
    middle = float(np.median(ratios))
    floor = float(np.median(_take_logs(after.floor_us)) - np.median(_take_logs(before.floor_us)))
    resolution = _RESOLUTION_US * max(before.kernels, after.kernels) ** 0.5
    apart = abs(float(np.median(after.floor_us) - np.median(before.floor_us)))
    shown = float(np.subtract(*_take_logs((after.total_us, before.total_us))))
    told = (middle, floor, shown)
    agree = len(set(np.sign(told))) == 1 and min(map(abs, told)) > least and apart > resolution
    low, high = np.quantile(ratios, (0.25, 0.75))
    return 100 * float(np.expm1(shown)), 100 * float(high - low) / 2, bool(likely and agree)


def _take_logs(times: Sequence[float] | _Samples) -> _Samples:
    """Return logarithms of times; of what is too short to be timed that of a tenth of what can be."""
    return np.log(np.maximum(np.asarray(times, np.float64), _RESOLUTION_US / 10))


def _take_least(times: _Samples) -> _Samples:
    """Return the least time of each few runs in a row: a burst of noise seldom lasts for all of them."""
    whole = len(times) // _IN_A_ROW * _IN_A_ROW
    least: _Samples = times[:whole].reshape(-1, _IN_A_ROW).min(axis=1)
    return least


def _tell_by_pairs(ratios: _Samples) -> float:
    """Return how likely it is that chance makes one side of pairs the slower one as often."""
    pairs, slower = int(np.count_nonzero(ratios)), int(np.count_nonzero(ratios > 0))
    most = max(slower, pairs - slower)
    tail = sum(comb(pairs, number) for number in range(most, pairs + 1)) / (1 << pairs)
    return min(1.0, 2 * tail)


def _tell_by_ranks(a: _Samples, b: _Samples) -> float:
    """Return how likely it is that chance ranks the runs of one side as far before those of the other."""
    slower = (b[:, None] > a[None, :]).sum() + (b[:, None] == a[None, :]).sum() / 2
    expected, spread = len(a) * len(b) / 2, sqrt(len(a) * len(b) * (len(a) + len(b) + 1) / 12)
    distance = max(abs(float(slower) - expected) - 0.5, 0.0) / spread
    return float(erfc(distance / sqrt(2)))
