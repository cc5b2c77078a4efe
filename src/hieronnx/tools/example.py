"""The check of a file that was just exported, on the example inputs: whether it gives what the model gives.

Another runtime rounds otherwise, and a model may make much of that: what is far apart is held against how far the
model's own outputs move where each of its calls rounds a little otherwise. Only what that does not explain is wrong.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hieronnx.errors import HieronnxError, describe_error
from hieronnx.files.opening import open_model
from hieronnx.graph.operators import RANDOM_OPS
from hieronnx.graph.walks import walk_nodes

if TYPE_CHECKING:
    from hieronnx.capture.captured import ExportRequest

_LOG = logging.getLogger("hieronnx")
Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Inputs of a model, by position and by keyword."""

LARGEST = 1 << 30
"""Models with more bytes of weights are not run unless that is asked for."""
_APART = 0.02
"""How far outputs may be apart, as a part of the largest number among them."""
_OF_NOISE = 10
"""How many times as far as noise moves them they may be apart."""
_UNKNOWN_NOISE = 0.01
"""How far it may move them where the model does not run with noise."""
_SEEDS = (1, 2, 3)
_HUGE, _TINY = 1e30, 1e-5
"""Numbers that stand for infinity, as in masks, and outputs that are as good as none."""
_IN_A_NODE = "Non-zero status code returned while running"
_STANDARD = ("", "ai.onnx", "com.microsoft")


def check_example(
    request: ExportRequest, report: Callable[[str], None], *, check: bool | None, trained: bool
) -> str | None:
    """Run model and file on the example inputs; say what the file gives otherwise.

    Args:
        request: The export.
        report: Called with the name of the stage.
        check: Whether it is wanted; None: of models that are not large, with dynamic axes, which are run anyway.
        trained: Whether the model was exported in training mode, in which it may draw numbers at random.

    Returns:
        What is wrong; None where nothing is, or it cannot be told.
    """
    from hieronnx.capture.dynamic import list_dynamic_axes

    wanted = bool(list_dynamic_axes(request)) if check is None else check
    if not wanted or find_obstacle(request, any_size=check is True) is not None:
        return None
    report("running the example")
    random = is_random(request) or (trained and _draws(request))
    if random and check:
        _LOG.warning("numbers are drawn at random: of the example's outputs shapes were compared, and no values")
    problem = _find_problem(request, random=random)
    if problem is not None:
        _LOG.warning(
            "the file is wrong, on the example inputs already: %s; another --exporter or --opset may do better, "
            "and 'hieronnx verify' names the module",
            problem,
        )
    return problem


def find_obstacle(request: ExportRequest, *, any_size: bool) -> str | None:
    """Say why a file should not be run beside its model; None where nothing speaks against it."""
    if request.options.get("export_params") is False:
        return "the file has no weights"
    if importlib.util.find_spec("onnxruntime") is None:
        return "onnxruntime is not installed; run: pip install 'hieronnx[runtime]'"
    from torch.nn.parameter import is_lazy

    tensors = (tensor for tensor in (*request.model.parameters(), *request.model.buffers()) if not is_lazy(tensor))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > LARGEST and not any_size:
        return f"the model has {size / 1e9:.1f} GB of weights; --check (check=True) does it"
    return None


# -- running the file -------------------------------------------------------------------------------------


def is_random(request: ExportRequest) -> bool:
    """Say whether the file draws numbers at random, so that values tell nothing."""
    return any(node.op_type in RANDOM_OPS for _, node in walk_nodes(open_model(request.output).model))


def _draws(request: ExportRequest) -> bool:
    """Say whether the model draws numbers at random: whether it gives others where they are drawn anew."""
    from hieronnx.capture.noise import run_outputs

    try:
        first, second = (
            run_outputs(request.model, request.args, dict(request.kwargs), noise=seed, roundings=0)
            for seed in _SEEDS[:2]
        )
    except Exception as error:  # of the model, or of results that are no arrays: then nothing is compared
        _LOG.debug("the model was not run: %s", describe_error(error))
        return False
    return len(first) != len(second) or not all(map(partial(np.array_equal, equal_nan=True), first, second))


def run_file(request: ExportRequest, inputs: Inputs) -> dict[str, Any]:
    """Run the file on inputs of the model, in their order or by their names.

    Raises:
        HieronnxError: If neither fits, or ONNX Runtime cannot run it.
    """
    from hieronnx.runtime.sessions import open_runner

    given = _list_inputs(request, inputs)
    with open_runner(open_model(request.output)) as runner:
        names = [item.name for item in runner.inputs]
        tensors = [array for _, array, is_tensor in given if is_tensor]
        in_order = (values for values in (tensors, [array for _, array, _ in given]) if len(values) == len(names))
        by_name = {name: array for name, array, _ in given}
        feeds = next((dict(zip(names, values, strict=True)) for values in in_order), by_name)
        if request.names.inputs is not None and set(names) <= set(by_name):  # the names are ours
            feeds = by_name
        if not set(names) <= set(feeds):
            raise HieronnxError("the inputs of the file are not those of the model")
        return runner.run({item.name: feeds[item.name].astype(item.dtype, copy=False) for item in runner.inputs})


def _list_inputs(request: ExportRequest, inputs: Inputs) -> list[tuple[str, Any, bool]]:
    """List what may be an input of the file: its name, its value, and whether it is a tensor and no number."""
    import torch

    from hieronnx.capture.eager import array_of
    from hieronnx.capture.names import name_arguments, name_leaves

    named = name_leaves(name_arguments(request.model, *inputs))
    return [
        (name, array_of(torch.as_tensor(leaf)), isinstance(leaf, torch.Tensor))
        for name, leaf in named
        if isinstance(leaf, torch.Tensor | bool | int | float)
    ]


# -- comparing --------------------------------------------------------------------------------------------


def find_difference(
    request: ExportRequest, inputs: Inputs, found: Mapping[str, Any], expected: Sequence[Any], *, random: bool
) -> str | None:
    """Say which output of the file is not the model's, beyond what rounding explains.

    Args:
        request: The export.
        inputs: What both were run on.
        found: The outputs of the file, by their names.
        expected: Those of the model, as many.
        random: Whether values tell nothing, so that shapes alone are compared.
    """
    suspects: dict[int, float] = {}
    for number, ((name, ours), theirs) in enumerate(zip(found.items(), expected, strict=True)):
        if not isinstance(ours, np.ndarray) or "c" in (ours.dtype.kind, theirs.dtype.kind):  # ONNX has no such type
            continue
        if ours.shape != theirs.shape and not ours.size == theirs.size == 1:  # exporters add axes to single numbers
            return f"output '{name}' has the shape {list(ours.shape)}, and PyTorch's is {list(theirs.shape)}"
        if not random and (apart := _measure(ours, theirs)) > _APART:
            suspects[number] = apart
    if not suspects:
        return None
    noise = _measure_noise(request, inputs, expected)
    for number, apart in suspects.items():
        if apart > _OF_NOISE * noise[number]:
            return f"output '{list(found)[number]}' is {_describe(apart)}"
    return None


def _find_problem(request: ExportRequest, *, random: bool) -> str | None:
    """Say where the file does not do what the model does on the example; None where that cannot be told."""
    from hieronnx.capture.noise import run_outputs

    example = request.args, dict(request.kwargs)
    try:
        expected = run_outputs(request.model, *example)
        found = run_file(request, example)
    except HieronnxError as error:
        return _read_failure(error, request)
    except Exception as error:  # of the model, or of inputs and results that are no arrays, as of fake tensors
        _LOG.debug("the file was not compared with its model: %s", describe_error(error))
        return None
    return find_difference(request, example, found, expected, random=random) if len(found) == len(expected) else None


def _read_failure(error: HieronnxError, request: ExportRequest) -> str | None:
    """Say what ONNX Runtime cannot do with a file that is of standard operators; None where it lacks something."""
    cause = error.__cause__
    if cause is None or any(node.domain not in _STANDARD for _, node in walk_nodes(open_model(request.output).model)):
        return None
    kind, text = type(cause).__name__, str(cause)
    failed = kind != "NotImplemented" and _IN_A_NODE in text
    broken = failed or (kind == "InvalidGraph" and "not a registered" not in text)
    return f"PyTorch runs, and ONNX Runtime does not ({describe_error(cause)})" if broken else None


def _measure(ours: Any, theirs: Any) -> float:
    """Return how far two arrays are apart at most, as a part of the largest number of the second.

    Where the second has no number, or one that stands for infinity, the first may have anything.
    """
    a, b = (np.asarray(array, np.float64).ravel() for array in (ours, theirs))
    known = np.isfinite(b) & (np.abs(b) < _HUGE)
    if not known.any():
        return 0.0
    apart = np.abs(np.nan_to_num(a[known], nan=np.inf, posinf=np.inf, neginf=np.inf) - b[known]).max()
    return float(apart / max(np.abs(b[known]).max(), _TINY))


def _measure_noise(request: ExportRequest, inputs: Inputs, expected: Sequence[Any]) -> list[float]:
    """Return how far noise, or chance, moves each output; without bounds where one gets another size."""
    from hieronnx.capture.noise import run_outputs

    worst = [0.0] * len(expected)
    for seed in _SEEDS:
        try:
            disturbed = run_outputs(request.model, *inputs, noise=seed)
        except Exception as error:  # of the model, which need not take every number
            _LOG.debug("the model does not run with noise: %s", describe_error(error))
            disturbed = run_outputs(request.model, *inputs, noise=seed, roundings=0)
            worst = [max(known, _UNKNOWN_NOISE) for known in worst]
        for number, theirs in enumerate(expected):
            ours = disturbed[number] if len(disturbed) == len(expected) else None
            moved = float("inf") if ours is None or ours.shape != theirs.shape else _measure(ours, theirs)
            worst[number] = max(worst[number], moved)
    return worst


def _describe(apart: float) -> str:
    if not np.isfinite(apart):
        return "no number where PyTorch gives one"
    return f"{apart:.0%} of its largest number off PyTorch's"
