"""Arguments that hold several tensors, put together from the inputs of a file, each of which is one of these.

    file     x, past_0_0, past_0_1, state_a
    forward  (x, past, state)
    made     x, past=((…, …),), state={"a": …}

What the arguments look like is told by the names, or by an example of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.opening import load
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT
from hieronnx.runtime.inputs import FileInput

if TYPE_CHECKING:
    from torch import nn

Steps: TypeAlias = tuple[int | str, ...]
"""The way to a tensor inside an argument."""
Parts: TypeAlias = Mapping[str, Mapping[Steps, str]]
"""For arguments the inputs of the file that their tensors are."""


def read_recorded(hierarchy: Hierarchy) -> dict[str, str]:
    """Return what the inputs of a file were at export: arguments of the model, or places in them, `past.0.1`."""
    root = hierarchy.call_by_id.get(ROOT)
    received = (root.received or ()) if root is not None else ()
    return {bound.tensor: bound.name for bound in received if bound.tensor is not None}


def read_recorded_file(path: Path | None) -> dict[str, str]:
    """Return the same of a file; nothing where it has no hierarchy."""
    try:
        return {} if path is None else read_recorded(load(path))
    except HieronnxError:
        return {}


def find_parts(names: Sequence[str], parameters: Sequence[str], recorded: Mapping[str, str]) -> Parts:
    """Find the arguments whose tensors are inputs of the file, by what was recorded or by the names.

    A single `x_0` that nothing was recorded of may as well be another name of `x`, and `x_mask` is hardly a part of it.
    """
    found: dict[str, dict[Steps, str]] = defaultdict(dict)
    certain = set()
    for name in names:
        parameter, steps = _locate(recorded.get(name, name), parameters)
        if steps and name not in parameters and (name in recorded or isinstance(steps[0], int)):
            found[parameter][steps] = name
            certain |= {parameter} if name in recorded else set()
    whole = {p: parts for p, parts in found.items() if p not in names and _is_whole(list(parts))}
    return {p: parts for p, parts in whole.items() if p in certain or len(parts) > 1 or len(next(iter(parts))) > 1}


def _locate(name: str, parameters: Sequence[str]) -> tuple[str, Steps]:
    """Return the longest parameter that a name begins with, and the way from there; nothing where there is none."""
    above = [p for p in parameters if name == p or name.startswith((f"{p}.", f"{p}_"))]
    parameter = max(above, key=len, default="")
    rest = name[len(parameter) + 1 :] if parameter else ""
    if not rest:
        return parameter, ()
    if name[len(parameter)] == ".":
        steps = rest.split(".")
    else:  # a key may have more than one word
        groups = groupby(rest.split("_"), str.isdecimal)
        steps = [step for counted, words in groups for step in (words if counted else ("_".join(words),))]
    return parameter, tuple(int(step) if step.isdecimal() else step for step in steps)


def _is_whole(ways: Sequence[Steps]) -> bool:
    """Say whether nothing is missing among the tensors of an argument: a sequence has all up to its last."""
    if ways == [()]:
        return True
    if () in ways:
        return False
    inner: dict[int | str, list[Steps]] = defaultdict(list)
    for first, *rest in ways:
        inner[first].append(tuple(rest))
    keys = list(inner)
    counted = all(isinstance(key, int) for key in keys) and set(keys) == set(range(len(keys)))
    return (counted or all(isinstance(key, str) for key in keys)) and all(map(_is_whole, inner.values()))


def nest(parts: Mapping[Steps, Any], sequence: type[tuple[Any, ...]] | type[list[Any]] = tuple) -> Any:
    """Put an argument together from its tensors: numbers are places in a tuple or a list, words are keys of a dict."""
    if () in parts:
        return parts[()]
    inner: dict[int | str, dict[Steps, Any]] = defaultdict(dict)
    for (first, *rest), value in parts.items():
        inner[first][tuple(rest)] = value
    if all(isinstance(key, int) for key in inner):
        return sequence(nest(inner[index], sequence) for index in range(len(inner)))
    return {key: nest(below, sequence) for key, below in inner.items()}


def fill_example(
    feeds: Mapping[str, Any],
    inputs: Sequence[FileInput],
    model: nn.Module,
    example: tuple[tuple[Any, ...], Mapping[str, Any]],
    recorded: Mapping[str, str],
    name: str,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put arrays into the places that the inputs of a file have in an example of the model's arguments.

    Raises:
        InputError: If one has no place there.
    """
    from torch import Tensor

    from hieronnx.capture.calls import name_received
    from hieronnx.capture.names import name_arguments, name_leaves
    from hieronnx.capture.private_torch import pytree

    leaves, spec = pytree.tree_flatten((tuple(example[0]), dict(example[1])))
    named = [leaf for leaf, _ in name_leaves(name_arguments(model, *example))]
    received = {id(tensor): place for place, tensor in name_received(model, *example).items()}
    tensors = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for number, item in enumerate(inputs):
        wanted = {recorded.get(item.name, item.name), item.name}
        places = (p for p in range(len(leaves)) if named[p] in wanted or received.get(id(leaves[p])) in wanted)
        position = next(places, tensors[number] if len(tensors) == len(inputs) else None)
        if position is None:
            raise InputError(
                f"none of the inputs that the model is given is the input '{item.name}' of '{name}'; they are "
                f"{', '.join(named) or 'none'}: give inputs like those that the file was exported with"
            )
        leaves[position] = _convert(feeds[item.name], leaves[position])
    filled: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, spec)
    return filled


def _convert(array: Any, like: Any) -> Any:
    """Return an array as what it stands for: a tensor of that type, or a number."""
    import torch

    if not isinstance(like, torch.Tensor):
        return type(like)(np.asarray(array).item())
    return torch.from_numpy(np.array(array)).to(like.device, like.dtype)
