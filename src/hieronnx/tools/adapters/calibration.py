"""The inputs that a static quantizer runs a model on, to see what ranges its tensors have."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from hieronnx.errors import HieronnxError, InputError, check_known
from hieronnx.files.wire import read_skeleton

Feeds: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""One run's inputs by name."""

_UNKNOWN_SIZE = 4


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of a model: its type, and its sizes; a name or None where one is not static."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


def read_inputs(model: Path) -> list[GraphInput]:
    """Read what a model wants to be given."""
    graph = read_skeleton(model).graph
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = []
    for value in (value for value in graph.input if value.name not in initializers):
        tensor = value.type.tensor_type
        sizes = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        inputs.append(GraphInput(value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), sizes))
    return inputs


def draw_feeds(inputs: Sequence[GraphInput], count: int) -> list[Feeds]:
    """Draw inputs at random: normal floats, and 0 or 1 for all else, which is good for ids and masks alike."""
    random = np.random.default_rng(0)

    def draw(item: GraphInput) -> np.ndarray[Any, Any]:
        shape = [size if isinstance(size, int) else _UNKNOWN_SIZE for size in item.shape]
        is_float = np.issubdtype(item.dtype, np.floating)
        return np.asarray(random.standard_normal(shape) if is_float else random.integers(0, 2, shape), item.dtype)

    return [{item.name: draw(item) for item in inputs} for _ in range(count)]


def read_feeds(path: Path, inputs: Sequence[GraphInput]) -> list[Feeds]:
    """Read inputs from a `.npz` file, a `.npy` file for a model with one input, or a folder of such files.

    Raises:
        HieronnxError: If there are none, or they do not fit the model.
    """
    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"no .npz or .npy files in '{path}'; write each run's inputs with numpy.savez(file, name=array)"
        )
    return [check_feeds(_read(file, inputs), inputs, f"'{file}'") for file in files]


def _read(file: Path, inputs: Sequence[GraphInput]) -> Feeds:
    try:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            if len(inputs) != 1:
                raise InputError(f"'{file}' has one array, and the model {len(inputs)} inputs; use .npz files, by name")
            return {inputs[0].name: content}
        with content:
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise HieronnxError(f"cannot read the inputs in '{file}': {error}") from error


def check_feeds(feeds: Feeds, inputs: Iterable[GraphInput], where: str) -> Feeds:
    """Make sure that inputs are what a model wants; their precision is made to fit.

    Raises:
        InputError: If they are not.
    """
    wanted = {item.name: item for item in inputs}
    for name in feeds:
        check_known("input", name, wanted, "the model has")
    if missing := [name for name in wanted if name not in feeds]:
        raise InputError(f"{where} has no array for input '{missing[0]}'; a run needs {', '.join(wanted)}")
    for name, item in wanted.items():
        given = np.shape(feeds[name])
        expected = [size if isinstance(size, int) else n for size, n in zip(item.shape, given, strict=False)]
        if len(given) != len(item.shape) or expected != list(given):
            raise InputError(f"{where}: input '{name}' is {list(given)}, and the model wants {list(item.shape)}")
    return {name: np.asarray(array).astype(wanted[name].dtype) for name, array in feeds.items()}
