"""The samples that a file and its reference are run on: given, read from files, or made from the file's own inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hieronnx.errors import InputError
from hieronnx.runtime.fitting import draw_fitting
from hieronnx.runtime.inputs import FileInput, check_feeds, read_arrays
from hieronnx.runtime.sessions import Array, Runner
from hieronnx.tools.verify.references import Sample

if TYPE_CHECKING:
    from torch import nn

Inputs: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A `.npz` file or a folder of such, one run's inputs by name, or those of several runs."""


def make_torch_samples(
    runner: Runner,
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
    from hieronnx.attribute.file_inputs import make_file_inputs, pair_inputs

    if inputs is not None:
        if args or kwargs:
            raise InputError("inputs are given twice: by args and kwargs, and by inputs; give one of them")
        paired = pair_inputs(runner.inputs, model, name)
        return [Sample(feeds, (), _to_tensors(feeds, paired)) for feeds in split_inputs(runner.inputs, inputs, samples)]
    if not args and not kwargs:
        kwargs = make_file_inputs(runner.inputs, model, name=name)
    given = [(args, dict(kwargs or {}))]
    given += [vary((args, dict(kwargs or {})), seed) for seed in range(1, samples)]
    feed = choose_feed(runner, model, *given[0], name)
    return [Sample(feed(name_arguments(model, *one)), *one) for one in given]


def _to_tensors(feeds: Mapping[str, Array], paired: Mapping[str, FileInput]) -> dict[str, Any]:
    import torch

    return {parameter: torch.from_numpy(np.array(feeds[item.name])) for parameter, item in paired.items()}


def make_file_samples(runner: Runner, inputs: Inputs | None, samples: int) -> list[Sample]:
    """Make samples for two files.

    Raises:
        HieronnxError: If what is given does not fit, or nothing can be made.
    """
    if inputs is not None:
        return [Sample(feeds) for feeds in split_inputs(runner.inputs, inputs, samples)]
    return [Sample(feeds) for feeds in draw_fitting(runner.inputs, runner.run, samples)]


def split_inputs(wanted: Sequence[FileInput], inputs: Inputs, samples: int) -> list[dict[str, Array]]:
    """Return each run's inputs: an array with one axis more than the file takes, or more rows, has several runs.

    `samples` says how many of a file with an open first axis; 1 leaves what is given together.
    """
    if isinstance(inputs, str | os.PathLike):
        runs: Sequence[Mapping[str, Any]] = read_arrays(Path(inputs), wanted)
    else:
        runs = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    split = [feeds for number, run in enumerate(runs) for feeds in _split(wanted, run, samples, number)]
    return [dict(check_feeds(feeds, wanted, f"sample {number}")) for number, feeds in enumerate(split)]


def _split(wanted: Sequence[FileInput], run: Mapping[str, Any], samples: int, number: int) -> list[dict[str, Array]]:
    arrays = {name: np.asarray(array) for name, array in run.items()}
    shapes = {item.name: item.shape for item in wanted if item.shape is not None}
    extra = [name for name, array in arrays.items() if name in shapes and array.ndim == len(shapes[name]) + 1]
    if extra:
        count = min(len(arrays[name]) for name in extra)
        return [{n: array[i] if n in extra else array for n, array in arrays.items()} for i in range(count)]
    rows = {name: shape[0] for name, shape in shapes.items() if shape and name in arrays}
    counts = {_count_runs(len(arrays[name]), size, samples) for name, size in rows.items() if arrays[name].ndim}
    if len(counts) != 1 or (count := counts.pop()) < 2:
        return [arrays]
    return [
        {name: np.split(array, count)[i] if name in rows else array for name, array in arrays.items()}
        for i in range(count)
    ]


def _count_runs(length: int, size: int | str | None, samples: int) -> int:
    """Return how many runs the rows of an array are, where the file takes this many in one."""
    if isinstance(size, int):
        return length // size if size and length % size == 0 else 1
    return samples if samples > 1 and length % samples == 0 else 1
