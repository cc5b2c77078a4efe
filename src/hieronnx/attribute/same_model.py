"""Whether a file is of a model: whether they have the same weights, and give the same on the same inputs.

An optimizer, half precision or quantization changes neither much; other weights, a layer more or a layer less change
one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hieronnx.attribute.by_value.inputs import array_of, list_choices, name_arguments
from hieronnx.attribute.holdings import is_telling
from hieronnx.attribute.weights import ModuleTable, compare_weights
from hieronnx.capture.untouched import untouched
from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.building import view_model
from hieronnx.graph.walks import walk_nodes
from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.records import CallId
from hieronnx.runtime.sessions import Array, Runner, open_runner

# How far apart outputs may be, as a part of their spread. Single precision leaves less than a ten-thousandth, half a
# thousandth and in deep models more, 8 bits some hundredths and more. Beyond it the weights must be the model's.
_ROUNDING = 0.002
_HALVING = 0.03
_QUANTIZING = 0.5
_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a file and a model have the same outputs and weights.

    Attributes:
        outputs: How far the outputs are apart, as a part of their spread; None if no two could be compared.
        proven: Whether the outputs alone say that the file is of the model, wherever its weights are from: they are the
            same, and can hardly be so by chance. Then the weights are not looked at.
        quantized: Whether the file computes with few bits.
        halved: Whether it computes in half precision.
        weights: The share of the file's weights that the model has.
        strange: How many weights of the file the model does not have, whatever their shape.
        unmatched: The modules with parameters of which the file has none.
    """

    outputs: float | None
    proven: bool
    quantized: bool
    halved: bool
    weights: float = 1.0
    strange: int = 0
    unmatched: tuple[CallId, ...] = ()

    @property
    def same_outputs(self) -> bool:
        """Whether the outputs are the same but for the precision."""
        farthest = _QUANTIZING if self.quantized else _HALVING if self.halved else _ROUNDING
        return self.outputs is not None and self.outputs <= farthest

    @property
    def near_outputs(self) -> bool:
        """Whether they are so near that no module can be missing which does much."""
        return self.outputs is not None and self.outputs <= (_QUANTIZING if self.quantized else _HALVING)


def check_same_model(
    opened: OpenedModel, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Agreement:
    """Run the file and the model once, and compare their outputs; and their weights where that does not suffice.

    Raises:
        InputError: If the model cannot be run on these inputs.
        HieronnxError: If the file cannot.
    """
    given = _run_model(model, args, kwargs)
    apart, telling = _compare_outputs(opened, name_arguments(model, args, kwargs), given)
    nodes = [node for _, node in walk_nodes(opened.model)]
    quantized = any(category_of(node.op_type, node.domain) == "quantization" for node in nodes)
    halved = any(_is_half(value) for node in nodes for value in (*node.inputs, *node.outputs))
    if apart is not None and telling and apart <= (_HALVING if halved or quantized else _ROUNDING):
        return Agreement(apart, True, quantized, halved)
    found = compare_weights(opened, model, view_model(opened.model), ModuleTable.of(model))
    return Agreement(apart, False, quantized, halved, found.agreement, len(found.strange), found.unmatched)


def _is_half(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in _HALF


def _run_model(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
    """Run the model and return its outputs."""
    try:
        with untouched(model, args, kwargs) as (positional, named):
            given = model(*positional, **named)
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        raise InputError(
            f"the model cannot be run on these inputs ({type(error).__name__}: {lines[0]}); give others, or use the "
            "strategy usage_based, which runs nothing"
        ) from error
    return [array_of(leaf) for leaf in tree_leaves(given) if _is_plain(leaf)]


def _is_plain(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.numel() > 0


_Compared: TypeAlias = tuple[float | None, bool]
"""How far outputs are apart, the worst of them, None if no two could be compared; and whether they are telling."""


def _compare_outputs(opened: OpenedModel, arguments: Sequence[tuple[str, Array]], given: Sequence[Array]) -> _Compared:
    """Compare the outputs, with the inputs in the places where they fit best."""
    with open_runner(opened) as runner:
        ways = list_choices(runner.inputs, arguments, opened.name)
        if len(ways) == 1:
            return _compare(runner.run(ways[0](arguments)).values(), given)
        best: _Compared = (None, False)
        for way in ways:
            apart, telling = _try(runner, way(arguments), given)
            if apart is not None and (best[0] is None or (apart, telling) < best):
                best = apart, telling
            if best[0] is not None and best[0] <= _ROUNDING:
                break
    return best


def _try(runner: Runner, feeds: Mapping[str, Array], given: Sequence[Array]) -> _Compared:
    try:
        return _compare(runner.run(feeds).values(), given)
    except HieronnxError:  # of several ways to feed a file most are wrong
        return None, False


def _compare(made: Iterable[object], given: Sequence[Array]) -> _Compared:
    """Compare each output of the file with those of the model that have its size."""
    apart, telling = [], False
    for array in made:
        if isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.size:
            alike = [other for other in given if other.size == array.size and other.dtype.kind in "biuf"]
            apart += [min(_distance(array, other) for other in alike)] if alike else []
            telling = telling or (bool(alike) and is_telling(array))
    return max(apart, default=None), telling


def _distance(ours: Array, theirs: Array) -> float:
    a, b = (np.nan_to_num(array.ravel().astype(np.float64), posinf=0, neginf=0) for array in (ours, theirs))
    apart = float(np.linalg.norm(a - b))
    spread = float(np.linalg.norm(b - b.mean()))
    return apart / (spread or float(np.linalg.norm(b)) or apart) if apart else 0.0
