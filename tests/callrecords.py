"""What every module call received and returned in eager PyTorch, what the whole file computes, and a part against both.

A part is fed twice: with the whole file's own tensors, when it must give the file's own tensors bit for bit; and with
what the module call received, found by value alone, when it must give what the call returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn

from hieronnx._extract import Extractor
from hieronnx._extraction import Extraction
from hieronnx._parts.find import Part
from hieronnx.capture.eager import log_eager
from hieronnx.graph import NO_TENSOR, View
from hieronnx.hierarchy import CallId
from valuecheck import array_of, match_inputs, named_arrays, number_as_run, read_tensors

Arrays = Sequence[np.ndarray]


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
    log = log_eager(model, args, kwargs, parts=True)
    made: dict[CallId, list[np.ndarray]] = defaultdict(list)
    for op in log.ops:
        made[op.scope] += _arrays(op.outputs)
    calls = {CallId(c.module, c.index): CallRecord(_arrays(c.inputs), _arrays(c.outputs)) for c in log.calls}
    return EagerRun(calls, made, log.calls[0].outputs)


def _arrays(tensors: Iterable[torch.Tensor]) -> Arrays:
    return [array_of(tensor) for tensor in tensors if tensor.layout is torch.strided]


@dataclass
class Verdicts:
    """What was found of the parts of one file, call by call."""

    equal: list[str] = field(default_factory=list)
    """Fed as PyTorch was, they give what PyTorch gave; and bit for bit what the file gives."""
    empty: dict[str, str] = field(default_factory=dict)
    """Calls without nodes, and what became of them."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Calls that eager PyTorch did not make, or not visibly; checked against the file alone."""
    hoisted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    extra: dict[str, list[str]] = field(default_factory=dict)
    """Outputs that the call did not return: what others read of its insides."""
    fused: dict[str, str] = field(default_factory=dict)
    """Calls whose edge is fused with another call's, with that call."""
    wrong: dict[str, str] = field(default_factory=dict)


class PartCheck:
    """One exported file, run once as a whole, to check the parts of it against."""

    def __init__(
        self, path: Path, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], tolerance: float
    ) -> None:
        self.extractor = Extractor(path)
        self.eager = run_eagerly(model, args, kwargs)
        self._model, self._tolerance = model, tolerance
        proto = onnx.load(path)
        feeds = match_inputs(proto, named_arrays(model, args, kwargs), self.eager.outputs)
        self.tensors = read_tensors(proto, feeds)
        self._runs = self._number_runs()
        self._sessions: dict[tuple[Any, ...], ort.InferenceSession] = {}

    def _number_runs(self) -> dict[CallId, CallId]:
        """Return each call as the eager run numbers it: a run takes one branch of an If, and the file has both."""
        seen = {graph for graph, _ in self.tensors}
        nodes = self.extractor.hierarchy.nodes
        attributed = {(n.graph, n.output): frozenset({tuple(n.scope), *map(tuple, n.origins)}) for n in nodes}
        numbered = number_as_run(attributed, seen)
        found = {}
        for key, scopes in attributed.items():
            if key[0] in seen:
                found.update(zip(sorted(scopes), sorted(numbered[key]), strict=True))
        return {CallId(*old): CallId(*new) for old, new in found.items()}

    def check_all(self) -> Verdicts:
        """Check every call of the file."""
        verdicts = Verdicts()
        for call in self.extractor.hierarchy.calls:
            name = str(call.id) or "<root>"
            part = self.extractor.find(call.id)
            if part is None:
                verdicts.empty[name] = self.extractor.describe_fate(call.id)
                continue
            try:
                self._check(name, call.id, part, verdicts)
            except AssertionError as error:
                verdicts.wrong[name] = str(error)
        self._sessions.clear()  # thousands of them would add up
        return verdicts

    def _check(self, name: str, call: CallId, part: Part, verdicts: Verdicts) -> None:
        extraction, session = self._open(call, part)
        hoisted = {item.name for item in extraction.hoisted}
        if hoisted:
            verdicts.hoisted[name] = tuple(sorted(hoisted))
        steps = self._steps(part)
        if steps == 0:
            verdicts.unseen[name] = "in a branch that is not taken"
            self._check_alone(call, session)
            return
        for step in range(steps):
            feeds = {name: self._value(part, name, step) for name in extraction.external_inputs}
            given = session.run(None, feeds)
            for output, array in zip(extraction.outputs, given, strict=True):
                expected = self._value(part, output, step)
                assert _identical(array, expected), f"{output} is not bit for bit what the whole file gives"
            record = self._record(call, step)
            if record is None or not record.returned:
                verdicts.unseen[name] = "eager PyTorch shows no tensors of it"
                self._check_alone(call, session)
                return
            eager = {key: self._received(extraction, key, feeds[key], record, step, verdicts) for key in feeds}
            given = session.run(None, eager)
            self._check_returned(name, extraction, given, record, step, verdicts)
        verdicts.equal.append(name)

    def _check_alone(self, call: CallId, session: ort.InferenceSession) -> None:
        """Compare a part with the module run by itself, on numbers of its own: there are no others to be had."""
        (wanted,) = session.get_inputs()
        x = np.random.default_rng(0).standard_normal(wanted.shape).astype(np.float32)
        with torch.no_grad():
            expected = array_of(self._model.get_submodule(call.module)(torch.from_numpy(x)))
        (given,) = session.run(None, {wanted.name: x})
        assert self._equal(given, expected), "by itself the module gives something else"

    def _record(self, call: CallId, step: int = 0) -> CallRecord | None:
        run = self._runs.get(call, call)
        return self.eager.calls.get(CallId(run.module, run.number + step))

    def _received(
        self, extraction: Extraction, name: str, array: np.ndarray, record: CallRecord, step: int, verdicts: Verdicts
    ) -> np.ndarray:
        """Return what the call received as this input; of a size, and of what fused nodes read, the file's own."""
        found = next((a for a in record.received if self._equal(a, array)), None)
        if found is None and any(item.name == name for item in extraction.hoisted):
            return array
        if found is None:
            readers = self._fused(extraction, lambda index: name in self._names(self._view.reads(index)))
            found = next((a for a in self._known_to(readers, step) if self._equal(a, array)), None)
            verdicts.fused[str(CallId(extraction.module, extraction.call))] = ", ".join(map(str, readers))
        received = [(a.shape, str(a.dtype)) for a in record.received]
        assert found is not None, f"asks for {name} {array.shape} {array.dtype}; received: {received}"
        return found

    def _check_returned(
        self,
        name: str,
        extraction: Extraction,
        given: Arrays,
        record: CallRecord,
        step: int,
        verdicts: Verdicts,
    ) -> None:
        """Every output is what the call returned; or, of a fused node, what the calls that it stands for returned."""
        returned = 0
        for output, array in zip(extraction.outputs, given, strict=True):
            makers = self._fused(extraction, lambda index, output=output: output in self._made(index))
            if any(self._equal(a, array) for a in record.returned):
                returned += 1
            elif makers and any(self._equal(a, array) for a in self._known_to(makers, step)):
                returned += 1
                verdicts.fused[name] = ", ".join(map(str, makers))
            else:
                below = self.extractor.source.below(CallId(extraction.module, extraction.call))
                inner = (*record.received, *self._known_to(below, step))
                assert any(self._equal(a, array) for a in inner), f"{output} is nothing that the call had or made"
                verdicts.extra.setdefault(name, []).append(output)
        assert returned, f"no output is what was returned: {extraction.outputs}"

    def _fused(self, extraction: Extraction, concerns: Callable[[int], bool]) -> list[CallId]:
        """Return the calls outside that have part in the nodes in question, if all of them are shared."""
        below = set(self.extractor.source.below(CallId(extraction.module, extraction.call)))
        nodes = self.extractor.source.attributions
        part = self.extractor.find(CallId(extraction.module, extraction.call))
        assert part is not None
        outside = [[o for o in nodes[i].origins if o not in below] for i in part.region if concerns(i)]
        return list(dict.fromkeys(o for found in outside for o in found)) if all(outside) else []

    def _known_to(self, calls: Iterable[CallId], step: int) -> Iterator[np.ndarray]:
        for call in calls:
            for below in self.extractor.source.below(call):
                run = self._runs.get(below, below)
                yield from self.eager.made.get(CallId(run.module, run.number + step), ())
            record = self._record(call, step)
            if record is not None:
                yield from (*record.received, *record.returned)

    @property
    def _view(self) -> View:
        return self.extractor.source.view

    def _names(self, tensors: Iterable[int]) -> set[str]:
        return {self._view.names[tensor] for tensor in tensors}

    def _made(self, index: int) -> set[str]:
        return self._names(t for t in self._view.nodes[index].outputs if t != NO_TENSOR)

    # Composition ---------------------------------------------------------------------------------------

    def find_misfits(self) -> list[str]:
        """Return what a part reads of a sibling that the sibling's part does not give."""
        source, misfits = self.extractor.source, []
        for children in source.calls_below.values():
            parts = [part for child in children if (part := self.extractor.find(child)) is not None]
            makers = {t: part for part in parts for i in part.region for t in self._view.nodes[i].outputs}
            for part in parts:
                for tensor in part.inputs:
                    if tensor in makers and tensor not in makers[tensor].outputs:
                        misfits.append(f"{part.call} reads {self._view.names[tensor]} of {makers[tensor].call}")
        return misfits

    def composable(self) -> list[CallId]:
        """Return the calls of the main graph that have no nodes but those of the calls that they make."""
        found = []
        for call, children in self.extractor.source.calls_below.items():
            part = self.extractor.find(call)
            parts = [below for child in children if (below := self.extractor.find(child)) is not None]
            if part is not None and part.graphs == {0} and len(parts) > 1:
                inner = {index for below in parts for index in below.region}
                if inner.issuperset(part.region):
                    found.append(call)
        return found

    def compose(self, call: CallId) -> None:
        """Run the parts of the calls that a call makes, one after the other: they give the call's own tensors."""
        whole = self.extractor.find(call)
        assert whole is not None
        known = {name: self._value(whole, name, 0) for name in map(self._view.names.__getitem__, whole.inputs)}
        for child in self.extractor.source.calls_below[call]:
            part = self.extractor.find(child)
            if part is not None:
                extraction, session = self._open(child, part)
                given = session.run(None, {name: known[name] for name in extraction.external_inputs})
                known |= dict(zip(extraction.outputs, given, strict=True))
        for name in map(self._view.names.__getitem__, whole.outputs):
            assert _identical(known[name], self._value(whole, name, 0)), name

    def _open(self, call: CallId, part: Part) -> tuple[Extraction, ort.InferenceSession]:
        extraction = self.extractor.extract(self.extractor.hierarchy.call_by_id[call])
        key = tuple(part.nodes), part.inputs, part.outputs  # calls of the same nodes need one session
        if key not in self._sessions:
            self._sessions[key] = open_session(extraction.model)
        return extraction, self._sessions[key]

    def _steps(self, part: Part) -> int:
        keys = [self.extractor.source.view.node_key(index) for index in part.region]
        return min(len(self.tensors.get(key, ())) for key in keys)

    def _value(self, part: Part, name: str, step: int) -> np.ndarray:
        graphs = sorted(part.graphs, key=lambda g: -len(self.extractor.source.view.graphs[g].key))
        for graph in graphs:
            values = self.tensors.get((self.extractor.source.view.graphs[graph].key, name))
            if values:
                return values[step if len(values) > 1 else 0]
        raise AssertionError(f"the whole file shows no {name}")

    def _equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        return a.shape == b.shape and a.dtype == b.dtype and _near(a, b, self._tolerance)


def open_session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """Open a model in ONNX Runtime, as it is."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    held = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(held, options, providers=["CPUExecutionProvider"])


def _identical(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _near(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, rtol=1e-3, atol=tolerance, equal_nan=True))
