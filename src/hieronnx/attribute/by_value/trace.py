"""The eager run as a graph of values: each with its fingerprints, the operation that made it, and who read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hieronnx.attribute.by_value.inputs import InputSet, array_of
from hieronnx.capture.eager import EagerLog, OpRecord, log_eager
from hieronnx.hierarchy.tags import CallSite
from hieronnx.match.fingerprints import Fingerprint, take_fingerprint

Prints: TypeAlias = tuple[Fingerprint, ...]
"""The fingerprints of one tensor, one for each set of inputs."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What the model did, the same on every set of inputs."""

    ops: tuple[OpRecord, ...]
    prints: Mapping[int, Prints]
    """By the numbers of the values."""
    producers: Mapping[int, int]
    readers: Mapping[int, Sequence[int]]
    parameters: Mapping[int, str]
    varying: frozenset[int]
    """The values that depend on the inputs."""
    sites: tuple[CallSite, ...]
    outputs: tuple[int, ...]
    sets: int
    """On how many sets of inputs the model did this."""

    def on_first(self) -> Trace:
        """Return the run on the first set of inputs alone."""
        return replace(self, prints={value: prints[:1] for value, prints in self.prints.items()}, sets=1)


def trace_runs(model: nn.Module, sets: Sequence[InputSet]) -> Trace:
    """Run the model on each set of inputs; a set on which it does other things than on the first is left out."""
    first = _log(model, sets[0])
    logs = [first]
    for inputs in sets[1:]:
        log = _log_if_possible(model, inputs)
        if log is not None and _same_steps(first, log):
            logs.append(log)
    prints: dict[int, Prints] = {}
    for records in zip(*(_records(log) for log in logs), strict=True):
        for position, number in enumerate(records[0][0]):
            found = [kept[position] for _, kept in records]
            if None not in found:
                prints[number] = tuple(found)
    for number, tensor in _parameters(model, first).items():
        found_one = _take(tensor)
        if found_one is not None:
            prints[number] = (found_one,) * len(logs)
    producers = {value: index for index, op in enumerate(first.ops) for value in op.gives}
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(first.ops):
        for value in op.reads:
            readers.setdefault(value, []).append(index)
    root = first.calls[0]
    return Trace(
        first.ops,
        prints,
        producers,
        readers,
        first.parameters,
        _find_varying(first),
        first.sites,
        root.gives,
        len(logs),
    )


def _log(model: nn.Module, inputs: InputSet) -> EagerLog:
    return log_eager(model, *inputs, keep=_take, parts=True)


def _log_if_possible(model: nn.Module, inputs: InputSet) -> EagerLog | None:
    """Run the model on inputs that nobody gave, and that it may refuse."""
    try:
        return _log(model, inputs)
    except Exception:
        return None


def _same_steps(a: EagerLog, b: EagerLog) -> bool:
    return [(op.op, op.scope, op.reads, op.gives) for op in a.ops] == [
        (op.op, op.scope, op.reads, op.gives) for op in b.ops
    ]


def _records(log: EagerLog) -> list[tuple[tuple[int, ...], tuple[Any, ...]]]:
    return [*((c.reads, c.inputs) for c in log.calls), *((op.gives, op.outputs) for op in log.ops)]


def _parameters(model: nn.Module, log: EagerLog) -> dict[int, Tensor]:
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {number: named[name] for number, name in log.parameters.items()}


def _take(tensor: Tensor) -> Fingerprint | None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
        return None
    return take_fingerprint(array_of(tensor))


def _find_varying(log: EagerLog) -> frozenset[int]:
    varying = set(log.calls[0].reads) - set(log.parameters)
    for op in log.ops:
        if not varying.isdisjoint(op.reads):
            varying.update(op.gives)
    return frozenset(varying)
