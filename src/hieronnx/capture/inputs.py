"""Example inputs by forward's parameter names, and which of their axes are dynamic.

torch is imported in the functions that need it, so that the command line can parse without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hieronnx.capture.pretrained import make_pretrained
from hieronnx.capture.specs import (
    InputSpec,
    Limits,
    Parameters,
    check_complete,
    draw_all,
    read_example,
    required,
    suggest,
)
from hieronnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def make_inputs(model: nn.Module, specs: Iterable[InputSpec] = ()) -> dict[str, Any]:
    """Return example inputs by parameter name, in the order of forward's signature.

    Specs are used as they are. The rest comes from the model: its `example_inputs` (an attribute or method),
    or for a Hugging Face model its config. The values are the same each time; no global generator is used.

    Raises:
        InputError: a spec does not fit the model, or an input is missing that nothing tells how to make.
    """
    parameters = inspect.signature(model.forward).parameters
    given: dict[str, InputSpec] = {}
    for spec in specs:
        if spec.name in given:
            raise InputError(f"input '{spec.name}' is given twice")
        given[spec.name] = spec
    _check_names(model, parameters, given, what="input")
    example = read_example(model, "example_inputs", parameters)
    if example is None and hasattr(model, "config") and hasattr(model, "main_input_name"):  # of Hugging Face
        return _sort(make_pretrained(model, parameters, given), parameters)
    if example is None:
        example = read_example(model, "dummy_inputs", parameters)
    return _sort(_make_plain(model, parameters, given, example), parameters)


def _check_names(model: nn.Module, parameters: Parameters, names: Iterable[str], *, what: str) -> None:
    known = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in names:
        # A model that takes anything is trusted with it, but for a name so near that it must be a slip.
        if name in known or (takes_any and not suggest(name, known, cutoff=0.85)):
            continue
        hint = suggest(name, known) or f"; its parameters are {', '.join(known) or 'none'}"
        raise InputError(f"no {what} '{name}' in {type(model).__name__}.forward{hint}")


def _sort(inputs: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Order inputs by the signature; what only **kwargs takes comes last."""
    positions = {name: position for position, name in enumerate(parameters)}
    return dict(sorted(inputs.items(), key=lambda item: positions.get(item[0], len(positions))))


def _make_plain(
    model: nn.Module, parameters: Parameters, given: Mapping[str, InputSpec], example: Mapping[str, Any] | None
) -> dict[str, Any]:
    if example is not None and not given:
        return dict(example)
    inputs: dict[str, Any] = dict(draw_all(model, dict.fromkeys(given.values(), Limits())))
    # Beside given inputs only the required ones are taken over: an optional one may be of another size.
    missing = [name for name in required(parameters) if name not in inputs]
    inputs |= {name: example[name] for name in missing if example and name in example}
    unnamed = [p for p in required(parameters) if parameters[p].kind is inspect.Parameter.POSITIONAL_ONLY]
    if unnamed or (not inputs and any(p.kind is p.VAR_POSITIONAL for p in parameters.values())):
        takes = f"{type(model).__name__}.forward takes {', '.join(unnamed) or 'its inputs'}"
        raise InputError(f"{takes} by position only; export it from Python, with args=…")
    check_complete(model, [name for name in missing if name not in inputs])
    return inputs


def to_dynamic_shapes(
    model: nn.Module, kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]]
) -> dict[str, Any] | None:
    """Return the `dynamic_shapes` of an export, None where nothing is dynamic.

    Example:
        `{"x": {0: "batch"}}` with inputs x and mask gives `{"x": {0: "batch"}, "mask": None}`.

    Raises:
        InputError: there is no such input, or it has no such axis.
    """
    if not dynamic:
        return None
    parameters = inspect.signature(model.forward).parameters
    _check_names(model, parameters, dynamic, what="dynamic input")
    for name in dynamic:
        _check_axes(name, dynamic[name], kwargs)
    shapes: dict[str, Any] = {}
    for name in _sort(kwargs, parameters):
        axes = dict(dynamic[name]) if name in dynamic else None
        if name in parameters:
            shapes[name] = axes
        else:  # torch.export sees what **kwargs took as one mapping under the name of that parameter
            variadic = next(p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD)
            shapes.setdefault(variadic, {})[name] = axes
    return shapes


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
