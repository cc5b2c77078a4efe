"""What every module call received and returned in eager PyTorch, and how near numbers must be to it.

The whole model's own error is the measure: no part may be further from PyTorch than the model as a whole is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from support import eager_oracle
from support.valuecheck import MASKED, array_of, number_as_run

Arrays = Sequence[np.ndarray]

# Inside a model errors may be larger than at its end, and sums are taken in another order than in PyTorch.
FACTOR, ROUNDINGS = 4.0, 32


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The tensors that one module call received and returned."""

    received: Arrays
    returned: Arrays


@dataclass(frozen=True, slots=True)
class EagerRun:
    """One eager run: what each module call received and returned, and what its own operations made."""

    calls: Mapping[CallId, CallRecord]
    made: Mapping[CallId, Arrays]
    outputs: Sequence[torch.Tensor]


def run_eagerly(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EagerRun:
    """Run the model once in eager PyTorch; tensors are copied at once, since operations may change them later."""
    run = eager_oracle.run_model(model, args, kwargs)
    made: dict[CallId, list[np.ndarray]] = defaultdict(list)
    for op in run.operations:
        made[CallId(*op.scope)] += _arrays(op.outputs)
    calls = {CallId(*c.scope): CallRecord(_arrays(c.inputs), _arrays(c.outputs)) for c in run.calls.values()}
    return EagerRun(calls, made, run.outputs)


def _arrays(tensors: Iterable[torch.Tensor]) -> Arrays:
    return [array_of(tensor) for tensor in tensors if tensor.layout is torch.strided]


def number_calls(hierarchy: Hierarchy, seen: set[str]) -> dict[CallId, CallId]:
    """Return each call as the eager run numbers it: a run takes one branch of an If, and the file has both."""
    attributed = {(n.graph, n.output): frozenset({tuple(n.scope), *map(tuple, n.origins)}) for n in hierarchy.nodes}
    numbered = number_as_run(attributed, seen)
    found = {}
    for key, scopes in attributed.items():
        if key[0] in seen:
            found.update(zip(sorted(scopes), sorted(numbered[key]), strict=True))
    return {CallId(*old): CallId(*new) for old, new in found.items()}


# -- comparing --------------------------------------------------------------------------------------------


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Say whether two arrays are the same bit for bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def largest_error(ours: Arrays, theirs: Arrays) -> float:
    """Return the largest absolute difference of the numbers of two lists of arrays."""
    return max((_differences(a, b).max(initial=0.0) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def equal(a: np.ndarray, b: np.ndarray, error: float) -> bool:
    """Say whether two arrays differ by no more than the whole model does, or than rounding makes them."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind not in "fc" or not a.size:
        return bool(np.array_equal(a, b))
    sizes = np.abs(b).astype(np.float64)
    plain = sizes[sizes < MASKED]
    rounding = ROUNDINGS * float(np.finfo(a.dtype).eps) * float(plain.max(initial=0.0))
    return bool(_differences(a, b).max() <= max(FACTOR * error, rounding))


def _differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how far each number is from the other; none where both are no number, or stand for the same infinity."""
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        same |= (np.abs(a) >= MASKED) & (np.abs(b) >= MASKED) & (np.sign(a) == np.sign(b))
        found: np.ndarray = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(found), np.inf, found)


def open_session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """Open a model in ONNX Runtime, as it is."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    held = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(held, options, providers=["CPUExecutionProvider"])
