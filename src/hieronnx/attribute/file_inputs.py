"""Inputs to run a file and its model on: what the file takes, nothing else, with its types and sizes.

A file names its inputs after the arguments of `forward`, or not; then they are taken in order:

    file      input_ids int64[batch,sequence], attention_mask int64[batch,sequence]
    forward   (input_ids, attention_mask, token_type_ids, …)
    made      input_ids [2,8], attention_mask [2,8]

Sizes that a file leaves open are those that the model's own inputs have, where it tells of such; else small ones, of
which several are tried. Sizes of one name are the same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from hieronnx.attribute.nested_inputs import Parts, fill_example, find_parts, nest
from hieronnx.capture.inputs import make_examples, make_inputs, try_each
from hieronnx.capture.specs import DTYPES, InputSpec, Limits, draw_all
from hieronnx.errors import InputError, describe_error, list_some
from hieronnx.runtime.inputs import FileInput

if TYPE_CHECKING:
    from torch import nn

_BATCH = 2
_SIZES = (6, 16, 32, 64, 224)
"""For sizes that nobody tells: each and its multiples, then each alone."""
_NAMED = 5
EXAMPLE = "give an example of all inputs with --inputs-from FILE.PY:FUNCTION, or from Python args=… and kwargs=…"
_Shapes: TypeAlias = Mapping[str, Sequence[int]]


def make_file_inputs(
    inputs: Sequence[FileInput],
    model: nn.Module,
    specs: Sequence[InputSpec] = (),
    *,
    name: str,
    recorded: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Make the inputs of a file, by the names of `forward`'s arguments.

    Args:
        inputs: What the file takes.
        model: The model.
        specs: Inputs that are given: they are made as they say.
        name: That of the file, for errors.
        recorded: What the inputs were at export, as far as that is known.

    Raises:
        InputError: If one cannot be made, or the model cannot be run with what was made.
    """
    usual = _make_usual(model)
    parts = _find_parts(inputs, model, usual, recorded)
    paired = _pair(inputs, model, usual, name, parts)
    inside = {item.name: item for item in inputs if item not in paired.values()}
    of_parts = {spec.name: spec for spec in specs if spec.name in inside}
    given, outside = {spec.name for spec in specs}, [spec for spec in specs if spec.name not in inside]
    shapes = {parameter: tuple(value.shape) for parameter, value in usual.items() if hasattr(value, "shape")}
    shapes |= {spec.name: spec.shape for spec in specs}
    wanted = {parameter: item for parameter, item in paired.items() if parameter not in given}
    candidates = []
    for sizes in _choose_sizes({**paired, **inside}, shapes, given):
        made = [_make_spec(parameter, item, sizes, model, name) for parameter, item in wanted.items()]
        plain = make_examples(model, [*outside, *made], only=True, without=list(parts)).values
        each = (of_parts.get(part) or _make_spec(part, item, sizes, model, name) for part, item in inside.items())
        drawn = draw_all(model, dict.fromkeys(each, Limits()))
        for sequence in (tuple, list) if parts else (tuple,):
            candidates.append({**plain, **_nest_all(drawn, parts, sequence)})
    return candidates[0] if len(candidates) == 1 else try_each(model, candidates, f"for '{name}'")


def arrange_arrays(
    feeds: Mapping[str, Any],
    inputs: Sequence[FileInput],
    model: nn.Module,
    example: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), MappingProxyType({})),
    *,
    name: str,
    recorded: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a model for which arrays are given by the names that a file has for them.

    Args:
        feeds: The arrays.
        inputs: What the file takes.
        model: The model.
        example: Arguments of the model whose places the arrays take, if there are any.
        name: That of the file, for errors.
        recorded: What the inputs were at export, as far as that is known.

    Raises:
        InputError: If an array has no place among the arguments, or the model does not run with those.
    """
    if example[0] or example[1]:
        return fill_example(feeds, inputs, model, example, recorded, name)
    usual = _make_usual(model)
    parts = _find_parts(inputs, model, usual, recorded)
    paired = _pair(inputs, model, usual, name, parts)
    if parts and {*paired, *parts} <= usual.keys():  # the model tells what they look like
        own = {parameter: usual[parameter] for parameter in usual if parameter in {*paired, *parts}}
        return fill_example(feeds, inputs, model, ((), own), recorded, name)
    tensors = _to_tensors(feeds, model)
    plain = {parameter: tensors[item.name] for parameter, item in paired.items()}
    candidates = [{**plain, **_nest_all(tensors, parts, sequence)} for sequence in (tuple, list)]
    if not parts:
        return (), candidates[0]
    try:
        return (), try_each(model, candidates, "of them")
    except InputError as error:
        listed = list_some([part for found in parts.values() for part in found.values()], _NAMED)
        raise InputError(
            f"{type(model).__name__} does not run with its argument {', '.join(parts)} put together from the inputs "
            f"{listed} of '{name}' ({describe_error(error.__cause__ or error)}); {EXAMPLE}"
        ) from error


def _nest_all(tensors: Mapping[str, Any], parts: Parts, sequence: Any) -> dict[str, Any]:
    return {p: nest({way: tensors[part] for way, part in found.items()}, sequence) for p, found in parts.items()}


def _to_tensors(feeds: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return arrays as tensors; where the file takes half floats, in the precision of the model."""
    import torch

    precisions = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    precision = next(precisions, torch.get_default_dtype())
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
    return {name: t.to(precision) if t.dtype == torch.float16 else t for name, t in tensors.items()}


def _make_usual(model: nn.Module) -> dict[str, Any]:
    """Make the inputs that the model itself tells of; none where it does not."""
    try:
        return make_inputs(model)
    except InputError:
        return {}


def _list_parameters(model: nn.Module) -> list[str]:
    """List the parameters of `forward` that can be given by keyword."""
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _find_parts(
    inputs: Sequence[FileInput], model: nn.Module, usual: Mapping[str, Any], recorded: Mapping[str, str]
) -> Parts:
    """Find the arguments whose tensors are inputs of a file; what the model itself says is a tensor is none."""
    parameters = [p for p in _list_parameters(model) if not hasattr(usual.get(p), "shape")]
    of_objects = [item.name for item in inputs if _is_part(item.name, parameters)]
    return {} if of_objects else find_parts([item.name for item in inputs], parameters, recorded)


def _is_part(name: str, parameters: Sequence[str]) -> bool:
    """Say whether an input is called after a field of an object, as those of a cache are."""
    whole, _, part = name.partition(".")
    return whole in parameters and bool(part) and not part.isdigit()


def _pair(
    inputs: Sequence[FileInput], model: nn.Module, usual: Mapping[str, Any], name: str, parts: Parts
) -> dict[str, FileInput]:
    """Pair inputs of a file with arguments: by name, the others in order, those that the model tells of first.

    Those that are parts of arguments are left out.
    """
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values())
    named = [p for p in _list_parameters(model) if p not in parts]
    inside = {part for found in parts.values() for part in found.values()}
    inputs = [item for item in inputs if item.name not in inside]
    paired: dict[str, FileInput] = {}
    for item in inputs:
        plain = re.sub(r"\.\d+$", "", item.name)  # as TorchScript names an input whose name is taken
        parameter = next((p for p in (item.name, plain) if p in named and p not in paired), None)
        if parameter is not None:
            paired[parameter] = item
    for item in (item for item in inputs if item not in paired.values()):
        if _is_part(item.name, named):
            raise InputError(
                f"the input '{item.name}' of '{name}' is a part of an argument of {type(model).__name__} that is no "
                f"tensor; {EXAMPLE}, or for a Hugging Face decoder with its cache --with-past, hieronnx.with_past"
            )
        others = [p for p in dict.fromkeys((*usual, *named)) if p not in paired and p not in parts]
        free = [p for p in others if _is_alike(usual.get(p), item)]
        if not free and not takes_any:
            _refuse(item, name, f"{type(model).__name__}.forward has no argument for it", EXAMPLE)
        paired[free[0] if free else item.name] = item
    return paired


def _is_alike(usual: Any, item: FileInput) -> bool:
    """Say whether an input of the model may be that of the file: it has its kind of numbers and as many axes."""
    if not hasattr(usual, "dtype") or item.dtype is None:
        return True
    ranks = len(usual.shape) == len(item.shape) if item.shape is not None else True
    return ranks and bool(usual.dtype.is_floating_point) == (item.dtype.kind == "f")


def _choose_sizes(
    paired: Mapping[str, FileInput], shapes: _Shapes, given: set[str]
) -> Iterator[Mapping[Hashable, int]]:
    """Yield sizes for the axes that the file leaves open, by their names: several where nothing tells of some."""
    known: dict[Hashable, int] = {}
    for parameter in sorted(paired, key=lambda parameter: parameter not in given):  # what is given counts first
        axes = _list_axes(paired[parameter])
        shape = shapes.get(parameter, ())
        if len(shape) == len(axes):
            for key, size in zip(axes, shape, strict=True):
                known.setdefault(key, size)
    keys = [(key, axis) for item in paired.values() for axis, key in enumerate(_list_axes(item))]
    first = {key for key, axis in keys if axis == 0 and not isinstance(key, int) and key not in known}
    known |= dict.fromkeys(first, _BATCH)
    others = [key for key in dict.fromkeys(key for key, _ in keys) if not isinstance(key, int) and key not in known]
    if not others:
        yield known
        return
    for step in (True, False):
        for size in _SIZES:
            yield known | {key: size * number if step else size for number, key in zip(count(1), others, strict=False)}


def _list_axes(item: FileInput) -> list[Hashable]:
    """List the sizes of an input, or what tells those apart that are open: their names, or where they are."""
    return [(item.name, axis) if size is None else size for axis, size in enumerate(item.shape or ())]


def _make_spec(
    parameter: str, item: FileInput, sizes: Mapping[Hashable, int], model: nn.Module, name: str
) -> InputSpec:
    if item.dtype is None or item.shape is None:
        remedy = f"pass --input '{parameter}=DTYPE[SHAPE]'; or {EXAMPLE}"
        _refuse(item, name, "the file does not say of what type and shape it is", remedy)
    floats = (p.dtype for p in model.parameters() if p.dtype.is_floating_point)
    # A file in half precision is compared with a model that is not.
    dtype = str(next(floats, item.dtype)).removeprefix("torch.") if item.dtype.kind == "f" else item.dtype.name
    if dtype not in DTYPES:
        _refuse(item, name, f"there are no inputs of type {dtype}", EXAMPLE)
    return InputSpec(parameter, dtype, tuple(n if isinstance(n, int) else sizes[n] for n in _list_axes(item)))


def _refuse(item: FileInput, name: str, reason: str, remedy: str) -> NoReturn:
    raise InputError(f"cannot make the input {item} of '{name}': {reason}; {remedy}")
