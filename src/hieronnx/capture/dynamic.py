"""Dynamic axes of example inputs: how torch is told of them, and the same inputs at other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.inputs import check_names, sort_inputs
from hieronnx.capture.modules import forward_signature
from hieronnx.capture.names import list_parameters, name_arguments, name_leaves
from hieronnx.capture.private_torch import is_about_dynamic_axes, pytree
from hieronnx.capture.specs import suggest
from hieronnx.errors import InputError, innermost

ALL = "*"
"""The name that stands for every input."""
Sizes: TypeAlias = Mapping[str, int]
"""Sizes by the labels of dynamic axes."""


def to_dynamic_shapes(
    model: nn.Module, kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]]
) -> dict[str, Any] | None:
    """Return the `dynamic_shapes` of an export, None where nothing is dynamic; `*` stands for all inputs with the axis.

    Example:
        `{"x": {0: "batch"}}` with inputs x and mask gives `{"x": {0: "batch"}, "mask": None}`.

    Raises:
        InputError: there is no such input, or it has no such axis.
    """
    if not dynamic:
        return None
    parameters = forward_signature(model).parameters
    dynamic = _expand(dynamic, kwargs)
    check_names(model, parameters, dynamic, what="dynamic input")
    for name in dynamic:
        _check_axes(name, dynamic[name], kwargs)
    shapes: dict[str, Any] = {}
    for name in sort_inputs(kwargs, parameters):
        axes = dict(dynamic[name]) if name in dynamic else None
        if name in parameters:
            shapes[name] = axes
        else:  # torch.export sees what **kwargs took as one mapping under the name of that parameter
            variadic = next(p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD)
            shapes.setdefault(variadic, {})[name] = axes
    return shapes


def _expand(dynamic: Mapping[str, Mapping[int, str]], kwargs: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Give the axes of `*` to every tensor that has them; what is said of one input by its name comes first."""
    named = {name: dict(axes) for name, axes in dynamic.items() if name != ALL}
    for axis, label in dynamic.get(ALL, {}).items():
        having = [name for name, value in kwargs.items() if isinstance(value, Tensor) and axis < value.ndim]
        if not having:
            raise InputError(f"no input has an axis {axis} to be '{label}'")
        for name in having:
            named.setdefault(name, {}).setdefault(axis, label)
    return named


def _check_axes(name: str, axes: Iterable[int], kwargs: Mapping[str, Any]) -> None:
    if name not in kwargs:
        hint = suggest(name, list(kwargs)) or f"; the inputs are {', '.join(kwargs) or 'none'}"
        raise InputError(f"dynamic input '{name}' is not among the inputs of this export{hint}")
    shape = getattr(kwargs[name], "shape", None)
    if shape is None:
        raise InputError(f"dynamic input '{name}' is a {type(kwargs[name]).__name__}, not a tensor")
    wrong = next((axis for axis in axes if not 0 <= axis < len(shape)), None)
    if wrong is not None:
        raise InputError(f"input '{name}' of shape {list(shape)} has no axis {wrong}")


# -- the axes of an export ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DynamicAxis:
    """An axis that is to be dynamic.

    Attributes:
        argument: The position of its tensor among the leaves of the example inputs.
        name: The name of that tensor.
        axis: Which axis.
        label: What it is called; axes of one label have one size.
        size: Its size in the example.
        resize: Its size, for a size of the label.
        bounds: The lowest and the highest size that the label may have.
    """

    argument: int
    name: str
    axis: int
    label: str
    size: int
    resize: Callable[[int], int] = int
    bounds: tuple[float, float] = (0, math.inf)


def list_dynamic_axes(request: ExportRequest) -> tuple[DynamicAxis, ...]:
    """List the axes that an export's `dynamic_shapes` or `dynamic_axes` make dynamic; not those left to torch."""
    found = []
    leaves = name_leaves(_arguments(request))
    for position, spec in pair_specs(request, leaves):
        name, leaf = leaves[position]
        if isinstance(leaf, Tensor) and spec:
            sizes = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
            found += [
                DynamicAxis(position, name, axis, *labelled)
                for axis, size in sizes
                if 0 <= axis < leaf.ndim and (labelled := _label(size, f"{name}_{axis}", leaf.shape[axis])) is not None
            ]
    return tuple(found)


def _arguments(request: ExportRequest) -> list[tuple[str, Any]]:
    return name_arguments(request.model, request.args, request.kwargs)


def pair_specs(request: ExportRequest, leaves: Sequence[tuple[str, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield what an export's options say of the axes of each leaf of its inputs, by the leaf's position.

    Raises:
        InputError: If dynamic shapes have another structure than the inputs.
    """
    shapes, axes = request.options.get("dynamic_shapes"), request.options.get("dynamic_axes")
    if not shapes:
        names = request.options.get("input_names") or [name for name, _ in leaves]
        positions = [position for position, (_, leaf) in enumerate(leaves) if isinstance(leaf, Tensor)]
        yield from ((p, (axes or {}).get(name)) for p, name in zip(positions, names, strict=False))
        return
    variadic = next((p.name for p in list_parameters(request.model).values() if p.kind is p.VAR_KEYWORD), "")
    start = 0
    for index, (name, value) in enumerate(_arguments(request)):
        count = len(pytree.tree_leaves(value))
        if isinstance(shapes, Mapping):
            spec = shapes.get(name, (shapes.get(variadic) or {}).get(name))
        else:
            spec = shapes[index] if index < len(shapes) else None
        flat = pytree.tree_leaves(spec, is_leaf=_is_axes)
        if spec is not None and len(flat) != count:
            raise InputError(
                f"the dynamic shapes of input '{name}' have not its structure: {len(flat)} for {count} values"
            )
        yield from enumerate(flat if spec is not None else [None] * count, start)
        start += count


def _is_axes(spec: Any) -> bool:
    """Say whether a part of dynamic shapes is about one tensor: its sizes by axis, or all of them in order."""
    sizes = (type(None), int, str, torch.export.Dim, type(torch.export.Dim.AUTO))
    if isinstance(spec, Mapping):
        return all(isinstance(axis, int) and isinstance(size, sizes) for axis, size in spec.items())
    return isinstance(spec, list | tuple) and all(isinstance(size, sizes) for size in spec)


def _label(size: Any, default: str, example: int) -> tuple[Any, ...] | None:
    """Return the label of an axis, the label's size in the example, what makes the axis of it, and its bounds."""
    if size is None or isinstance(size, int) or size in (torch.export.Dim.STATIC, torch.export.Dim.AUTO):
        return None
    if isinstance(size, str):
        return size, example
    root = getattr(size, "root", size)
    function = int if root is size else size.fn  # such as 2 * batch
    base = next((n for n in range(example + 1) if function(n) == example), None)
    lowest, highest = (getattr(root, bound, None) for bound in ("min", "max"))
    bounds = (0 if lowest is None else int(lowest), math.inf if not isinstance(highest, int) else highest)
    return None if base is None else (getattr(root, "__name__", default), base, function, bounds)


def resize(request: ExportRequest, axes: Sequence[DynamicAxis], sizes: Sizes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs at other sizes: elements repeated or left out, so that no value is a new one."""
    inputs = request.args, dict(request.kwargs)
    leaves, spec = pytree.tree_flatten(inputs)
    for axis in axes:
        leaf = leaves[axis.argument]
        wanted = torch.arange(axis.resize(sizes[axis.label]), device=leaf.device)
        leaves[axis.argument] = leaf.index_select(axis.axis, wanted % max(leaf.shape[axis.axis], 1))
    resized: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, spec)
    return resized


def list_fixed_alike(request: ExportRequest, axes: Sequence[DynamicAxis]) -> tuple[DynamicAxis, ...]:
    """List the axes that are left fixed and have the size of a dynamic one, as if they were that: they may be one.

    Those in the same place, where there are such: the first axis of several inputs is one batch.
    """
    dynamic = {(axis.argument, axis.axis) for axis in axes}
    fixed = [
        (replace(axis, argument=position, name=name, axis=index), axis.axis)
        for position, (name, leaf) in enumerate(name_leaves(_arguments(request)))
        for index, size in enumerate(leaf.shape if isinstance(leaf, Tensor) else ())
        for axis in axes
        if axis.size == size and (position, index) not in dynamic
    ]
    chosen = [axis for axis, place in fixed if axis.axis == place] or [axis for axis, _ in fixed]
    return tuple({(axis.argument, axis.axis): axis for axis in reversed(chosen)}.values())[::-1]


def advise(request: ExportRequest, axes: Sequence[DynamicAxis]) -> str:
    """Say which inputs are left fixed at the size of a dynamic axis, and how to change that; nothing if none is."""
    alike: dict[str, dict[int, DynamicAxis]] = {}
    for axis in list_fixed_alike(request, axes):
        alike.setdefault(axis.name, {})[axis.axis] = axis
    if not alike:
        return ""
    places = {index: axis for fixed in alike.values() for index, axis in fixed.items()}
    shapes = [leaf.shape for _, leaf in name_leaves(_arguments(request)) if isinstance(leaf, Tensor)]
    every = all(shape[n] == axis.size for shape in shapes for n, axis in places.items() if n < len(shape))
    options = {ALL: places} if every else alike
    texts = (f"{name}:{','.join(f'{n}={axis.label}' for n, axis in at.items())}" for name, at in options.items())
    given = " ".join(f"--dynamic '{text}'" for text in texts)
    return (
        f"{', '.join(alike)} {'is' if len(alike) == 1 else 'are'} left fixed at the same size; what changes together "
        f"is to be dynamic together: {given}, or so in dynamic_shapes"
    )


def advise_on(request: ExportRequest, failure: BaseException | None) -> str:
    """Say what to do where dynamo refused dynamic axes; nothing where it did not, or nothing is known."""
    about = failure is not None and is_about_dynamic_axes(innermost(failure))
    return advise(request, list_dynamic_axes(request)) if about else ""
