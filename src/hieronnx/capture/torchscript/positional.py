"""Example inputs as torch.jit.trace takes them: by position, in plain structures, with dynamic axes by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.guard import Guard
from hieronnx.capture.modules import forward_signature
from hieronnx.capture.private_torch import pytree
from hieronnx.errors import InputError, check_known

_DYNAMO_OPTIONS = frozenset({"external_data", "optimize", "report", "verify", "profile", "artifacts_dir"})


def torchscript_options(request: ExportRequest) -> dict[str, Any]:
    """Return torch's options as this exporter takes them: dynamic shapes as dynamic axes of named inputs."""
    options = {key: value for key, value in request.options.items() if key not in _DYNAMO_OPTIONS}
    shapes = options.pop("dynamic_shapes", None)
    if not shapes or options.get("dynamic_axes"):
        return options
    inputs = _name_inputs(request)
    specs = shapes if isinstance(shapes, Mapping) else dict(zip((name for name, _ in inputs), shapes, strict=False))
    options.setdefault("input_names", [name for name, _ in _flatten_untraceable(inputs)[0]])
    options["dynamic_axes"] = {
        name: axes for name, value in inputs if (axes := _dynamic_axes(name, value, specs.get(name)))
    }
    return options


def _dynamic_axes(name: str, value: Any, spec: Any) -> dict[int, str]:
    """Name the dynamic axes of one input; those that torch.export would name by itself get the input's name."""
    if spec is None:
        return {}
    sizes = dict(enumerate(spec)) if isinstance(spec, list | tuple) else spec
    if not isinstance(value, torch.Tensor) or not isinstance(sizes, Mapping):
        raise InputError(
            f"the TorchScript exporter takes dynamic axes of tensors only, and input {name!r} is a "
            f"{type(value).__name__}; use exporter 'dynamo', or give dynamic_axes and input_names"
        )
    return {
        axis: size if isinstance(size, str) else getattr(size, "__name__", f"{name}_{axis}")
        for axis, size in sizes.items()
        if size is not None and not isinstance(size, int) and size is not torch.export.Dim.STATIC
    }


@contextmanager
def by_position(request: ExportRequest, guard: Guard | None = None) -> Iterator[tuple[Any, ...]]:
    """Let the model take its example inputs by position, those and no others; yield them.

    torch.jit.trace knows no keywords, and no structures but tuples, lists and dicts. torch.onnx.export would
    put every default of `forward` between the inputs, where a default that is a number becomes an input of the
    graph, and a `forward` that takes its defaults from elsewhere gets them twice. The model's `forward` is as it
    was afterwards.
    """
    model = request.model
    if isinstance(model, torch.jit.ScriptModule):  # its forward cannot be replaced, and knows its arguments
        yield _arrange(request)
        return
    parameters = inspect.signature(model.forward).parameters.values()
    keywords = request.kwargs or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    if not keywords and all(map(_is_traceable, request.args)):
        yield request.args
        return
    own, forward = model.__dict__.get("forward"), model.forward
    flat, unflatten = _flatten_untraceable(_name_inputs(request))
    make_traceable = _make_traceable
    if guard is not None:
        unflatten, make_traceable = guard(unflatten), guard(make_traceable)

    @functools.wraps(forward)
    def take_by_position(*given: Any) -> Any:
        values = unflatten(given)
        count = len(request.args)
        return make_traceable(forward(*values[:count], **dict(zip(request.kwargs, values[count:], strict=True))))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name, _ in flat])
    take_by_position.__signature__ = signature  # type: ignore[attr-defined]
    model.forward = take_by_position
    try:
        yield tuple(value for _, value in flat)
    finally:
        del model.forward
        if own is not None:
            model.forward = own


def _arrange(request: ExportRequest) -> tuple[Any, ...]:
    """Return the example inputs of a TorchScript model by position, with its defaults between them."""
    rest = list(forward_signature(request.model).parameters.values())[len(request.args) :]
    names = [parameter.name for parameter in rest]
    for name in request.kwargs:
        check_known("argument by keyword", name, names)
    last = max((names.index(name) for name in request.kwargs), default=-1)
    return (*request.args, *(request.kwargs.get(item.name, item.default) for item in rest[: last + 1]))


def _name_inputs(request: ExportRequest) -> list[tuple[str, Any]]:
    """Return all example inputs with their names; those by position are named as `forward` names them."""
    names = list(forward_signature(request.model).parameters)
    names += [f"input_{n}" for n in range(len(names), len(request.args))]  # those that *args takes
    return [*zip(names, request.args, strict=False), *request.kwargs.items()]


def _flatten_untraceable(
    inputs: Sequence[tuple[str, Any]],
) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], list[Any]]]:
    """Replace inputs that torch.jit.trace refuses by their tensors; also return what puts them together again."""
    flat: list[tuple[str, Any]] = []
    makers: list[Callable[[Iterator[Any]], Any]] = []
    for name, value in inputs:
        if _is_traceable(value):
            flat.append((name, value))
            makers.append(next)
            continue
        leaves, spec = pytree.tree_flatten(value)
        flat += [(f"{name}_{n}", leaf) for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        makers.append(functools.partial(_put_together, leaves, spec))

    def unflatten(given: Sequence[Any]) -> list[Any]:
        values = iter(given)
        return [make(values) for make in makers]

    return flat, unflatten


def _put_together(leaves: Sequence[Any], spec: pytree.TreeSpec, values: Iterator[Any]) -> Any:
    return pytree.tree_unflatten([next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)


def _is_traceable(value: object) -> bool:
    """Say whether torch.jit.trace takes a value as it is."""
    if isinstance(value, dict | list | tuple):
        return all(map(_is_traceable, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, torch.Tensor | bool | int | float | str)


def _make_traceable(output: Any) -> Any:
    """Return an output as it is, or its tensors where torch.jit.trace would refuse it."""
    if _is_traceable(output):
        return output
    leaves = pytree.tree_leaves(output)
    unknown = next((type(leaf) for leaf in leaves if not _is_traceable(leaf)), None)
    if unknown is not None:
        raise InputError(
            f"the model returns a {unknown.__module__}.{unknown.__qualname__}, whose tensors torch cannot find; "
            "register it with torch.utils._pytree.register_pytree_node, or have the model leave it out"
        )
    return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
