"""What other commands measured of a model's calls: times from a saved profile, errors from a saved verification."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hieronnx.errors import HieronnxError, InputError
from hieronnx.hierarchy.records import Call, CallId

_T = TypeVar("_T")


class _Time(msgspec.Struct):
    module: str
    call: int
    own_us: float
    total_us: float


class _Profile(msgspec.Struct):
    total_us: float
    calls: list[_Time]


class _Deviation(msgspec.Struct):
    relative: float | None = None


class _Error(msgspec.Struct):
    module: str
    call: int
    introduced: _Deviation
    accumulated: _Deviation
    verdict: str


class _Verification(msgspec.Struct):
    calls: list[_Error]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of calls beside the model itself.

    Attributes:
        times: the microseconds of a call, its own and with all below it.
        errors: the relative errors of a call, introduced and accumulated, and the verdict.
    """

    times: Mapping[CallId, tuple[float, float]] = field(default_factory=dict)
    errors: Mapping[CallId, tuple[float | None, float | None, str]] = field(default_factory=dict)

    def to_values(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Return for each call what was measured of it, None where nothing was; without what was not given at all."""
        known = {"times": self.times, "errors": self.errors}
        return {
            name: [list(values[call.id]) if call.id in values else None for call in calls]
            for name, values in known.items()
            if values
        }


def read_measured(calls: Sequence[Call], profile: Any = None, verify: Any = None) -> Measured:
    """Read what was measured: from files that `--json` printed, from results, or from what `to_dict` gave.

    Raises:
        HieronnxError: If a file is of another kind, or of another model.
    """
    times: dict[CallId, tuple[float, float]] = {}
    errors: dict[CallId, tuple[float | None, float | None, str]] = {}
    if profile is not None:
        timed = _read(profile, _Profile, "profile")
        times = {CallId(item.module, item.call): (item.own_us, item.total_us) for item in timed.calls}
        _check_same(calls, times, profile, "profile")
    if verify is not None:
        checked = _read(verify, _Verification, "verification")
        errors = {
            CallId(item.module, item.call): (item.introduced.relative, item.accumulated.relative, item.verdict)
            for item in checked.calls
        }
        _check_same(calls, errors, verify, "verification")
    return Measured(times, errors)


def _read(given: Any, kind: type[_T], what: str) -> _T:
    command = {"profile": "profile", "verification": "verify"}[what]
    name = f"'{given}'" if isinstance(given, str | os.PathLike) else f"the {what}"
    try:
        if isinstance(given, str | os.PathLike):
            return msgspec.json.decode(Path(given).read_bytes(), type=kind)
        return msgspec.convert(given if isinstance(given, Mapping) else given.to_dict(), kind)
    except OSError as error:
        raise HieronnxError(f"cannot read {name}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        made = f"'hieronnx {command} … --json > {command}.json' makes one"
        raise InputError(f"{name} is no saved {what} ({error}); {made}") from error


def _check_same(calls: Sequence[Call], found: Mapping[CallId, Any], given: Any, what: str) -> None:
    """Make sure that what was measured is of this model: of its calls, or, where it has more, of some of them."""
    known = {call.id for call in calls}
    if found and known.isdisjoint(found):
        name = f"'{given}'" if isinstance(given, str | os.PathLike) else f"the {what}"
        raise InputError(f"{name} is the {what} of another model: it has none of this one's calls")
