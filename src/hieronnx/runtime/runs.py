"""What is given to run a file on: arrays, files or folders of them, as the inputs of one run after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hieronnx.errors import InputError
from hieronnx.runtime.inputs import FileInput, check_feeds, read_arrays
from hieronnx.runtime.sessions import Array

Inputs: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A `.npz` file or a folder of such, one run's inputs by name, or those of several runs."""


def check_samples(samples: int) -> None:
    """Make sure that a number of samples makes sense.

    Raises:
        InputError: If it does not.
    """
    if samples < 1:
        raise InputError(f"{samples} samples are none; give 1 or more")


def split_inputs(wanted: Sequence[FileInput], inputs: Inputs, samples: int) -> list[dict[str, Array]]:
    """Return each run's inputs: an array with one axis more than the file takes, or more rows, has several runs.

    `samples` says how many of a file with an open first axis; 1 leaves what is given together.

    Raises:
        InputError: If there are none, or they do not fit the file.
    """
    if isinstance(inputs, str | os.PathLike):
        runs = [(f"'{file}'", feeds) for file, feeds in read_arrays(Path(inputs), wanted)]
    else:
        given = [inputs] if isinstance(inputs, Mapping) else list(inputs)
        runs = [(f"sample {number}", feeds) for number, feeds in enumerate(given)]
    if not runs:
        raise InputError("the inputs of no run are given; give those of one at least, or none for random ones")
    split = ((where, feeds) for where, run in runs for feeds in _split(wanted, run, samples))
    return [dict(check_feeds(feeds, wanted, where)) for where, feeds in split]


def _split(wanted: Sequence[FileInput], run: Mapping[str, Any], samples: int) -> list[dict[str, Array]]:
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
