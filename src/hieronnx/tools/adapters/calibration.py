"""The inputs that a static quantizer runs a model on, to see what ranges its tensors have."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
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
    return [_describe(value) for value in graph.input if value.name not in initializers]


def _describe(value: onnx.ValueInfoProto) -> GraphInput:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    sizes = ((d.dim_value if d.HasField("dim_value") else d.dim_param or None) for d in tensor.shape.dim)
    return GraphInput(value.name, dtype, tuple(sizes))


def draw_feeds(inputs: Iterable[GraphInput], count: int) -> list[Feeds]:
    """Draw inputs at random: normal floats, and 0 or 1 for all else, which is good for ids and masks alike."""
    random = np.random.default_rng(0)
    wanted = list(inputs)
    return [{item.name: _draw(item, random) for item in wanted} for _ in range(count)]


def _draw(item: GraphInput, random: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = [size if isinstance(size, int) else _UNKNOWN_SIZE for size in item.shape]
    drawn = random.standard_normal(shape) if np.issubdtype(item.dtype, np.floating) else random.integers(0, 2, shape)
    return np.asarray(drawn).astype(item.dtype)


def read_feeds(path: Path, inputs: Iterable[GraphInput]) -> list[Feeds]:
    """Read inputs from a `.npz` file, a `.npy` file for a model with one input, or a folder of such files.

    Raises:
        HieronnxError: If there are none, or they do not fit the model.
    """
    wanted = list(inputs)
    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"no .npz or .npy files in '{path}'; write each run's inputs with numpy.savez(file, name=array)"
        )
    return [check_feeds(_read(file, wanted), wanted, f"'{file}'") for file in files]


def _read(file: Path, inputs: list[GraphInput]) -> Feeds:
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
        if len(given) != len(item.shape) or any(
            isinstance(size, int) and size != n for size, n in zip(item.shape, given, strict=True)
        ):
            raise InputError(f"{where}: input '{name}' is {list(given)}, and the model wants {list(item.shape)}")
    return {name: np.asarray(array).astype(wanted[name].dtype) for name, array in feeds.items()}
