"""What the calls of a file are recorded to have received and returned, against an eager run of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor

import hieronnx
from hieronnx.capture.calls import CallRecorder, IORecorder, NumberedTensors, module_calls_through
from hieronnx.capture.eager import _without_fast_path
from hieronnx.capture.untouched import copy_inputs
from hieronnx.hierarchy.records import BoundTensor, CallId
from support.callrecords import equal, largest_error, number_calls
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


class _EagerPasses:
    """One eager run: the tensors that each call received and returned, copied at once."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.arrays: list[np.ndarray] = []
        self._calls = CallRecorder(model)
        self._recorder = IORecorder(self._copy)
        inputs, named = copy_inputs(tuple(args), dict(kwargs))
        with (
            torch.random.fork_rng(),
            torch.no_grad(),
            torch.compiler.set_stance("force_eager"),
            _without_fast_path(),
            module_calls_through(self._run),
        ):
            self.result = model(*inputs, **named)
        self.exchanges = self._recorder.calls

    def _copy(self, tensors: Sequence[torch.Tensor]) -> Iterable[int | None]:
        for tensor in tensors:
            if is_functorch_wrapped_tensor(tensor):  # inside vmap a tensor stands for one of many
                yield None
                continue
            self.arrays.append(array_of(tensor.detach().clone()))
            yield len(self.arrays) - 1

    def _run(self, call: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entered = self._calls.enter(module)
        if entered is None:
            return call(module, *args, **kwargs)
        self._recorder.note_received(entered, module, args, kwargs)
        result = call(module, *args, **kwargs)
        self._recorder.note_returned(entered, result)
        self._calls.leave(entered)
        return result


def check_boundaries(path: Path, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Boundaries:
    """Run the file and the model, and compare every tensor that is recorded with what the call really had."""
    eager = _EagerPasses(model, args, kwargs)
    proto = onnx.load(path)
    given = eager.exchanges[CallId("", 0)].returned or ()
    outputs = [torch.from_numpy(eager.arrays[number]) for _, number in given if number is not None]
    tensors = read_tensors(proto, match_inputs(proto, named_arrays(model, args, kwargs), outputs))
    made = [tensors["", output.name][0] for output in proto.graph.output]
    error = largest_error(made, [array_of(t) for t in outputs])
    hierarchy = hieronnx.load(path)
    runs = number_calls(hierarchy, {graph for graph, _ in tensors})
    found = Boundaries()
    for call in hierarchy.calls:
        had = eager.exchanges.get(runs.get(call.id, call.id))
        if call.received is None and call.returned is None:
            found.unrecorded.append(str(call.id))
        elif had is None:
            found.unseen.append(str(call.id))
        else:
            check = _Check(found, tensors, eager.arrays, error)
            check.compare(f"{call.id} takes", call.received, had.received)
            check.compare(f"{call.id} gives", call.returned, had.returned)
    return found


@dataclass
class _Check:
    found: Boundaries
    tensors: Mapping[tuple[str, str], Sequence[np.ndarray]]
    arrays: Sequence[np.ndarray]
    error: float

    def compare(self, what: str, passed: Sequence[BoundTensor] | None, had: NumberedTensors | None) -> None:
        if passed is None or had is None:
            self.found.unrecorded.append(what)
            return
        arrays = {name: None if number is None else self.arrays[number] for name, number in had}
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
