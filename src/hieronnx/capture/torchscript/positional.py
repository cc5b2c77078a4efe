"""Example inputs as torch.jit.trace takes them: by position, in plain structures, with dynamic axes by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.dynamic import pair_specs
from hieronnx.capture.guard import Guard
from hieronnx.capture.modules import forward_signature
from hieronnx.capture.names import list_parameters, make_unique, name_arguments, name_leaves, name_results
from hieronnx.capture.private_torch import pytree
from hieronnx.errors import InputError, check_known

_DYNAMO_OPTIONS = frozenset({"external_data", "optimize", "report", "verify", "profile", "artifacts_dir"})


def torchscript_options(request: ExportRequest) -> dict[str, Any]:
    """Return torch's options as this exporter takes them: dynamic shapes as dynamic axes of named inputs."""
    options = {key: value for key, value in request.options.items() if key not in _DYNAMO_OPTIONS}
    shapes = options.pop("dynamic_shapes", None)
    if not shapes or options.get("dynamic_axes"):
        return options
    leaves = name_leaves(name_arguments(request.model, request.args, request.kwargs))
    axes = {
        leaves[position][0]: _dynamic_axes(*leaves[position], spec) for position, spec in pair_specs(request, leaves)
    }
    traced = name_traced_inputs(request)
    options["input_names"] = options.get("input_names") or traced
    names = dict(zip(traced, options["input_names"], strict=False))
    options["dynamic_axes"] = {names.get(name, name): labels for name, labels in axes.items() if labels}
    return options


def _dynamic_axes(name: str, value: Any, spec: Any) -> dict[int, str]:
    """Name the dynamic axes of one input; those that torch.export would name by itself get the input's name."""
    if spec is None or not isinstance(value, torch.Tensor):
        return {}
    sizes = spec if isinstance(spec, Mapping) else dict(enumerate(spec))
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
    if _is_taken_as_is(request):
        yield request.args
        return
    own, forward = model.__dict__.get("forward"), model.forward
    flat, unflatten = _flatten_untraceable(name_arguments(model, request.args, request.kwargs))
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


def _is_taken_as_is(request: ExportRequest) -> bool:
    parameters = list_parameters(request.model).values()
    keywords = request.kwargs or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    return not keywords and all(map(_is_traceable, request.args))


def name_traced_inputs(request: ExportRequest) -> list[str]:
    """Name the inputs of the trace, in order: the tensors and numbers among the example inputs."""
    named = name_arguments(request.model, request.args, request.kwargs)
    if scripted := isinstance(request.model, torch.jit.ScriptModule):
        named = name_arguments(request.model, _arrange(request), {})
    if scripted or _is_taken_as_is(request):
        # torch adds the defaults of what is left, and takes a dict in the last place for keywords.
        parameters = list_parameters(request.model).values()
        named += [(p.name, p.default) for p in list(parameters)[len(named) :] if p.default is not p.empty]
    else:
        named, _ = _flatten_untraceable(named)
    traced = [name for name, leaf in name_leaves(named) if isinstance(leaf, torch.Tensor | bool | int | float)]
    return make_unique(traced, request.model.state_dict().keys(), "in")  # torch would give the parameter another name


def _arrange(request: ExportRequest) -> tuple[Any, ...]:
    """Return the example inputs of a TorchScript model by position, with its defaults between them."""
    rest = list(forward_signature(request.model).parameters.values())[len(request.args) :]
    names = [parameter.name for parameter in rest]
    for name in request.kwargs:
        check_known("argument by keyword", name, names)
    last = max((names.index(name) for name in request.kwargs), default=-1)
    return (*request.args, *(request.kwargs.get(item.name, item.default) for item in rest[: last + 1]))


def _flatten_untraceable(
    inputs: Sequence[tuple[str, Any]],
) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], list[Any]]]:
    """Replace inputs that torch.jit.trace refuses by their tensors; also return what puts them together again."""
    flat: list[tuple[str, Any]] = []
    makers: list[Callable[[Iterator[Any]], Any]] = []
    for position, (name, value) in enumerate(inputs, 1):
        # torch takes a dict in the last place for keywords.
        if _is_traceable(value) and not (position == len(inputs) and isinstance(value, dict)):
            flat.append((name, value))
            makers.append(next)
            continue
        leaves, spec = pytree.tree_flatten(value)
        flat += [item for item in name_leaves([(name, value)]) if isinstance(item[1], torch.Tensor)]
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
    named = [item for item in name_results(output) if isinstance(item[1], torch.Tensor)]
    return dict(zip(make_unique((name for name, _ in named), (), "out"), (leaf for _, leaf in named), strict=True))
