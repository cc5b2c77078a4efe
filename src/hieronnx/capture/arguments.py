"""Inputs that are given, and whether a model's `forward` takes them: told before torch fails, in its own words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hieronnx.capture.load import load_reference, neighbours
from hieronnx.capture.modules import forward_signature
from hieronnx.capture.specs import required, suggest
from hieronnx.errors import InputError, describe_error


def call_maker(reference: str, model: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call the function that a reference names; return the example inputs that it gives, by keyword where they can be.

    It returns a dict of keyword inputs, a tuple of positional ones, a tensor, or a tuple of a tuple and a dict: both.

    Raises:
        TargetError: there is no such function.
        InputError: it fails, returns something else, or what `forward` does not take.
    """
    maker = load_reference(reference)
    if not callable(maker):
        raise InputError(f"'{reference}' is a {type(maker).__name__}; expected a function that returns the inputs")
    try:
        with neighbours(reference):
            made = maker(model) if required(inspect.signature(maker).parameters) else maker()
    except Exception as error:
        raise InputError(f"'{reference}' raised {describe_error(error)}") from error
    made = (made,) if isinstance(made, Tensor) else made
    if not isinstance(made, tuple | Mapping):
        expected = "expected a tuple of args, a dict of kwargs, or both in a tuple"
        raise InputError(f"'{reference}' returned a {type(made).__name__}; {expected}")
    both = isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], Mapping)
    args, kwargs = made if both else ((), made) if isinstance(made, Mapping) else (made, {})
    try:
        bound = bind_arguments(model, args, kwargs, remedy="let the function return it as well")
    except InputError as error:
        raise InputError(f"'{reference}' returned what the model does not take: {error}") from error
    parameters = forward_signature(model).parameters.values()
    if {p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)} & set(bound):
        return tuple(args), dict(kwargs)
    variadic = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
    return (), {**{name: value for name, value in bound.items() if name != variadic}, **bound.get(variadic, {})}


def bind_arguments(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, remedy: str = ""
) -> dict[str, Any]:
    """Return inputs by the parameters of `forward` that take them, in its order; `*args` takes a tuple.

    Args:
        model: The model.
        args: Its inputs by position.
        kwargs: Its inputs by keyword.
        remedy: What to do where one is missing, if that is not to give it by an option.

    Raises:
        InputError: If it does not take them, or wants more.
    """
    try:
        return dict(forward_signature(model).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise InputError(_describe_misfit(model, args, kwargs, str(error), remedy)) from error


def check_arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make sure that a model can be called with some inputs, as far as that is certain before it is.

    What stands before `forward`, a hook or a decorator, may add arguments and take others away.

    Raises:
        InputError: If it certainly cannot.
    """
    if model._forward_pre_hooks or type(model).__call__ is not nn.Module.__call__:
        return
    try:
        inspect.signature(model.forward, follow_wrapped=False).bind(*args, **kwargs)
    except ValueError:  # it does not tell what it takes
        return
    except TypeError:
        bind_arguments(model, args, kwargs)


def _describe_misfit(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str, remedy: str) -> str:
    """Say which argument is missing, or is one too many."""
    forward, parameters = f"{type(model).__name__}.forward", forward_signature(model).parameters
    by_position = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_keyword = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {*by_position[: len(args)], *kwargs}
    if missing := [name for name in required(parameters) if name not in given]:
        return f"{forward} must be given {', '.join(missing)}, too; {remedy or _advise(missing)}"
    if unknown := [name for name in kwargs if name not in by_keyword and not takes_any]:
        hint = suggest(unknown[0], by_keyword) or f"; its parameters are {', '.join(parameters) or 'none'}"
        return f"{forward} takes no input '{unknown[0]}'{hint}"
    return f"{forward} does not take these inputs: {reason}; its parameters are {', '.join(parameters) or 'none'}"


def _advise(missing: Sequence[str]) -> str:
    options = " ".join(f"--input '{name}=DTYPE[SHAPE]'" for name in missing)
    pairs = ", ".join(f"'{name}': …" for name in missing)
    return f"pass {options}, or what is no tensor with --inputs-from FILE.PY:FUNCTION; in Python kwargs={{{pairs}}}"
