"""How much work each kernel does: multiply-adds and bytes, by the sizes that its tensors had when it ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from hieronnx.graph.operators import LOOKUP_OPS, RESHAPE_OPS, SIZE_OPS
from hieronnx.runtime.profiles import TraceEvent
from hieronnx.tools.analyze.initializers import measure_initializer
from hieronnx.tools.analyze.multiply_adds import Operation, Shape, count_multiply_adds, needs_shapes

# ONNX Runtime does these without touching an element: the result is the same memory under another shape.
_NOTHING_MOVED = RESHAPE_OPS | SIZE_OPS | {"Identity", "If", "Loop", "Scan"}


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel does in one run of the model.

    Attributes:
        multiply_adds: of all its iterations; None where they are not known.
        bytes: that it reads and writes, weights included.
        peak_memory: the most bytes in use when one of its iterations ended; None where ONNX Runtime does not say.
        allocated: the bytes that it asked for and did not give back; None where ONNX Runtime does not say.
    """

    multiply_adds: int | None
    bytes: int
    peak_memory: int | None
    allocated: int | None


def measure_kernel(
    node: ir.Node | None, events: Sequence[TraceEvent], *, filled_up: bool = False, of_model: int | None = None
) -> KernelWork:
    """Measure what a kernel does by the events of one run.

    Args:
        node: The node that ran; None where it is not known.
        events: Each time that it ran.
        filled_up: Whether zeros fill its tensors up, so that their sizes are not the model's.
        of_model: The multiply-adds of the model's nodes that it does then, each time; None where they are not known.
    """
    counts: list[int | None] = [of_model] * len(events)
    if not filled_up:
        counts = [None if node is None else _count(node, event) for event in events]
    says = [event.args for event in events]
    peaks = [item.mem_bytes_in_use for item in says if item.mem_bytes_in_use is not None]
    asked = [item.mem_requested_in_use_delta for item in says if item.mem_requested_in_use_delta is not None]
    known = [count for count in counts if count is not None]
    return KernelWork(
        multiply_adds=sum(known) if len(known) == len(counts) else None,
        bytes=sum(_count_bytes(node, event) for event in events),
        peak_memory=max(peaks, default=None),
        allocated=sum(max(more, 0) for more in asked) if asked else None,
    )


def _count(node: ir.Node, event: TraceEvent) -> int | None:
    if not needs_shapes(node.op_type, node.domain):
        return 0 if count_multiply_adds(Operation(node.op_type, node.domain, (), (), {})) == 0 else None
    inputs = list(_align_inputs(node, event.args.input_shapes))
    attributes = {name: attribute.value for name, attribute in node.attributes.items() if not attribute.is_ref()}
    made = iter(event.args.output_shapes)
    shapes: list[Shape | None] = [tuple(next(made, ())) if value.name else () for value in node.outputs]
    count = count_multiply_adds(Operation(node.op_type, node.domain, inputs, shapes, attributes))
    return count if isinstance(count, int) else None


def _align_inputs(node: ir.Node, given: Sequence[Sequence[int]]) -> Iterator[Shape | None]:
    """Yield the shape of each input; weights that a kernel keeps in a form of its own are not in the event.

    These are left out in their places: of what is there, an initializer takes only a shape that is its own, and none
    where fewer shapes are left than inputs that must have one.
    """
    present = [value for value in node.inputs if value is not None and value.name]
    absent = len(present) - len(given)
    shapes = iter(given)
    upcoming = next(shapes, None)
    for value in node.inputs:
        if value is None or not value.name:
            yield ()
            continue
        own = _static_shape(value)
        if absent > 0 and own is not None and (upcoming is None or tuple(upcoming) != own or _is_packed(value)):
            absent -= 1
            yield own
            continue
        yield own if upcoming is None else tuple(upcoming)
        upcoming = next(shapes, None)


def _static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape of an initializer; None for what is computed."""
    if value.const_value is None or value.shape is None:
        return None
    return tuple(dim for dim in value.shape if isinstance(dim, int))


def _is_packed(value: ir.Value) -> bool:
    """Say whether an initializer may be one that a kernel keeps in its own form: those have two axes or more."""
    return len(value.shape or ()) > 1


def _count_bytes(node: ir.Node | None, event: TraceEvent) -> int:
    """Count the bytes that one iteration reads and writes; of a table that is looked up in only what is taken."""
    if node is None:
        return event.args.activation_size + event.args.output_size
    if node.op_type in _NOTHING_MOVED and not node.domain:
        return 0
    weights = sum(
        measure_initializer(value)[1] for value in node.inputs if value is not None and value.const_value is not None
    )
    if node.op_type in LOOKUP_OPS:
        weights = min(weights, event.args.output_size)
    return event.args.activation_size + event.args.output_size + weights


def find_input_shapes(
    model: ir.Model, kernels: Iterable[tuple[ir.Node, Sequence[TraceEvent]]]
) -> dict[str, tuple[int, ...]]:
    """Find the shapes that a model's inputs had, by the kernels that read them."""
    inputs = {value: value.name or "" for value in model.graph.inputs}
    found: dict[str, tuple[int, ...]] = {}
    for node, events in kernels:
        if events and any(value in inputs for value in node.inputs if value is not None):
            shapes = _align_inputs(node, events[0].args.input_shapes)
            for value, shape in zip(node.inputs, shapes, strict=True):
                if value in inputs and shape is not None:
                    found[inputs[value]] = tuple(size for size in shape if isinstance(size, int))
    return found
