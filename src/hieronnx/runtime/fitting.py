"""Sizes for the dynamic axes of a file's inputs that fit one another, so that inputs can be made up.

An axis whose name is an expression of others (`past + sequence`) has the size that this gives, and axes of one name
have one size. What names do not tell, ONNX Runtime tells: sizes are tried, likely ones first, until it runs the file.

    x [b, s]   past [b, p]   mask [b, t]        b, s, p, t = 4: it does not run        t = 4 + 4: it does
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from types import MappingProxyType

from hieronnx.errors import HieronnxError, list_some
from hieronnx.graph.sizes import evaluate_size, find_free
from hieronnx.runtime.inputs import Feeds, FileInput, draw_feeds

_SIZE = 4
_OTHER_SIZES = (2, 1, 16, 64, 256)
_LARGEST_STEP = 64
_MOST_TRIALS = 100
_MOST_NAMED = 6


def draw_fitting(inputs: Sequence[FileInput], attempt: Callable[[Feeds], object], count: int) -> list[Feeds]:
    """Draw inputs at random, as `draw_feeds` does, whose sizes fit one another; see `fit_inputs`.

    Raises:
        HieronnxError: If no sizes were found.
    """
    dynamic = any(item.is_dynamic for item in inputs)
    return draw_feeds(fit_inputs(inputs, attempt) if dynamic and count else inputs, count)


def fit_inputs(
    inputs: Sequence[FileInput],
    attempt: Callable[[Feeds], object],
    dims: Mapping[str, int] = MappingProxyType({}),
) -> tuple[FileInput, ...]:
    """Return inputs with a size for every axis, on which the file runs.

    Args:
        inputs: What the file must be given.
        attempt: Runs the file, and raises a HieronnxError where that fails.
        dims: Sizes that axes have in any case, by name.

    Raises:
        HieronnxError: If no sizes were found.
    """
    named = _name_axes(inputs)
    axes = list(dict.fromkeys(size for item in named for size in item.shape or () if isinstance(size, str)))
    free = [axis for axis in find_free(axes) if axis not in dims]
    failure: HieronnxError | None = None
    for sizes in islice(_list_sizes(free, _list_steps(inputs)), _MOST_TRIALS):
        fitted = _set_sizes(named, {**sizes, **dims})
        try:
            attempt(draw_feeds(fitted, 1)[0])
        except HieronnxError as error:
            failure = failure or error
        else:
            return fitted
    tried = f"; sizes of {list_some(free, _MOST_NAMED)} that fit were not found" if free else ""
    raise HieronnxError(f"{failure}{tried}; give inputs of your own, an array for each") from failure


def _name_axes(inputs: Sequence[FileInput]) -> list[FileInput]:
    """Name the axes that have no name; those of inputs of the same form, at the same place, have one together."""
    first: dict[tuple[object, object], str] = {}
    for item in inputs:
        first.setdefault((item.dtype, item.shape), item.name)

    def name(item: FileInput) -> FileInput:
        owner = first[item.dtype, item.shape]
        sizes = (f"axis {n} of '{owner}'" if size is None else size for n, size in enumerate(item.shape or ()))
        return item if item.shape is None else replace(item, shape=tuple(sizes))

    return list(map(name, inputs))


def _set_sizes(inputs: Sequence[FileInput], sizes: Mapping[str, int]) -> tuple[FileInput, ...]:
    def find(size: int | str | None) -> int:
        found = size if isinstance(size, int) else evaluate_size(size or "", sizes)
        return max(found, 0) if isinstance(found, int) else _SIZE

    return tuple(item if item.shape is None else replace(item, shape=tuple(map(find, item.shape))) for item in inputs)


def _list_steps(inputs: Sequence[FileInput]) -> list[int]:
    """List by how much an axis may be longer than another: by one, by another axis, by two, by a static size."""
    static = (size for item in inputs for size in item.shape or () if isinstance(size, int))
    return list(dict.fromkeys((_SIZE, 1, 2 * _SIZE, *(size for size in static if 0 < size <= _LARGEST_STEP))))


def _list_sizes(axes: Sequence[str], steps: Sequence[int]) -> Iterator[dict[str, int]]:
    """Yield sizes to try: all alike, then one or two axes as long as others together, then smaller and larger ones."""
    alike = dict.fromkeys(axes, _SIZE)
    yield alike
    if not axes:
        return
    for several in (1, 2):
        for step in steps if several == 1 else steps[:2]:
            for chosen in combinations(axes, several):
                yield {**alike, **dict.fromkeys(chosen, _SIZE + step)}
        if several == 1:
            yield from (dict.fromkeys(axes, size) for size in _OTHER_SIZES)
    yield from ({**alike, axis: 1} for axis in axes)
