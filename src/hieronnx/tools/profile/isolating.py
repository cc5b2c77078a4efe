"""Timing calls alone: each extracted as a model, and run on what it receives in the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel, open_model
from hieronnx.runtime.sessions import Array, open_runner
from hieronnx.tools.extract.extracting import extract
from hieronnx.tools.profile.assembling import assemble
from hieronnx.tools.profile.changes import IsolatedCall
from hieronnx.tools.profile.measuring import Settings, measure
from hieronnx.tools.profile.result import CallTime, ProfileResult


def time_alone(
    opened: OpenedModel, result: ProfileResult, target: str, settings: Settings, feeds: Mapping[str, Any]
) -> tuple[IsolatedCall, ...]:
    """Time the calls that a target names as models of their own, on the tensors that they receive in the model.

    Raises:
        HieronnxError: If the target names no call.
    """
    calls = {call.id for call in result.hierarchy.find_calls(target)}
    return tuple(_time(opened, call, settings, feeds) for call in result.calls if call.id in calls)


def _time(opened: OpenedModel, call: CallTime, settings: Settings, feeds: Mapping[str, Any]) -> IsolatedCall:
    try:
        model = opened.model if opened.path is None else opened.path
        part = extract(model, str(call.id) or call.tag)
        given = _record(opened, {item.name for item in part.inputs}, feeds)
        alone = replace(settings, inputs=given, dims={})
        (measured,) = measure([open_model(part.model)], alone, report=lambda _stage: None)
    except HieronnxError as error:  # the others can still be timed
        return IsolatedCall(call.module, call.call, call.total_us, None, None, None, str(error))
    timed = assemble(measured, None)
    spread, kernels = timed.calls[0].spread_us, len(timed.kernels)
    return IsolatedCall(call.module, call.call, call.total_us, timed.total_us, spread, kernels, "")


def _record(opened: OpenedModel, names: set[str], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return tensors of a run of the model by name; of one in a loop what it is in the first iteration."""
    found: dict[str, Array] = {name: array for name, array in feeds.items() if name in names}

    def keep(_graph: str, name: str, array: Array) -> None:
        found.setdefault(name, array.copy())

    with open_runner(opened) as runner:
        if missing := names - found.keys():
            runner.run_exposed(feeds, keep, wanted=lambda _graph, name: name in missing)
    return found
