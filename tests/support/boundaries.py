"""What the calls of a file are recorded to have received and returned, against an eager run of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from torch import nn

import hieronnx
from hieronnx.hierarchy.records import BoundTensor
from support.callrecords import equal, largest_error, number_calls
from support.eager_oracle import NamedTensors, run_model
from support.valuecheck import array_of, match_inputs, named_arrays, read_tensors


@dataclass
class Boundaries:
    """What was found of the tensors that the calls of one file pass on."""

    right: int = 0
    absent: list[str] = field(default_factory=list)
    """Tensors that the file has no more, or of which that is not known."""
    unrecorded: list[str] = field(default_factory=list)
    """Calls of which nothing was recorded."""
    unseen: list[str] = field(default_factory=list)
    """What the eager run does not show: a branch that it did not take, a size that is a tensor while it is traced."""
    missing: list[str] = field(default_factory=list)
    """Tensors of the eager run that are not spoken of."""
    wrong: list[str] = field(default_factory=list)


def check_boundaries(path: Path, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Boundaries:
    """Run the file and the model, and compare every tensor that is recorded with what the call really had."""
    run = run_model(model, args, kwargs)
    proto = onnx.load(path)
    tensors = read_tensors(proto, match_inputs(proto, named_arrays(model, args, kwargs), run.outputs))
    made = [tensors["", output.name][0] for output in proto.graph.output]
    error = largest_error(made, [array_of(t) for t in run.outputs])
    hierarchy = hieronnx.load(path)
    runs = number_calls(hierarchy, {graph for graph, _ in tensors})
    found = Boundaries()
    for call in hierarchy.calls:
        had = run.calls.get(tuple(runs.get(call.id, call.id)))
        if call.received is None and call.returned is None:
            found.unrecorded.append(str(call.id))
        elif had is None:
            found.unseen.append(str(call.id))
        else:
            check = _Check(found, tensors, error)
            check.compare(f"{call.id} takes", call.received, had.received)
            check.compare(f"{call.id} gives", call.returned, had.returned)
    return found


@dataclass
class _Check:
    found: Boundaries
    tensors: Mapping[tuple[str, str], Sequence[np.ndarray]]
    error: float

    def compare(self, what: str, passed: Sequence[BoundTensor] | None, had: NamedTensors) -> None:
        if passed is None:
            self.found.unrecorded.append(what)
            return
        arrays = {name: None if tensor is None else array_of(tensor) for name, tensor in had}
        missing = arrays.keys() - {item.name for item in passed}
        self.found.missing += [f"{what} {name}" for name in arrays if name in missing]
        for item in passed:
            self._compare_one(f"{what} {item.name}", item, arrays.get(item.name))

    def _compare_one(self, what: str, item: BoundTensor, expected: np.ndarray | None) -> None:
        if item.tensor is None:
            self.found.absent.append(what)
            return
        values = self.tensors.get((item.graph, item.tensor))
        if not values:
            self.found.wrong.append(f"{what}: the file has no {item.tensor}")
        elif expected is None:
            self.found.unseen.append(what)
        elif not any(equal(value, expected, self.error) for value in values):
            self.found.wrong.append(f"{what}: {item.tensor} is {values[0].dtype}{values[0].shape}, and not that")
        else:
            self.found.right += 1
