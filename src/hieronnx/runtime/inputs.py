"""The inputs of a file: what it must be given; arrays for them, read from files or drawn at random."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx

from hieronnx.errors import HieronnxError, InputError, check_known
from hieronnx.files.boundary import reads_files
from hieronnx.files.wire import read_skeleton

Feeds: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""One run's inputs by name."""

MOST_DRAWN = 1 << 26
"""How many elements an input may have, to be made up."""
_DYNAMIC_SIZE = 4


@dataclass(frozen=True, slots=True)
class FileInput:
    """An input that a file must be given."""

    name: str
    dtype: np.dtype[Any] | None
    """None where it is not a tensor of numbers."""
    shape: tuple[int | str | None, ...] | None
    """Its sizes, a name or None where one is not static; None where the file does not say."""

    def __str__(self) -> str:
        sizes = "" if self.shape is None else ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name}={self.dtype or 'unknown'}[{sizes if self.shape is not None else '…'}]"

    @property
    def elements(self) -> int:
        """How many elements it has, as far as its sizes are static."""
        return math.prod(size for size in self.shape or () if isinstance(size, int))

    @property
    def is_dynamic(self) -> bool:
        """Whether some of its sizes are not static."""
        return any(not isinstance(size, int) for size in self.shape or ())


@reads_files
def read_inputs(model: Path) -> tuple[FileInput, ...]:
    """Read what a file must be given."""
    return describe_inputs(read_skeleton(model).graph)


def read_outputs(model: Path) -> tuple[str, ...]:
    """Read the names of what a file gives."""
    return tuple(value.name for value in read_skeleton(model).graph.output)


def describe_inputs(graph: onnx.GraphProto) -> tuple[FileInput, ...]:
    """Describe what a graph must be given: its inputs, initializers left out."""
    initializers = {tensor.name for tensor in graph.initializer}
    return tuple(_describe(value) for value in graph.input if value.name not in initializers)


def _describe(value: onnx.ValueInfoProto) -> FileInput:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or tensor.elem_type in (0, onnx.TensorProto.STRING):
        return FileInput(value.name, None, None)
    sizes = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return FileInput(value.name, dtype, sizes if tensor.HasField("shape") else None)


def draw_feeds(
    inputs: Sequence[FileInput],
    count: int,
    *,
    dynamic_size: int = _DYNAMIC_SIZE,
    dims: Mapping[str, int] = MappingProxyType({}),
) -> list[Feeds]:
    """Draw inputs at random: normal floats, and 0 or 1 for all else, which is good for ids and masks alike.

    The first in a row is 1: a mask that hides all that a position may see leaves it without a value to compare.

    Args:
        inputs: What the file must be given.
        count: How many times.
        dynamic_size: The size of dynamic axes.
        dims: The sizes of those that have a name and another size.

    Raises:
        HieronnxError: If one is not a tensor of numbers, or its size is absurd.
    """
    random = np.random.default_rng(0)

    def draw(item: FileInput) -> np.ndarray[Any, Any]:
        if item.dtype is None:
            raise HieronnxError(f"the input '{item.name}' is not a tensor of numbers; it cannot be drawn at random")
        shape = [size if isinstance(size, int) else dims.get(size or "", dynamic_size) for size in item.shape or ()]
        if any(size < 0 for size in shape) or math.prod(shape) > MOST_DRAWN:
            raise HieronnxError(
                f"the input '{item.name}' is of shape {shape}: none of more than {MOST_DRAWN:,} elements is drawn at "
                "random; give the inputs"
            )
        if np.issubdtype(item.dtype, np.floating):
            return np.asarray(random.standard_normal(shape), item.dtype)
        drawn = random.integers(0, 2, shape)
        if shape and shape[-1] > 1:
            drawn[..., 0] = 1
        return np.asarray(drawn, item.dtype)

    return [{item.name: draw(item) for item in inputs} for _ in range(count)]


def read_feeds(path: Path, inputs: Sequence[FileInput]) -> list[Feeds]:
    """Read inputs from a `.npz` file, a `.npy` file for a model with one input, or a folder of such files.

    Raises:
        HieronnxError: If there are none, or they do not fit the model.
    """
    return [check_feeds(feeds, inputs, f"'{file}'") for file, feeds in read_arrays(path, inputs)]


def read_arrays(path: Path, inputs: Sequence[FileInput]) -> list[tuple[Path, Feeds]]:
    """Read arrays as `read_feeds` does, whatever their shapes are; return those of each file.

    Raises:
        HieronnxError: If there are none.
    """
    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"no .npz or .npy files in '{path}'; write each run's inputs with numpy.savez(file, name=array)"
        )
    return [(file, _read(file, inputs)) for file in files]


def _read(file: Path, inputs: Sequence[FileInput]) -> Feeds:
    try:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            if len(inputs) != 1:
                raise InputError(f"'{file}' has one array, and the model {len(inputs)} inputs; use .npz files, by name")
            return {inputs[0].name: content}
        with content:
            return {name: content[name] for name in content.files}
    except HieronnxError:
        raise
    except InputError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise HieronnxError(f"cannot read the inputs in '{file}': {error}") from error


def check_feeds(feeds: Feeds, inputs: Iterable[FileInput], where: str) -> Feeds:
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
        if item.shape is not None and not _fits(item.shape, given):
            raise InputError(f"{where}: input '{name}' is {list(given)}, and the model wants {list(item.shape)}")
    return {name: np.asarray(array, wanted[name].dtype) for name, array in feeds.items()}


def _fits(wanted: Sequence[int | str | None], given: Sequence[int]) -> bool:
    sizes = zip(wanted, given, strict=False)
    return len(wanted) == len(given) and all(size == n for size, n in sizes if isinstance(size, int))
