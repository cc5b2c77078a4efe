"""Calibration inputs: from files, from a Python object that a reference names, or given as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hieronnx.capture.load import load_reference, neighbours
from hieronnx.errors import HieronnxError, InputError, describe_error
from hieronnx.runtime.inputs import Feeds, FileInput

Calibration: TypeAlias = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""A .npz or .npy file or a folder of such; `file.py:name`; or what gives the inputs of each run, by name."""


def list_runs(calibration: Calibration, inputs: Sequence[FileInput]) -> Path | list[Feeds]:
    """Return the file or the folder that inputs are in, or the inputs of each run where these are not in files.

    Raises:
        InputError: If what is given is neither.
    """
    if isinstance(calibration, str | os.PathLike):
        text = os.fspath(calibration)
        return _call_reference(text, inputs) if _is_reference(text) else Path(calibration)
    return _collect(calibration, inputs)


def _is_reference(text: str) -> bool:
    """Say whether a text names a Python object and no file: `file.py:name`, `package.module:name`."""
    _, colon, name = text.rpartition(":")
    return bool(colon) and all(part.isidentifier() for part in name.split(".")) and not Path(text).exists()


def _call_reference(reference: str, inputs: Sequence[FileInput]) -> list[Feeds]:
    given = load_reference(reference)
    try:
        with neighbours(reference):  # what makes inputs may import late
            return _collect(given, inputs)
    except HieronnxError:
        raise
    except Exception as error:  # of their code
        raise InputError(f"'{reference}' raised {describe_error(error)}") from error


def _collect(given: Any, inputs: Sequence[FileInput]) -> list[Feeds]:
    runs = given() if callable(given) else given
    if isinstance(runs, Mapping) or not isinstance(runs, Iterable):
        raise InputError(
            f"calibration inputs are one mapping for each run, by the names of the model's inputs; this is a "
            f"{type(runs).__name__}; yield them one by one, or give a list"
        )
    return [_name_arrays(run, inputs, number) for number, run in enumerate(runs)]


def _name_arrays(run: Any, inputs: Sequence[FileInput], number: int) -> Feeds:
    """Return one run's inputs by name; those of a tuple are in the order of the model's inputs."""
    if isinstance(run, Mapping):
        return run
    arrays = list(run) if isinstance(run, tuple | list) else [run]
    if len(arrays) != len(inputs):
        wanted = ", ".join(item.name for item in inputs)
        raise InputError(f"run {number} of the calibration has {len(arrays)} arrays; the model has inputs {wanted}")
    return {item.name: np.asarray(array) for item, array in zip(inputs, arrays, strict=True)}
