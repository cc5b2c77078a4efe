"""The samples that a file and its reference are run on: given, read from files, or made from the file's own inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hieronnx.attribute.nested_inputs import read_recorded
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.runtime.fitting import draw_fitting
from hieronnx.runtime.inputs import FileInput
from hieronnx.runtime.runs import Inputs, split_inputs
from hieronnx.runtime.sessions import Array, Runner
from hieronnx.tools.verify.deviation import fit
from hieronnx.tools.verify.references import Sample

if TYPE_CHECKING:
    from torch import nn


def make_torch_samples(
    runner: Runner,
    hierarchy: Hierarchy,
    model: nn.Module,
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    inputs: Inputs | None,
    samples: int,
) -> list[Sample]:
    """Make samples for a file and its model in PyTorch.

    Raises:
        InputError: If what is given does not fit, or nothing can be made.
    """
    from hieronnx.attribute.by_value.file_run import choose_feed, name_arguments
    from hieronnx.attribute.by_value.trace import vary
    from hieronnx.attribute.file_inputs import arrange_arrays, make_file_inputs

    recorded = read_recorded(hierarchy)
    if inputs is not None:
        feeds, example = split_inputs(runner.inputs, inputs, samples), (args, kwargs or {})
        places: dict[str, Any] = {"name": name, "recorded": recorded}
        return [Sample(one, *arrange_arrays(one, runner.inputs, model, example, **places)) for one in feeds]
    is_given = bool(args or kwargs)
    if not is_given:
        kwargs = make_file_inputs(runner.inputs, model, name=name, recorded=recorded)
    given = [(args, dict(kwargs or {}))]
    given += [vary((args, dict(kwargs or {})), seed) for seed in range(1, samples)]
    if all(item.name in recorded for item in runner.inputs):
        feeds = [_feed_recorded(runner.inputs, recorded, model, *one) for one in given]
        if all(len(feed) == len(runner.inputs) for feed in feeds):
            return [Sample(feed, *one, is_given) for feed, one in zip(feeds, given, strict=True)]
    choice = choose_feed(runner, model, *given[0], name)
    return [Sample(choice(name_arguments(model, *one)), *one, is_given) for one in given]


def _feed_recorded(
    inputs: Sequence[FileInput],
    recorded: Mapping[str, str],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Array]:
    """Give each input of a file the argument that it was at export, as far as that is among these."""
    from hieronnx.capture.calls import name_received
    from hieronnx.capture.eager import array_of

    received = name_received(model, args, kwargs)
    feeds: dict[str, Array] = {}
    for item in inputs:
        tensor = received.get(recorded[item.name])
        array = None if tensor is None else np.array(array_of(tensor))
        if array is not None and item.dtype is not None and item.dtype.kind == array.dtype.kind:
            feeds[item.name] = fit(array, item.dtype)
    return feeds


def make_file_samples(runner: Runner, inputs: Inputs | None, samples: int) -> list[Sample]:
    """Make samples for two files.

    Raises:
        HieronnxError: If what is given does not fit, or nothing can be made.
    """
    if inputs is not None:
        return [Sample(feeds) for feeds in split_inputs(runner.inputs, inputs, samples)]
    return [Sample(feeds, is_given=False) for feeds in draw_fitting(runner.inputs, runner.run, samples)]
