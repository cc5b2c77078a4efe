"""Dynamic axes of example inputs: how torch is told of them, and the same inputs at other sizes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn

from hieronnx.capture.arguments import bind_arguments, check_arguments
from hieronnx.capture.captured import ExportRequest
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
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Mapping[int, str]],
) -> dict[str, Any] | None:
    """Return the `dynamic_shapes` of an export, None where nothing is dynamic.

    A tensor inside an argument goes by the name of the file's input, the argument itself stands for all tensors in it,
    and `*` for all tensors that have the axis.

    Example:
        `{"x": {0: "batch"}}` with inputs x and mask gives `{"x": {0: "batch"}, "mask": None}`;
        `{"past_0": {0: "batch"}}` with a pair of tensors as past, `{"past": ({0: "batch"}, {})}`.

    Raises:
        InputError: there is no such input, or it has no such axis.
    """
    if not dynamic:
        return None
    check_arguments(model, args, kwargs)
    arguments = name_arguments(model, args, kwargs)
    axes = iter(_label_leaves(model, dynamic, arguments))
    specs = {name: _spread(value, axes) for name, value in arguments}
    shapes: dict[str, Any] = {}
    # torch.export sees what *args and **kwargs took as one input each, under the names of these parameters.
    for name, value in bind_arguments(model, args, kwargs).items():
        kind = forward_signature(model).parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            shapes[name] = tuple(_fix(specs[f"{name}_{index}"], item) for index, item in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            shapes[name] = {keyword: specs[keyword] for keyword in value}
        else:
            shapes[name] = specs[name]
    return shapes


def _spread(value: Any, axes: Iterator[dict[int, str] | None]) -> Any:
    """Arrange the axes of the leaves of an input as the input is; other classes than Python's, as lists."""
    handler = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if handler is None:
        return next(axes)
    parts, context = handler.flatten_fn(value)
    specs = [_fix(_spread(part, axes), part) for part in parts]
    return handler.unflatten_fn(specs, context) if pytree._get_node_type(value) in pytree.BUILTIN_TYPES else specs


def _fix(axes: Any, value: Any) -> Any:
    """Return the axes of a tensor inside an argument: `(None, None)` would be those of one tensor, to torch."""
    return {} if axes is None and isinstance(value, Tensor) else axes


def _label_leaves(
    model: nn.Module, dynamic: Mapping[str, Mapping[int, str]], arguments: Sequence[tuple[str, Any]]
) -> list[dict[int, str] | None]:
    """Return the axes of each leaf of the arguments; what is said of an input by its name comes before `*`."""
    leaves = [(whole, *leaf) for whole, value in arguments for leaf in name_leaves([(whole, value)])]
    labelled: list[dict[int, str]] = [{} for _ in leaves]
    for name, axes in dynamic.items():
        own = [n for n, (_, leaf, _) in enumerate(leaves) if leaf == name]
        chosen = own or [n for n, (whole, _, value) in enumerate(leaves) if whole == name and isinstance(value, Tensor)]
        if name != ALL and not chosen:
            _refuse_name(model, name, [leaf for _, leaf, _ in leaves])
        for number in chosen:
            _check_axes(*leaves[number][1:], axes)
            labelled[number].update(axes)
    for axis, label in dynamic.get(ALL, {}).items():
        having = [n for n, (*_, value) in enumerate(leaves) if isinstance(value, Tensor) and axis < value.ndim]
        if not having:
            raise InputError(f"no input has an axis {axis} to be '{label}'")
        for number in having:
            labelled[number].setdefault(axis, label)
    return [axes or None for axes in labelled]


def _refuse_name(model: nn.Module, name: str, leaves: Sequence[str]) -> NoReturn:
    """Say of a name that is none of the inputs what it might have been."""
    hint = suggest(name, leaves) or f"; the inputs are {', '.join(leaves) or 'none'}"
    if name in list_parameters(model):
        raise InputError(f"dynamic input '{name}' is not among the inputs of this export{hint}")
    raise InputError(f"no dynamic input '{name}' in {type(model).__name__}.forward{hint}")


def _check_axes(name: str, value: Any, axes: Iterable[int]) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"dynamic input '{name}' is a {type(value).__name__}, not a tensor")
    wrong = next((axis for axis in axes if not 0 <= axis < value.ndim), None)
    if wrong is not None:
        raise InputError(f"input '{name}' of shape {list(value.shape)} has no axis {wrong}")


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
    arguments, start = _arguments(request), 0
    in_order = not isinstance(shapes, Mapping)
    named = zip((name for name, _ in arguments), shapes, strict=False) if in_order else _name_specs(request, shapes)
    specs = dict(named)
    for name, value in arguments:
        flat = list(_pair_parts(name, value, specs.get(name)))
        yield from enumerate(flat, start)
        start += len(flat)


def _name_specs(request: ExportRequest, shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Return dynamic shapes by the names of arguments: those of what *args and **kwargs take are in one."""
    named = dict(shapes)
    for parameter in list_parameters(request.model).values():
        inside = shapes.get(parameter.name) or ()
        if parameter.kind is parameter.VAR_POSITIONAL:
            named |= {f"{parameter.name}_{index}": spec for index, spec in enumerate(inside)}
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= dict(inside)
    return named


def _pair_parts(name: str, value: Any, spec: Any) -> Iterator[Any]:
    """Yield the part of an input's dynamic shapes that is about each of its leaves."""
    handler = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if handler is None:
        yield spec
        return
    parts = handler.flatten_fn(value)[0]
    specs: Any = [None] * len(parts) if spec is None else spec
    if isinstance(value, Mapping) and isinstance(specs, Mapping):
        specs = [specs[key] for key in value if key in specs]
    if not isinstance(specs, list | tuple) or len(specs) != len(parts):
        given = len(specs) if isinstance(specs, Sized) else 1
        raise InputError(f"the dynamic shapes of input '{name}' have not its structure: {given} for {len(parts)} parts")
    for part, inner in zip(parts, specs, strict=True):
        yield from _pair_parts(name, part, inner)


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
