"""What a file is held to: a model in PyTorch, or another ONNX file, run on the same sample."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from hieronnx.errors import InputError, describe_error
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import BoundTensor, CallId
from hieronnx.runtime.sessions import Runner
from hieronnx.tools.verify.boundaries import Exchanged, ReferenceValues, find_boundaries
from hieronnx.tools.verify.deviation import fit
from hieronnx.tools.verify.judging import Noise
from hieronnx.tools.verify.observing import Observation
from hieronnx.tools.verify.untold import Untold

if TYPE_CHECKING:
    from torch import nn

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
NoiseTable: TypeAlias = Mapping[Hashable, Noise]
"""The noise of the reference: by call and place, and by the key of a value since the nearest that the file has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One set of inputs: for the file by name, and for a model in PyTorch as its arguments."""

    feeds: Mapping[str, Array]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    is_given: bool = True
    """Whether somebody gave them, and they were not drawn at random."""


class Reference(Protocol):
    """What a file is held to."""

    def run(self, sample: Sample) -> ReferenceValues:
        """Run it on a sample; return what its calls exchanged."""

    def measure_noise(self, sample: Sample, calls: Collection[CallId], known: Collection[Hashable]) -> NoiseTable:
        """Measure how far its own rounding takes what these calls return, and each value that the file has."""


class TorchReference:
    """A model in PyTorch."""

    def __init__(self, model: nn.Module, *, float64: bool = True) -> None:
        self._model, self._float64 = model, float64

    def run(self, sample: Sample) -> ReferenceValues:
        """Run the model on a sample.

        Raises:
            InputError: If it cannot be run on that.
        """
        from hieronnx.capture.reference import run_reference

        try:
            run = run_reference(self._model, sample.args, sample.kwargs)
        except Exception as error:
            reason = describe_error(error)
            raise InputError(f"the model cannot be run on these inputs ({reason}); give others") from error
        calls = {
            call: Exchanged(
                *({name: key for name, key in named or () if key is not None} for named in (io.received, io.returned))
            )
            for call, io in run.calls.items()
        }
        return ReferenceValues(calls, run.values)

    def measure_noise(self, sample: Sample, calls: Collection[CallId], known: Collection[Hashable]) -> NoiseTable:
        """Run it again in double precision beside its own; nothing where that is not wanted."""
        from hieronnx.capture.reference import run_reference

        if not self._float64:
            return {}
        run = run_reference(self._model, sample.args, sample.kwargs, watched=calls, boundaries=known, keep=False)
        return run.noise


class FileReference:
    """Another ONNX file of the same calls."""

    def __init__(self, runner: Runner, hierarchy: Hierarchy, *, buffer: int) -> None:
        self._runner, self._hierarchy, self._buffer = runner, hierarchy, buffer
        self._untold = Untold("reference", hierarchy, runner.find_readers)

    def run(self, sample: Sample) -> ReferenceValues:
        """Run the file on a sample.

        Raises:
            HieronnxError: If it cannot be run on that.
        """
        feeds = self._fit(sample)
        values: dict[Hashable, Array] = {("", name): array for name, array in feeds.items()}
        wanted = {
            (bound.graph, bound.tensor)
            for call in self._hierarchy.calls
            for bound in (*(call.received or ()), *(call.returned or ()))
        }

        def visit(graph: str, name: str, array: Array) -> None:
            values.setdefault((graph, name), np.array(array))

        self._runner.run_exposed(feeds, visit, wanted=lambda graph, name: (graph, name) in wanted)

        def name_all(bound: tuple[BoundTensor, ...] | None) -> dict[str, Hashable]:
            keys = {item.name: (item.graph, item.tensor) for item in bound or ()}
            return {name: key for name, key in keys.items() if key in values}

        calls = {c.id: Exchanged(name_all(c.received), name_all(c.returned)) for c in self._hierarchy.calls}
        return ReferenceValues(calls, values, "the reference has no such call", self._explain_missing)

    def _explain_missing(self, call: CallId, place: str, is_output: bool) -> str:
        returned = self._hierarchy.call_by_id[call].returned
        if returned is None:
            return "what it returned was not recorded in the reference"
        item = next((item for item in returned if item.name == place), None)
        if item is None:
            return "the reference returned no tensor there"
        if item.tensor is None:
            return self._untold.explain(call, is_output)
        if item.graph:
            return "what it returned is in a branch of the reference that is not taken, or out of reach in a function"
        return "what it returned is a constant of the reference, or no tensor there"

    def _fit(self, sample: Sample) -> dict[str, Array]:
        """Return the inputs in the types that this file takes: one of the two may take half floats."""
        types = {item.name: item.dtype for item in self._runner.inputs}
        return {name: _fit_floats(array, types.get(name)) for name, array in sample.feeds.items()}

    def measure_noise(self, sample: Sample, calls: Collection[CallId], known: Collection[Hashable]) -> NoiseTable:
        """Measure what its own format does, where that is a coarse one.

        Of single floats it does not: ONNX Runtime has few kernels in double precision.
        """
        if not self._runner.is_coarse:
            return {}
        feeds, values = self._fit(sample), self.run(sample)
        flat = self._runner.flatten(feeds)
        own = find_boundaries(self._hierarchy, flat, values, lambda _call: "", self._runner.find_readers)
        seen = Observation(self._runner, self._hierarchy, flat, own, values.values, feeds, buffer=self._buffer)
        seen.run()
        shared = set(known)
        own.known = {tensor: key for tensor, key in own.known.items() if key in shared}
        made: dict[CallId, dict[str, str]] = {}
        for call in calls:
            if places := {t: place for t, place in own.returned.get(call, {}).items() if t in own.known}:
                made[call] = places
        tensors = [tensor for tensor in own.known if tensor in seen.graph.producers]
        slices = [seen.cut_call(call, list(places)) for call, places in made.items()]
        found = seen.measure_noise([*slices, *map(seen.cut_segment, tensors)], singles=False)
        table: dict[Hashable, Noise] = {}
        for (call, places), noise in zip(made.items(), found, strict=False):
            table.update(((call, places[tensor]), item) for tensor, item in noise.items())
        for tensor, noise in zip(tensors, found[len(made) :], strict=True):
            table.update((own.known[tensor], item) for item in noise.values())
        return table


def _fit_floats(array: Array, dtype: np.dtype[Any] | None) -> Array:
    """Return floats in the precision of a type of floats; all else as it is."""
    return array if dtype is None or {array.dtype.kind, dtype.kind} != {"f"} else fit(array, dtype)
