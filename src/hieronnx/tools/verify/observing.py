"""One sample on the file: what its tensors are as it runs, and what single calls give on the reference's values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import onnx

from hieronnx.errors import HieronnxError
from hieronnx.graph.walks import first_name
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.runtime.flattening import Flat
from hieronnx.runtime.orders import find_reversed_axis, has_open_orders, reverse_open_orders
from hieronnx.runtime.precise import dither, find_quantized, find_unknown, make_precise
from hieronnx.runtime.saturation import clips_products, has_signed_weights, undo_clipping
from hieronnx.runtime.sessions import Runner
from hieronnx.runtime.slices import JoinedSlices, Slice, SliceGraph, is_copy_of
from hieronnx.runtime.unrounded import has_range
from hieronnx.tools.verify.boundaries import Boundaries
from hieronnx.tools.verify.deviation import Deviation, fit, has_same_numbers, measure
from hieronnx.tools.verify.judging import UNKNOWN, Noise

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Feeds: TypeAlias = Mapping[str, Array]
HALF_TYPES = frozenset({np.dtype(np.float16)})


class Observation:
    """A flat file, one sample, and what the reference says of it.

    Attributes:
        accumulated: How far each known tensor is from the reference, as the file runs.
        lifted: The tensors in few bits that should hold numbers below zero, but cannot.
    """

    def __init__(
        self,
        runner: Runner,
        hierarchy: Hierarchy,
        flat: Flat,
        boundaries: Boundaries,
        values: Mapping[Hashable, Array],
        feeds: Feeds,
        *,
        buffer: int,
    ) -> None:
        self.graph = SliceGraph(flat.model)
        self._runner, self._hierarchy, self._flat = runner, hierarchy, flat
        self._boundaries, self._values, self._feeds, self._buffer = boundaries, values, feeds, buffer
        self._types: dict[str, np.dtype[Any]] = {name: array.dtype for name, array in feeds.items()}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, int] = {}
        self.accumulated: dict[str, Deviation] = {}
        self.outputs: dict[str, Array] = {}
        self.lifted: frozenset[str] = frozenset()

    @cached_property
    def nodes(self) -> list[Node | None]:
        """The node of the file that each node of the flat model is; None for a copy that was put in."""
        keys = {e.exposed: (e.graph, e.name) for e in self._flat.exposures}
        outputs = (first_name(node.output) for node in self.graph.nodes)
        return [self._hierarchy.node_by_key.get(keys.get(output, ("", ""))) for output in outputs]

    # -- as it runs

    def run(self) -> None:
        """Run the file, and compare all that is known, and was not compared before, with the reference."""
        exposures = {e.exposed: e for e in self._flat.exposures}
        new = (name for name in self._boundaries.known if name not in self.accumulated)
        wanted = [exposures[name] for name in new if name in exposures]
        for chunk in self._divide([e.exposed for e in wanted]):
            model = self._flat.expose([exposures[name] for name in chunk])
            names = [value.name for value in model.graph.output]
            run = self._runner.run_model(model, self._feeds, names)
            self._note_open_orders(model, run)
            for name, array in run.items():
                if name in self._boundaries.known:
                    self._types[name] = array.dtype
                    self._note_shape(name, array)
                    self.accumulated[name] = self._measure(name, array)
            self.outputs = {value.name: run[value.name] for value in self._flat.model.graph.output}
        for name, deviation in self.accumulated.items():
            if deviation.mismatch:  # it cannot be given to anyone
                self._boundaries.known.pop(name, None)

    def _note_shape(self, tensor: str, array: Array) -> None:
        """Note the shape of a tensor inside the file that has the reference's numbers in another shape.

        Optimizers make one of two Reshapes. A shape of an output is what people rely on.
        """
        expected = self._expected(tensor)
        if array.shape != expected.shape and tensor not in self._outputs and has_same_numbers(array, expected):
            self._shapes[tensor] = array.shape

    def _note_open_orders(self, model: onnx.ModelProto, run: Mapping[str, Array]) -> None:
        """Note the axes of tensors along which the file leaves the order open."""
        if has_open_orders(model):
            turned = self._runner.run_model(reverse_open_orders(model), self._feeds, list(run))
            axes = {name: find_reversed_axis(array, turned[name]) for name, array in run.items()}
            self._open.update((name, axis) for name, axis in axes.items() if axis is not None)

    def _measure(self, tensor: str, array: Array) -> Deviation:
        """Measure how far a tensor is from the reference; where its order is open, both are sorted."""
        return measure(tensor, self._settle(tensor, array), self._settle(tensor, self._expected(tensor)))

    def _settle(self, tensor: str, array: Array) -> Array:
        axis = self._open.get(tensor)
        return array if axis is None or axis >= array.ndim else np.sort(array, axis)

    @cached_property
    def _outputs(self) -> frozenset[str]:
        return frozenset(value.name for value in self._flat.model.graph.output)

    def unit(self, tensor: str) -> float:
        """Return half a unit in the last place, as a part of a tensor's size; of a coarse type that of single floats.

        What a coarse format makes is measured.
        """
        dtype = self._types[tensor]
        return min(float(np.finfo(dtype).eps), float(np.finfo(np.float32).eps)) / 2 if dtype.kind in "fc" else 0.0

    def count_numbers(self, tensor: str) -> int:
        """Return how many numbers a known tensor has."""
        return int(self._expected(tensor).size)

    def _expected(self, tensor: str) -> Array:
        values = self._values[self._boundaries.known[tensor]]
        if tensor in self._boundaries.layouts:
            values = values.transpose(self._boundaries.layouts[tensor])
        return values.reshape(self._shapes[tensor]) if tensor in self._shapes else values

    def _divide(self, tensors: Iterable[str]) -> Iterator[list[str]]:
        """Divide tensors so that the values of each group fit into the buffer."""
        group: list[str] = []
        held = 0
        for tensor in tensors:
            size = self._expected(tensor).nbytes
            if group and held + size > self._buffer:
                yield group
                group, held = [], 0
            group.append(tensor)
            held += size
        yield group

    def collect(self, tensors: Sequence[str]) -> dict[str, Array]:
        """Return what tensors should hold, where the reference knows; else what they hold as the file runs."""
        arrays = {t: self._feed(t) for t in tensors if t in self._feeds or t in self._boundaries.known}
        exposures = {e.exposed: e for e in self._flat.exposures}
        others = [t for t in tensors if t not in arrays and t in exposures]
        model = self._flat.expose([exposures[tensor] for tensor in others])
        return {**arrays, **self._runner.run_model(model, self._feeds, others)}

    # -- on the reference's values

    def cut_call(self, call: CallId, targets: Sequence[str]) -> Slice:
        """Return the slice of a call: from what the reference knows outside it, to what it returned."""
        below = set(self._hierarchy.tree.below(call))
        received = self._boundaries.received[call]

        def is_given(tensor: str) -> bool:
            return tensor in self._boundaries.known and (tensor in received or not self._is_made_in(tensor, below))

        return self.graph.cut(targets, is_given)

    def _is_made_in(self, tensor: str, calls: set[CallId]) -> bool:
        producer = self.graph.producers.get(tensor)
        node = None if producer is None else self.nodes[producer]
        return node is not None and node.scope in calls

    def cut_segment(self, tensor: str) -> Slice:
        """Return what leads to a known tensor from those nearest to it."""
        return self.graph.cut([tensor], lambda name: name in self._boundaries.known)

    def compute(self, slices: Sequence[Slice]) -> Iterator[tuple[str, Array]]:
        """Run slices on the reference's values; yield what their targets are then."""
        for _, joined, feeds in self._join_slices(slices):
            run = self._runner.run_model(joined.model, feeds, joined.names)
            yield from ((tensor, run.pop(name)) for made in joined.outputs for tensor, name in made.items())

    def run_slices(
        self, slices: Sequence[Slice], make: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda model: model
    ) -> list[list[Deviation]]:
        """Run slices, or what is made of them, on the reference's values; return how far their targets are from it."""
        deviations: list[list[Deviation]] = [[] for _ in slices]
        for chunk, joined, feeds in self._join_slices(slices):
            run = self._runner.run_model(make(joined.model), feeds, joined.names)
            for number, made in zip(chunk, joined.outputs, strict=True):
                for tensor, name in made.items():
                    deviations[number].append(self._measure(tensor, run.pop(name)))
        return deviations

    def measure_noise(
        self, slices: Sequence[Slice], *, singles: bool, draws: int = 1, keeps_ranges: bool = False
    ) -> list[dict[str, Noise]]:
        """Measure what the format's own rounding does to the targets of slices, as far as that can be known.

        Args:
            slices: The slices.
            singles: Whether the rounding of weights in single precision counts.
            draws: How often weights are moved at random; of few numbers, one draw may tell little.
            keeps_ranges: Whether numbers that a quantizer clips are no noise.
        """
        noise: list[dict[str, Noise]] = [{} for _ in slices]
        coarse, plain = [], []
        for number, piece in enumerate(slices):
            if self._has_unknown(piece):
                noise[number] = dict.fromkeys(piece.targets, UNKNOWN)
            elif self._is_coarse(piece):
                coarse.append(number)
            elif singles:
                plain.append(number)
        lifted = partial(is_copy_of, self.lifted)
        for numbers, is_coarse in ((coarse, True), (plain, False)):
            for chunk, joined, feeds in self._join_slices([slices[number] for number in numbers]):
                precise = joined.model
                if is_coarse:
                    precise = make_precise(joined.model, is_lifted=lifted, keeps_ranges=keeps_ranges)
                actual = self._runner.run_model(joined.model, feeds, joined.names)
                exact = actual if precise is joined.model else self._runner.run_model(precise, feeds, joined.names)
                dithered = list(self._run_dithered(precise, feeds, joined.names, singles=singles, draws=draws))
                for number, made in zip(chunk, joined.outputs, strict=True):
                    for tensor, name in made.items():
                        draws_of = [self._settle(tensor, run.pop(name)) for run in dithered]
                        before, undone = (self._settle(tensor, run[name]) for run in (actual, exact))
                        noise[numbers[number]][tensor] = _add_noise(before, undone, draws_of)
        return noise

    def _run_dithered(
        self, precise: onnx.ModelProto, feeds: Feeds, names: Sequence[str], *, singles: bool, draws: int
    ) -> Iterator[dict[str, Array]]:
        """Yield what a model gives with its weights moved, each time otherwise; one that no longer runs gives nothing.

        A number that is moved may be a size, or be compared with one.
        """
        for draw in range(draws):
            model = dither(precise, singles=singles, draw=draw)
            try:
                yield self._runner.run_model(model, feeds, names)
            except HieronnxError:
                continue

    def measure_clipping(self, slices: Sequence[Slice]) -> list[dict[str, float]]:
        """Measure what slices lose by sums that the runtime clips: for each target the root of the mean square."""
        lost: list[dict[str, float]] = [{} for _ in slices]
        if not (has_signed_weights(self.graph.model) and clips_products()):
            return lost
        for chunk, joined, feeds in self._join_slices(slices):
            models = (joined.model, undo_clipping(joined.model))
            clipped, exact = (self._runner.run_model(model, feeds, joined.names) for model in models)
            for number, made in zip(chunk, joined.outputs, strict=True):
                for tensor, name in made.items():
                    lost[number][tensor] = measure(tensor, clipped.pop(name), exact.pop(name)).rms
        return lost

    def has_ranges(self, piece: Slice) -> bool:
        """Say whether a slice makes numbers in few bits, in a range that was chosen when the file was made."""
        return any(has_range(self.graph.nodes[index]) for index in piece.nodes) and not self._has_unknown(piece)

    def _has_unknown(self, piece: Slice) -> bool:
        """Say whether a slice rounds in a way that cannot be undone."""
        return any(self.graph.nodes[index].op_type in self._unknown for index in piece.nodes)

    def _is_coarse(self, piece: Slice) -> bool:
        """Say whether a slice is in a format with less than single precision: its weights, or what it works on.

        What is rounded in the middle of single floats is no format, unless it is that of the weights: modules that
        stay in float hand on half precision.
        """
        if any(self._types[tensor] in HALF_TYPES for tensor in (*piece.fed, *piece.targets)):
            return True
        if self._has_half_weights and any(map(self.graph.is_rounded, piece.nodes)):
            return True
        return any(self.graph.nodes[i].op_type in self._quantized for i in piece.nodes) or any(
            self.graph.is_half(name) for i in piece.nodes for name in self.graph.reads[i]
        )

    @cached_property
    def _has_half_weights(self) -> bool:
        return any(self.graph.is_half(weight.name) for weight in self.graph.model.graph.initializer)

    @cached_property
    def _quantized(self) -> frozenset[str]:
        return find_quantized(self.graph.model)

    @cached_property
    def _unknown(self) -> frozenset[str]:
        return find_unknown(make_precise(self.graph.model))

    def _join_slices(self, slices: Sequence[Slice]) -> Iterator[tuple[list[int], JoinedSlices, Feeds]]:
        """Yield slices in one model, as many as fit into the buffer, with what to feed it."""
        for chunk in self._divide_slices(slices):
            chosen = [slices[number] for number in chunk]
            types = {t: onnx.helper.np_dtype_to_tensor_dtype(self._types[t]) for s in chosen for t in s.fed}
            joined = self.graph.join(chosen, types)
            yield chunk, joined, {name: self._feed(tensor) for name, tensor in joined.feeds.items()}

    def _feed(self, tensor: str) -> Array:
        if tensor in self._feeds:
            return self._feeds[tensor]
        return fit(self._expected(tensor), self._types[tensor])

    def _divide_slices(self, slices: Sequence[Slice]) -> Iterator[list[int]]:
        group: list[int] = []
        held = 0
        for number, piece in enumerate(slices):
            known = (t for t in (*piece.fed, *piece.targets) if t in self._boundaries.known and t not in self._feeds)
            size = sum(self._expected(tensor).nbytes for tensor in known)
            if group and held + size > self._buffer:
                yield group
                group, held = [], 0
            group.append(number)
            held += size
        if group:
            yield group


def _add_noise(actual: Array, precise: Array, dithered: Sequence[Array]) -> Noise:
    """Return what rounding does on the way and what rounded weights do, together.

    Where one of them leaves nothing that is finite, or of that shape, it cannot be told.
    """
    if not precise.size:
        return 0.0, 0.0
    fitting = [array for array in dithered if array.shape == precise.shape]
    if not fitting or actual.shape != precise.shape:
        return UNKNOWN
    wide = precise.astype(np.float64)
    parts = [np.abs(array.astype(np.float64) - wide) for array in (actual, np.stack(fitting))]
    found = [part[np.isfinite(part)] for part in parts]
    if not all(part.size for part in found):
        return UNKNOWN
    mean = math.hypot(*(float(np.sqrt(np.mean(np.square(part)))) for part in found))
    return mean, math.hypot(*(float(part.max()) for part in found))
