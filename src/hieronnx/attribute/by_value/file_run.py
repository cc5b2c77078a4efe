"""The run of the file: its inputs fed, its outputs beside the model's, and the fingerprints of all its tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from hieronnx.attribute.by_value.trace import FilePrints, InputSet, Prints
from hieronnx.attribute.weight_index import is_distinctive
from hieronnx.capture.arguments import bind_arguments
from hieronnx.capture.eager import array_of, untouched
from hieronnx.capture.private_torch import pytree
from hieronnx.errors import HieronnxError, InputError, describe_error
from hieronnx.files.opening import OpenedModel
from hieronnx.match.fingerprints import Fingerprint, take_fingerprint
from hieronnx.runtime.inputs import FileInput
from hieronnx.runtime.sessions import Array, Runner, open_runner

if TYPE_CHECKING:
    from hieronnx.attribute.request import Request

_CHOICES = 64
_FEW = 4
"""Inputs of which all orders are tried, where names do not tell."""
_SAME = 1e-3
"""How far the outputs of the right way may be apart; where they are farther, all ways are tried."""

Arguments: TypeAlias = Sequence[tuple[str, Array]]
Feed: TypeAlias = Callable[[Arguments], dict[str, Array]]
"""A way to give the arguments of the model to the file."""
_Taken: TypeAlias = defaultdict[int, list[Fingerprint]]
"""The fingerprints of tensors, by their numbers in a view."""


# -- outputs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FirstRun:
    """What one run of model and file says, on the inputs given.

    Attributes:
        feed: The way to give the arguments to the file with which it gives what the model gives, or nearly.
        apart: How far the outputs are apart, the worst of them, as a part of their spread; None if no two could be
            compared.
        distinctive: Whether outputs that were compared can hardly be equal by chance.
        unrounded: How far they are apart with the rounding of the file undone; None where it rounds as the model does,
            or not at all.
    """

    feed: Feed
    apart: float | None = None
    distinctive: bool = False
    unrounded: float | None = None


def run_both(opened: OpenedModel, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FirstRun:
    """Run the model, and the file with the inputs in the places where they fit best.

    Raises:
        InputError: If the model cannot be run on these inputs.
        HieronnxError: If the file cannot, or the inputs do not fit it.
    """
    outputs = _run_model(model, args, kwargs)
    arguments = name_arguments(model, args, kwargs)
    with open_runner(opened) as runner:
        best = _run_ways(runner, list_choices(runner.inputs, arguments, opened.name), arguments, outputs)
        if not runner.has_rounding or (best.apart is not None and best.apart <= _SAME):
            return best
    with open_runner(opened, rounding=False) as runner:
        unrounded, _ = _compare(runner.run(best.feed(arguments)).values(), outputs)
    return replace(best, unrounded=unrounded)


def _run_ways(runner: Runner, ways: Sequence[Feed], arguments: Arguments, outputs: Sequence[Array]) -> FirstRun:
    """Run the file with its inputs given in each of several ways; return that which agrees best."""
    best = FirstRun(ways[0])
    for way in ways:
        try:
            file_outputs = runner.run(way(arguments)).values()
        except HieronnxError:  # of several ways to feed a file most are wrong
            if len(ways) == 1:
                raise
            continue
        run = FirstRun(way, *_compare(file_outputs, outputs))
        if run.apart is not None and (best.apart is None or run.apart < best.apart):
            best = run
        if best.apart is not None and best.apart <= _SAME:
            break
    return best


def choose_feed(runner: Runner, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Feed:
    """Choose the way to give the arguments of a model to a file; where there are several, that which agrees best.

    Raises:
        HieronnxError: If there is none.
    """
    arguments = name_arguments(model, args, kwargs)
    ways = list_choices(runner.inputs, arguments, name)
    return ways[0] if len(ways) == 1 else _run_ways(runner, ways, arguments, _run_model(model, args, kwargs)).feed


def _run_model(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Array]:
    try:
        with untouched(model, args, kwargs) as (args, kwargs):
            outputs = model(*args, **kwargs)
    except Exception as error:
        raise InputError(
            f"the model cannot be run on these inputs ({describe_error(error)}); give others, or use the "
            "strategy usage_based, which runs nothing"
        ) from error
    tensors = (leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor))
    return [array_of(tensor) for tensor in tensors if tensor.layout is torch.strided and tensor.numel()]


def _compare(file_outputs: Iterable[object], outputs: Sequence[Array]) -> tuple[float | None, bool]:
    """Compare each output of the file with those of the model that have its size."""
    apart, distinctive = [], False
    for array in file_outputs:
        if isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.size:
            alike = [other for other in outputs if other.size == array.size and other.dtype.kind in "biuf"]
            if alike:
                apart.append(min(_distance(array, other) for other in alike))
                distinctive = distinctive or is_distinctive(array)
    return max(apart, default=None), distinctive


def _distance(ours: Array, theirs: Array) -> float:
    a, b = (np.nan_to_num(array.ravel().astype(np.float64), posinf=0, neginf=0) for array in (ours, theirs))
    apart = float(np.linalg.norm(a - b))
    spread = float(np.linalg.norm(b - b.mean()))
    return apart / (spread or float(np.linalg.norm(b)) or apart) if apart else 0.0


# -- inner tensors ----------------------------------------------------------------------------------------


def _record(request: Request, taken: _Taken, graph: str, name: str, array: Array) -> None:
    number = request.view.find_tensor(graph, name)
    if number is not None and array.dtype.kind in "biufc" and array.size:
        taken[number].append(take_fingerprint(request.blocked.decode(number, array)))


def record_file(request: Request, sets: Sequence[InputSet]) -> FilePrints:
    """Run the file on every set of inputs and take the fingerprints of all that it computes and holds.

    The first set is what was given. One of the others on which the file cannot be run is left out, and those after it.
    The rounding of a quantized file is undone, unless the model rounds as well: then both give the same.
    """
    rounding = request.first_run.unrounded is None
    runs: list[_Taken] = []
    initializers: _Taken = defaultdict(list)
    with open_runner(request.opened, rounding=rounding) as runner:
        for inputs in sets:
            taken: _Taken = defaultdict(list)
            feeds = request.first_run.feed(name_arguments(request.model, *inputs))
            try:
                runner.run_exposed(feeds, partial(_record, request, taken))
            except HieronnxError:
                if not runs:
                    raise
                break
            for name, array in feeds.items():
                _record(request, taken, "", name, array)
            runs.append(taken)
        runner.read_initializers(partial(_record, request, initializers))
    prints: dict[int, list[Prints]] = {t: [(prints[0],) * len(runs)] for t, prints in initializers.items()}
    for tensor, first in runs[0].items():
        others = [run.get(tensor, []) for run in runs[1:]]
        if all(len(other) == len(first) for other in others):
            prints[tensor] = list(zip(first, *others, strict=True))
    return prints


# -- inputs -----------------------------------------------------------------------------------------------


def name_arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Array]]:
    """Return the tensors and numbers among the arguments, named after the forward's parameters.

    Raises:
        InputError: If `forward` does not take them, or wants more.
    """
    arguments = []
    for name, value in bind_arguments(model, args, kwargs).items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, Tensor | bool | int | float):
                # torch names a flattened input by its path: `cache_0_key`.
                words = "".join(c if c.isalnum() else " " for c in pytree.keystr(path)).split()
                arguments.append(("_".join([name, *words]), array_of(torch.as_tensor(leaf))))
    return arguments


def list_choices(inputs: Sequence[FileInput], arguments: Arguments, name: str) -> list[Feed]:
    """List the ways to give the arguments to a file: by name, and the others where they fit, those in order first.

    An exporter may drop inputs and rename them, so there may be several ways.

    Raises:
        HieronnxError: If there is none.
    """
    positions: dict[str, int] = {}
    for wanted in inputs:
        for position, (argument, array) in enumerate(arguments):
            if argument == wanted.name and position not in positions.values() and _fits(wanted, array):
                positions[wanted.name] = position
                break
    left = [position for position in range(len(arguments)) if position not in positions.values()]
    unnamed = [wanted for wanted in inputs if wanted.name not in positions]
    ways = [positions | way for way in islice(_fit(unnamed, left, arguments), _CHOICES)]
    if not ways:
        missing = ", ".join(f"'{wanted}'" for wanted in unnamed)
        raise HieronnxError(
            f"the inputs given do not fit those of '{name}': nothing fits {missing}; give inputs of its types and "
            "sizes (--input, args=…, kwargs=…), or none: then they are made from the file"
        )
    return [partial(_feed, inputs, way) for way in ways]


def _fit(unnamed: Sequence[FileInput], left: Sequence[int], arguments: Arguments) -> Iterator[dict[str, int]]:
    """Yield the arguments that inputs may take, with those in order first; few inputs may be in any other order."""
    fitting = [[position for position in left if _fits(wanted, arguments[position][1])] for wanted in unnamed]
    others = product(*fitting) if 1 < len(unnamed) <= _FEW else ()
    disordered = (way for way in others if len(set(way)) == len(way) and list(way) != sorted(way))
    for way in chain(_choose_in_order(fitting), disordered):
        yield dict(zip((wanted.name for wanted in unnamed), way, strict=True))


def _choose_in_order(fitting: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to choose one of each that is after the one before, without trying what leads nowhere."""
    last: list[int] = []
    for positions in reversed(fitting):
        before = last[-1] if last else math.inf
        last.append(max((position for position in positions if position < before), default=-1))
    pending: list[tuple[int, ...]] = [()]
    while pending:
        chosen = pending.pop()
        if len(chosen) == len(fitting):
            yield chosen
            continue
        low, high = chosen[-1] if chosen else -1, last[len(fitting) - 1 - len(chosen)]
        after = (position for position in fitting[len(chosen)] if low < position <= high)
        pending.extend((*chosen, position) for position in sorted(after, reverse=True))


def _fits(wanted: FileInput, array: Array) -> bool:
    # A file in half precision, or with 32-bit indices, is given the same values.
    dtype, kind = wanted.dtype, array.dtype.kind
    if dtype is None or (dtype != array.dtype and (dtype.kind != kind or kind not in "fiu")):
        return False
    if wanted.shape is None:
        return True
    sizes = zip(wanted.shape, array.shape, strict=False)
    return len(wanted.shape) == array.ndim and all(size == n for size, n in sizes if isinstance(size, int))


def _feed(inputs: Sequence[FileInput], positions: Mapping[str, int], arguments: Arguments) -> dict[str, Array]:
    return {i.name: arguments[positions[i.name]][1].astype(i.dtype, copy=False) for i in inputs}
