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
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from hieronnx.capture.inputs import make_examples, make_inputs, try_each
from hieronnx.capture.specs import DTYPES, InputSpec
from hieronnx.errors import InputError
from hieronnx.runtime.inputs import FileInput

if TYPE_CHECKING:
    from torch import nn

_BATCH = 2
_SIZES = (6, 16, 32, 64, 224)
"""For sizes that nobody tells: each and its multiples, then each alone."""
_Shapes: TypeAlias = Mapping[str, Sequence[int]]


def make_file_inputs(
    inputs: Sequence[FileInput], model: nn.Module, specs: Sequence[InputSpec] = (), *, name: str
) -> dict[str, Any]:
    """Make the inputs of a file, by the names of `forward`'s arguments.

    Args:
        inputs: What the file takes.
        model: The model.
        specs: Inputs that are given: they are made as they say.
        name: That of the file, for errors.

    Raises:
        InputError: If one cannot be made, or the model cannot be run with what was made.
    """
    usual = _make_usual(model)
    paired = _pair(inputs, model, usual, name)
    given = {spec.name for spec in specs}
    shapes = {parameter: tuple(value.shape) for parameter, value in usual.items() if hasattr(value, "shape")}
    shapes |= {spec.name: spec.shape for spec in specs}
    wanted = {parameter: item for parameter, item in paired.items() if parameter not in given}
    candidates = []
    for sizes in _choose_sizes(paired, shapes, given):
        made = [_make_spec(parameter, item, sizes, model, name) for parameter, item in wanted.items()]
        candidates.append(make_examples(model, [*specs, *made], only=True).values)
    return candidates[0] if len(candidates) == 1 else try_each(model, candidates, f"for '{name}'")


def _make_usual(model: nn.Module) -> dict[str, Any]:
    """Make the inputs that the model itself tells of; none where it does not."""
    try:
        return make_inputs(model)
    except InputError:
        return {}


def pair_inputs(inputs: Sequence[FileInput], model: nn.Module, name: str) -> dict[str, FileInput]:
    """Return the inputs of a file by the arguments of `forward` that they are.

    Raises:
        InputError: If there is none for one of them.
    """
    return _pair(inputs, model, _make_usual(model), name)


def _pair(inputs: Sequence[FileInput], model: nn.Module, usual: Mapping[str, Any], name: str) -> dict[str, FileInput]:
    """Pair inputs of a file with arguments: by name, the others in order, those that the model tells of first."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    paired: dict[str, FileInput] = {}
    for item in inputs:
        plain = re.sub(r"\.\d+$", "", item.name)  # as TorchScript names an input whose name is taken
        parameter = next((p for p in (item.name, plain) if p in named and p not in paired), None)
        if parameter is not None:
            paired[parameter] = item
    for item in (item for item in inputs if item not in paired.values()):
        whole, _, part = item.name.partition(".")
        if whole in named and part and not part.isdigit():
            raise InputError(
                f"the input '{item.name}' of '{name}' is a part of the argument '{whole}' of {type(model).__name__}, "
                "which no array can stand for; give all inputs with --inputs-from, or args=… and kwargs=…; --with-past "
                "makes those of a Hugging Face decoder with its cache, as hieronnx.with_past does"
            )
        free = [p for p in dict.fromkeys((*usual, *named)) if p not in paired and _is_alike(usual.get(p), item)]
        if not free and not takes_any:
            _refuse(item, name, f"{type(model).__name__}.forward has no argument for it")
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
        _refuse(item, name, "the file does not say of what type and shape it is")
    floats = (p.dtype for p in model.parameters() if p.dtype.is_floating_point)
    # A file in half precision is compared with a model that is not.
    dtype = str(next(floats, item.dtype)).removeprefix("torch.") if item.dtype.kind == "f" else item.dtype.name
    if dtype not in DTYPES:
        _refuse(item, name, f"there are no inputs of type {dtype}")
    return InputSpec(parameter, dtype, tuple(n if isinstance(n, int) else sizes[n] for n in _list_axes(item)))


def _refuse(item: FileInput, name: str, reason: str) -> NoReturn:
    raise InputError(
        f"cannot make the input {item} of '{name}': {reason}; pass --input '{item}' with sizes, or from Python args=… "
        "and kwargs=…, or use the strategy usage_based, which runs nothing"
    )
