"""Example inputs by forward's parameter names, and which of their axes are dynamic.

torch is imported in the functions that need it, so that the command line can parse without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hieronnx.capture.draw import Limits, draw, make_generator, read_device
from hieronnx.capture.pretrained import is_pretrained, make_pretrained
from hieronnx.capture.specs import (
    Given,
    InputSpec,
    Parameters,
    describe_missing,
    read_example,
    required,
    suggest,
)
from hieronnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn


# --- making inputs --------------------------------------------------------------------------------


def make_inputs(model: nn.Module, specs: Iterable[InputSpec] = ()) -> dict[str, Any]:
    """Return example inputs by parameter name, in the order of forward's signature.

    Specs are used as they are. The rest comes from the model: its `example_inputs` (an attribute or method),
    or for a Hugging Face model its config. The values are the same each time; no global generator is used.

    Raises:
        InputError: a spec does not fit the model, or an input is missing that nothing tells how to make.
    """
    parameters = _read_parameters(model)
    given = _index_specs(specs)
    _check_names(model, parameters, given, what="input")
    example = read_example(model, "example_inputs", parameters)
    if example is None and is_pretrained(model):
        made = make_pretrained(model, parameters, given)
    else:
        if example is None:
            example = read_example(model, "dummy_inputs", parameters)
        made = _make_plain(model, parameters, given, example)
    return _sort(made, parameters)


def _read_parameters(model: nn.Module) -> Parameters:
    return inspect.signature(model.forward).parameters


def _index_specs(specs: Iterable[InputSpec]) -> dict[str, InputSpec]:
    given: dict[str, InputSpec] = {}
    for spec in specs:
        if spec.name in given:
            raise InputError(f"input '{spec.name}' is given twice")
        given[spec.name] = spec
    return given


def _check_names(model: nn.Module, parameters: Parameters, names: Iterable[str], *, what: str) -> None:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [p.name for p in parameters.values() if p.kind in by_name]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        # A model that takes anything is trusted with it, but for a name so near that it must be a slip.
        wrong = [name for name in names if name not in known and suggest(name, known, cutoff=0.85)]
    else:
        wrong = [name for name in names if name not in known]
    for name in wrong:
        hint = suggest(name, known) or f"; its parameters are {', '.join(known) or 'none'}"
        raise InputError(f"no {what} '{name}' in {type(model).__name__}.forward{hint}")


def _sort(made: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Order inputs by the signature; what only **kwargs takes comes last."""
    names = [name for name in parameters if name in made]
    names += [name for name in made if name not in parameters]
    return {name: made[name] for name in names}


# --- a plain module -------------------------------------------------------------------------------


def _make_plain(
    model: nn.Module,
    parameters: Parameters,
    given: Given,
    example: Mapping[str, Any] | None,
) -> dict[str, Any]:
    if example is not None and not given:
        return dict(example)
    generator = make_generator()
    device = read_device(model)
    made: dict[str, Any] = {name: draw(spec, generator, Limits()).to(device) for name, spec in given.items()}
    # Beside given inputs only the required ones are taken over: an optional one may be of another size.
    missing = [name for name in required(parameters) if name not in made]
    made |= {name: example[name] for name in missing if example and name in example}
    _check_complete(model, parameters, made)
    return made


def _check_complete(model: nn.Module, parameters: Parameters, made: Mapping[str, Any]) -> None:
    name = type(model).__name__
    kinds = {p.name: p.kind for p in parameters.values()}
    unnamed = [p for p in required(parameters) if kinds[p] is inspect.Parameter.POSITIONAL_ONLY]
    if unnamed or (not made and set(kinds.values()) & {inspect.Parameter.VAR_POSITIONAL}):
        takes = ", ".join(unnamed) or "its inputs"
        raise InputError(f"{name}.forward takes {takes} by position only; export it from Python, with args=…")
    missing = [parameter for parameter in required(parameters) if parameter not in made]
    if missing:
        raise InputError(describe_missing(model, missing))


# --- dynamic axes ---------------------------------------------------------------------------------


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
    _check_dynamic(model, kwargs, dynamic)
    parameters = _read_parameters(model)
    shapes: dict[str, Any] = {}
    for name in _sort(kwargs, parameters):
        axes = dict(dynamic[name]) if name in dynamic else None
        if name in parameters:
            shapes[name] = axes
        else:  # torch.export sees what **kwargs took as one mapping under the name of that parameter
            variadic = next(p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD)
            shapes.setdefault(variadic, {})[name] = axes
    return shapes


def _check_dynamic(model: nn.Module, kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]]) -> None:
    _check_names(model, _read_parameters(model), dynamic, what="dynamic input")
    for name, axes in dynamic.items():
        if name not in kwargs:
            hint = suggest(name, list(kwargs)) or f"; the inputs are {', '.join(kwargs) or 'none'}"
            raise InputError(f"dynamic input '{name}' is not among the inputs of this export{hint}")
        shape = getattr(kwargs[name], "shape", None)
        if shape is None:
            raise InputError(f"dynamic input '{name}' is a {type(kwargs[name]).__name__}, not a tensor")
        wrong = [axis for axis in axes if not 0 <= axis < len(shape)]
        if wrong:
            raise InputError(f"input '{name}' of shape {list(shape)} has no axis {wrong[0]}")
