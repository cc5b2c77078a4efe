"""Weights of two aligned models: by how much their contents differ, and whose they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy, find_common_path, find_owner
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.result import CompareResult, ValueAmount, ValueChange

_CHUNK = 1 << 20  # elements that are compared at once: contents may be larger than memory


def measure_weights(result: CompareResult, wiring: Wiring, a: Hierarchy | None, b: Hierarchy | None) -> CompareResult:
    """Return the comparison with the module of each initializer, and by how much contents differ if they count."""
    owners_a, owners_b = (
        {} if hierarchy is None else dict(_find_owners(side.view, hierarchy))
        for side, hierarchy in ((wiring.a, a), (wiring.b, b))
    )
    keys = {wiring.b.view.tensor_key(of_b): (of_a, of_b) for of_a, of_b in wiring.initializers}

    def locate(change: ValueChange) -> ValueChange:
        if change.role != "initializer":
            return change
        names = ((owners_b, change.after), (owners_a, change.before))
        module = next((owners[name] for owners, name in names if name in owners), None)
        if change.kind != "changed" or not result.compared_values:
            return replace(change, module=module)
        of_a, of_b = keys[change.graph, change.after or ""]
        return replace(change, module=module, amount=_measure(wiring.a.tensors[of_a], wiring.b.tensors[of_b]))

    return replace(result, values=tuple(map(locate, result.values)))


def _find_owners(view: View, hierarchy: Hierarchy) -> Iterator[tuple[str | None, str]]:
    """Yield the name of each initializer and its module: the parameter's, or the lowest above all that read it."""
    parameters = {item.name: item.parameter for item in hierarchy.initializers}
    for tensor in view.constants:
        parameter = parameters.get(view.names[tensor])
        if parameter:
            yield view.names[tensor], find_owner(hierarchy.modules, parameter)
            continue
        readers = (hierarchy.node_by_key.get(view.node_key(index)) for index in view.consumers[tensor])
        paths = {reader.scope.module for reader in readers if reader is not None}
        if paths:
            yield view.names[tensor], find_common_path(paths)


def _measure(a: ir.TensorProtocol | None, b: ir.TensorProtocol | None) -> ValueAmount | None:
    """Compare two tensors element by element; None where they are not numbers of one shape."""
    if a is None or b is None or tuple(a.shape) != tuple(b.shape):
        return None
    if ir.DataType.STRING in (a.dtype, b.dtype):
        return None
    left, right = (np.ascontiguousarray(tensor.numpy()).reshape(-1) for tensor in (a, b))
    different, largest, scale = 0, 0.0, 0.0
    for start in range(0, left.size, _CHUNK):
        of_a, of_b = (_widen(array[start : start + _CHUNK]) for array in (left, right))
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of one sign differ by nothing
            away = np.where((of_a == of_b) | (np.isnan(of_a) & np.isnan(of_b)), 0.0, np.abs(of_a - of_b))
        different += int(np.count_nonzero(away))
        largest = max(largest, float(np.max(np.where(np.isnan(away), np.inf, away))))
        scale = max(scale, float(np.max(np.nan_to_num(np.abs(of_a)))))
    if not math.isfinite(largest):
        return ValueAmount(left.size, different, None, None)
    return ValueAmount(left.size, different, largest, largest / scale if scale else None)


def _widen(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
