"""What calls received and returned, written into their records by the names that the tensors have in the file."""

from __future__ import annotations

from dataclasses import replace

from hieronnx.capture.calls import CallIO, NumberedTensors
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import BoundTensor, Call


def add_tensors(call: Call, passed: CallIO | None, view: View) -> Call:
    """Add to a call what it received and returned, given by numbers in the view; nothing where that is not known."""
    if passed is None:
        return call
    return replace(call, received=_bind(passed.received, view), returned=_bind(passed.returned, view))


def _bind(tensors: NumberedTensors | None, view: View) -> tuple[BoundTensor, ...] | None:
    if tensors is None:
        return None
    keys = ((name, ("", None) if tensor is None else view.tensor_key(tensor)) for name, tensor in tensors)
    return tuple(BoundTensor(name, tensor, graph) for name, (graph, tensor) in keys)
