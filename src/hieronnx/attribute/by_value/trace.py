"""The eager run as a graph of values: each with its fingerprints, the operation that made it, and who read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hieronnx.capture.calls import CallIO
from hieronnx.capture.eager import EagerLog, OpRecord, array_of, log_eager
from hieronnx.capture.private_torch import pytree
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import CallSite
from hieronnx.match.fingerprints import Fingerprint, take_fingerprint

InputSet: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments by position and by name."""
Prints: TypeAlias = tuple[Fingerprint, ...]
"""The fingerprints of one tensor, one for each set of inputs."""
FilePrints: TypeAlias = Mapping[int, Sequence[Prints]]
"""Those of a file's tensors, by their numbers in its view: several where a body or function ran again."""


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
    passed: Mapping[CallId, CallIO]
    """What each call received and returned, by the numbers of the values."""
    sets: int
    """On how many sets of inputs the model did this."""

    def parameter_uses(self) -> Iterator[tuple[OpRecord, list[str]]]:
        """Yield the operations that do more with parameters than show them in another form, with the names of these."""
        shows = dict(self.parameters)
        for op in self.ops:
            names = sorted({shows[value] for value in op.reads if value in shows})
            if op.views and len(names) == 1:
                shows.update(dict.fromkeys(op.gives, names[0]))
            elif names:
                yield op, names


def trace_runs(model: nn.Module, sets: Sequence[InputSet]) -> Trace:
    """Run the model on each set of inputs; a set on which it does other things than on the first is left out."""
    run = partial(log_eager, model, keep=_take_fingerprint, parts=True)
    first = run(*sets[0])
    logs = [first]
    for inputs in sets[1:]:
        try:
            log = run(*inputs)
        except Exception:  # nobody gave these inputs: the model may refuse them in any way
            continue
        if _list_steps(log) == _list_steps(first) and log.passed == first.passed:
            logs.append(log)
    readers: dict[int, list[int]] = defaultdict(list)
    varying = set(first.calls[0].reads) - set(first.parameters)
    for index, op in enumerate(first.ops):
        for value in op.reads:
            readers[value].append(index)
        if not varying.isdisjoint(op.reads):
            varying.update(op.gives)
    return Trace(
        ops=first.ops,
        prints=_take_prints(model, logs),
        producers={value: index for index, op in enumerate(first.ops) for value in op.gives},
        readers=readers,
        parameters=first.parameters,
        varying=frozenset(varying),
        sites=first.sites,
        outputs=first.calls[0].gives,
        passed=first.passed,
        sets=len(logs),
    )


def _list_steps(log: EagerLog) -> list[tuple[Any, ...]]:
    return [(op.op, op.scope, op.reads, op.gives) for op in log.ops]


def _take_fingerprint(tensor: Tensor) -> Fingerprint | None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
        return None
    return take_fingerprint(array_of(tensor))


def _take_prints(model: nn.Module, logs: Sequence[EagerLog]) -> dict[int, Prints]:
    """Return the fingerprints of all values, parameters included, that have one on every set of inputs."""
    prints: dict[int, Prints] = {}
    kept = ([*((c.reads, c.inputs) for c in g.calls), *((op.gives, op.outputs) for op in g.ops)] for g in logs)
    for records in zip(*kept, strict=True):
        for position, number in enumerate(records[0][0]):
            taken = [values[position] for _, values in records]
            if None not in taken:
                prints[number] = tuple(taken)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for number, name in logs[0].parameters.items():
        if (print_ := _take_fingerprint(tensors[name])) is not None:
            prints[number] = (print_,) * len(logs)
    return prints


def vary(values: Any, seed: int = 1) -> Any:
    """Return inputs of the same kind with other values: what two different ones share is no coincidence.

    Floating-point numbers are drawn at the same scale; of whole numbers only those are used that are there.
    Scalars stay as they are: they may count something.
    """
    generator = torch.Generator().manual_seed(seed)
    return pytree.tree_map(lambda leaf: _vary_tensor(leaf, generator) if isinstance(leaf, Tensor) else leaf, values)


def _vary_tensor(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.numel() < 2 or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    if tensor.is_complex():
        parts = _vary_tensor(torch.view_as_real(tensor.detach().resolve_conj()), generator)
        return torch.view_as_complex(parts)
    if not tensor.is_floating_point():
        return _vary_whole(tensor, generator)
    present = tensor.detach().cpu().double()
    finite = present[torch.isfinite(present)]
    if not finite.numel() or torch.unique(finite).numel() <= 2:  # a mask, or a place that is to be filled
        return _vary_whole(tensor, generator)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    drawn = drawn * finite.std() + finite.mean()
    if finite.min() >= 0:  # pixels, lengths: what is never negative may have to be so
        drawn = drawn.abs().clamp(finite.min(), finite.max())
    return torch.where(torch.isfinite(present), drawn, present).to(tensor.dtype).to(tensor.device)


def _vary_whole(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Draw among the values that are there; a mask of ones alone gets a last place that is not shown."""
    present = tensor.detach().cpu()
    distinct: Tensor = torch.unique(present)
    if distinct.numel() == 1:
        varied = present.clone()
        if tensor.ndim >= 2 and tensor.shape[-1] > 1 and float(distinct[0]) == 1.0:
            varied.view(-1)[-1:] = 0
        return varied.to(tensor.device)
    if distinct.numel() == 2 and tensor.ndim >= 2:
        rows = present.flip(0)  # whole rows, so that none is all hidden
        if not torch.equal(rows, present):
            return rows.to(tensor.device)
    drawn = distinct[torch.randint(distinct.numel(), tensor.shape, generator=generator)]
    if distinct.numel() == 2:  # a sequence that begins hidden may have nothing to look at
        drawn[..., :1] = present[..., :1]
    return drawn.to(tensor.device)
