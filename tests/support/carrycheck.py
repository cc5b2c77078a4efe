"""The measure of carry: is each node of a transformed file attributed to a call that made its values?

The truth about a file is found without any attribution: the file runs in ONNX Runtime with every tensor
exposed, the model runs in PyTorch with every operation logged, and a tensor is looked up among what PyTorch
made. Files of full precision are looked up as `valuecheck` does it. In others a tensor is what it is clearly
nearest to: of all that PyTorch made in this size, nothing of another call may be about as near.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from support.eager_oracle import EagerRun, Scope, run_model
from support.valuecheck import (
    Attributed,
    Made,
    Probe,
    Values,
    array_of,
    default_body_name,
    match_inputs,
    named_arrays,
    number_as_run,
    run_exposed,
    scripted_modules,
)

FARTHEST = {"half": 0.05, "int8": 0.35}
"""How far from what PyTorch made a tensor may be, as a share of the spread of its values."""
NOISE = {"half": 0.02, "int8": 0.2}
"""What is nearer to each other than this cannot be told apart in this precision."""
_SAME, _CLEAR = 2.0, 4.0
_EXACT = 1e-3
_HUGE = 3e4
_GIVEN = ("", -1)
"""In the place of a call: an input of the model or a parameter, which no call made."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of one output of one node: who made such values, and who had them."""

    graph: str
    output: str
    op_type: str
    siblings: tuple[str, ...]
    made_by: frozenset[Scope]
    had_by: frozenset[Scope]
    """The calls that were given these values, where the node only moves them."""
    serves: tuple[str, ...] = ()
    """The outputs of those who compute with the numbers, where the node quantizes for them."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How many outputs carry a call that made them, and those that do not."""

    right: int
    wrong: tuple[str, ...]
    sibling: tuple[str, ...]
    """Those of the wrong that are in a call which is not above any that made them."""
    unjudged: int

    @property
    def share(self) -> float:
        judged = self.right + len(self.wrong)
        return self.right / judged if judged else 1.0


class Eager:
    """One model's run in PyTorch, to be asked about many files."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._run = run_model(model, args, kwargs)
        self._given = [*self._run.calls["", 0].inputs, *model.parameters(), *model.buffers()]
        self._arrays = list(named_arrays(model, args, kwargs))
        self._made = Made(self._run, scripted_modules(model))
        self._near: dict[str, _Nearest] = {}

    def feeds(self, original: Path) -> dict[str, np.ndarray]:
        """Return the inputs of the original file."""
        return match_inputs(onnx.load(original), self._arrays, self._run.outputs)

    def find_truth(self, file: Path, feeds: Mapping[str, np.ndarray], precision: str) -> list[Truth]:
        """Find for each node output of a file who made its values; outputs that say nothing are left out."""
        proto = onnx.load(file)
        if precision == "int8":
            _leave_unrounded(proto)
        serves = _find_served(proto)
        probes, _ = run_exposed(proto, _fit_feeds(proto, feeds), default_body_name)
        if precision == "float":
            return [truth for probe in probes if (truth := self._look_up(probe)) is not None]
        if precision not in self._near:
            self._near[precision] = _Nearest(self._run, self._given, precision)
        near = self._near[precision]
        found = [truth for probe in probes if (truth := near.look_up(probe)) is not None]
        return [replace(truth, serves=serves.get(truth.output, ())) if not truth.graph else truth for truth in found]

    def _look_up(self, probe: Probe) -> Truth | None:
        telling = [run for run in probe.runs if not run.value.is_trivial]
        made_by = frozenset(scope for run in telling for scope in self._made.makers(run.value))
        if not made_by or {path for path, _ in made_by} & self._made.scripted:
            return None
        moves = all(run.only_moves for run in telling)
        had = frozenset(s for run in telling for s in self._made.holders(run.value)) if moves else frozenset()
        return _truth(probe, made_by, had)


def _leave_unrounded(proto: onnx.ModelProto) -> None:
    """Put in place of each quantization of an activation to be undone at once the clipping that it does.

    Rounding can destroy what a tensor says: a mask of -1e38 and the scores of an attention in one scale leave
    nothing of the scores.
    """
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    undone = {node.input[0] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    read = Counter(name for node in proto.graph.node for name in node.input if node.op_type != "DequantizeLinear")
    clipped = set()
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] in undone and not read[node.output[0]]:
            scale, zero = (held.get(name) for name in node.input[1:3])
            if scale is None or zero is None or scale.size > 1:
                continue
            ends = np.iinfo(zero.dtype)
            for bound in (ends.min, ends.max):
                name = f"{node.output[0]}/bound/{bound}"
                value = np.asarray((bound - zero.astype(np.float32)) * scale, scale.dtype).reshape(())
                proto.graph.initializer.append(numpy_helper.from_array(value, name))
                node.input.append(name)
            node.op_type, clipped = "Clip", clipped | {node.output[0]}
            del node.input[1:3], node.attribute[:]
        elif node.op_type == "DequantizeLinear" and node.input[0] in clipped:
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    kept = [value for value in proto.graph.value_info if value.name not in clipped]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)


def _find_served(proto: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Find what quantizes for others to compute with, and what those make.

    A layer that is taken out of the file must be given the float tensor and quantize it itself, so such a node may
    belong to those who read it. What is only turned back into floats changes a tensor for everybody.
    """
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in proto.graph.node:
        for name in node.input:
            readers[name].append(node)
    served = {}
    for node in proto.graph.node:
        reading = [reader for name in node.output for reader in readers[name]]
        turned_back = any(reader.op_type == "DequantizeLinear" for reader in reading)
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") and not turned_back:
            served[node.output[0]] = tuple(reader.output[0] for reader in reading)
    return served


def _truth(probe: Probe, made_by: frozenset[Scope], had_by: frozenset[Scope]) -> Truth:
    return Truth(probe.graph, probe.output, probe.op_type, probe.siblings, made_by, had_by)


def _fit_feeds(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs in the types that a transformed file declares."""
    declared = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    types = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in declared.items()}
    return {name: array.astype(types[name]) for name, array in feeds.items() if name in types}


def judge(truths: Iterable[Truth], attributed: Attributed) -> Verdicts:
    """Judge what each node is attributed to."""
    truths = list(truths)
    numbered = number_as_run(attributed, {truth.graph for truth in truths})
    right, unjudged, wrong, sibling = 0, 0, [], []
    for truth in truths:
        names = (truth.output, *truth.siblings)
        calls = next((numbered[key] for name in names if (key := (truth.graph, name)) in numbered), frozenset())
        if calls & truth.made_by or _is_above_served(truth, calls, numbered):
            right += 1
        elif calls & truth.had_by:
            unjudged += 1
        else:
            wrong.append(_describe(truth, calls))
            if not any(_is_above(path, made) for path, _ in calls for made, _ in truth.made_by):
                sibling.append(wrong[-1])
    return Verdicts(right, tuple(wrong), tuple(sibling), unjudged)


def _is_above_served(truth: Truth, calls: frozenset[Scope], numbered: Attributed) -> bool:
    """Say whether a node is where those are, all together, for whom it quantizes."""
    served = frozenset(call for name in truth.serves for call in numbered.get((truth.graph, name), ()))
    return bool(served) and _find_place(calls) == _find_place(served)


def _find_place(calls: Iterable[Scope]) -> list[str]:
    """Return the path that all calls have in common."""
    paths = [path.split(".") for path, _ in calls]
    shared = zip(*paths, strict=False)
    return [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, shared)]


def _describe(truth: Truth, calls: Iterable[Scope]) -> str:
    return f"{truth.op_type} {truth.graph}:{truth.output}: attributed to {_text(calls)}, made by {_text(truth.made_by)}"


def _text(scopes: Iterable[Scope]) -> str:
    return ", ".join(f"{path or '<root>'}@{number}" for path, number in sorted(scopes)) or "no call"


def _is_above(path: str, other: str) -> bool:
    return not path or other == path or other.startswith(path + ".")


class _Nearest:
    """What PyTorch made, by size, for finding what a tensor of lower precision is nearest to."""

    def __init__(self, run: EagerRun, given: Iterable[torch.Tensor], precision: str) -> None:
        self._farthest = FARTHEST[precision]
        made = [(output, op.scope) for op in run.operations for output in op.outputs]
        self._made = _Table([*made, *((tensor, _GIVEN) for tensor in given)], NOISE[precision])
        calls = run.calls.values()
        taken = [(tensor, call.scope) for call in calls for tensor in call.inputs]
        received = [(tensor, call.parent) for call in calls if call.parent for tensor in call.outputs]
        self._held = _Table([*taken, *received], 0.0)

    def look_up(self, probe: Probe) -> Truth | None:
        if not probe.runs or any(run.value.is_trivial for run in probe.runs):
            return None
        found = [self._made.find(run.value, self._farthest) for run in probe.runs]
        if not all(found) or any(_GIVEN in scopes for scopes in found):
            return None
        made_by = frozenset().union(*found)
        # A node that only moves values, in whatever type, has the same nearest tensor behind it.
        moves = all(
            any(i.flat.size == run.value.flat.size and self._made.find(i, self._farthest) == f for i in run.inputs)
            for run, f in zip(probe.runs, found, strict=True)
        )
        had: frozenset[Scope] = frozenset()
        if moves:
            had = frozenset().union(*(self._held.find_possible(run.value, self._farthest) for run in probe.runs))
        return _truth(probe, made_by, had)


class _Table:
    """Tensors by size, their values side by side."""

    def __init__(self, tensors: Iterable[tuple[torch.Tensor, Scope]], noise: float) -> None:
        self._noise = noise
        rows: dict[int, list[tuple[np.ndarray, Scope]]] = defaultdict(list)
        for tensor, scope in tensors:
            if tensor.layout is torch.strided and tensor.numel() > 2:
                values = Values(array_of(tensor))
                if not values.is_trivial:
                    rows[values.flat.size].append((_spread(values.flat), scope))
        self._rows = {size: np.stack([row for row, _ in found]) for size, found in rows.items()}
        self._sorted = {size: np.sort(found, axis=1) for size, found in self._rows.items()}
        self._scopes = {size: [scope for _, scope in found] for size, found in rows.items()}
        self._found: dict[int, tuple[Values, frozenset[Scope]]] = {}

    def find(self, values: Values, farthest: float) -> frozenset[Scope]:
        """Return the calls whose tensor this is, none where that is not clear."""
        key = id(values)
        if key not in self._found:
            self._found[key] = values, self._find(values, farthest)
        return self._found[key][1]

    def find_possible(self, values: Values, farthest: float) -> frozenset[Scope]:
        """Return the calls whose tensor this may be: all that are not clearly farther than the nearest."""
        if values.flat.size not in self._rows:
            return frozenset()
        nearest = self._nearest_by_scope(values.flat.size, self._measure(values))
        least = min(nearest.values())
        within = _CLEAR * least + 2 * _EXACT
        return frozenset(scope for scope, d in nearest.items() if d < within) if least <= farthest else frozenset()

    def _find(self, values: Values, farthest: float) -> frozenset[Scope]:
        size = values.flat.size
        if size not in self._rows:
            return frozenset()
        distances = self._measure(values)
        nearest = self._nearest_by_scope(size, distances)
        least = min(nearest.values())
        found = frozenset(scope for scope, d in nearest.items() if d <= _SAME * least + _EXACT)
        alike = self._nearest_by_scope(size, _distances(self._rows[size], self._rows[size][distances.argmin()]))
        unclear = [d for scope, d in nearest.items() if scope not in found and d < _CLEAR * least + 2 * _EXACT]
        unclear += [d for scope, d in alike.items() if scope not in found and d < self._noise]
        return frozenset() if least > farthest or unclear else found

    def _measure(self, values: Values) -> np.ndarray:
        size, flat = values.flat.size, _spread(values.flat)
        distances = _distances(self._rows[size], flat)
        if _is_integral(values.flat):  # sorted, all that was quantized looks alike
            return distances
        # Sorting brings everything nearer, so it must fit the better.
        return np.minimum(distances, 4 * _distances(self._sorted[size], np.sort(flat)))

    def _nearest_by_scope(self, size: int, distances: np.ndarray) -> dict[Scope, float]:
        nearest: dict[Scope, float] = {}
        for scope, distance in zip(self._scopes[size], distances, strict=True):
            nearest[scope] = min(float(distance), nearest.get(scope, np.inf))
        return nearest


def _distances(rows: np.ndarray, flat: np.ndarray) -> np.ndarray:
    return np.sqrt(((rows - flat) ** 2).mean(axis=1))


def _is_integral(flat: np.ndarray) -> bool:
    return bool(np.array_equal(flat, np.round(flat)))


def _spread(flat: np.ndarray) -> np.ndarray:
    """Return the values about their mean, in units of their spread: scale and zero point do not count."""
    plain = np.where(np.abs(flat) < _HUGE, flat, 0.0)
    spread = plain.std()
    return (plain - plain.mean()) / (spread if spread > 0 else 1.0)
