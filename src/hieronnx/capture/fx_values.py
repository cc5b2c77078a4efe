"""Following the tensors that calls exchange through torch.export: from the trace to the raw ONNX graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hieronnx.attribute.carried import Carried
from hieronnx.capture import private_torch
from hieronnx.capture.passing import Exchange, PassRecorder
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId

_NUMBER = "hieronnx.value"


class FxValues:
    """Gives FX nodes numbers, in metadata that copies of a graph keep, and follows them where torch traces anew."""

    def __init__(self) -> None:
        self.recorder = PassRecorder(self._number_tensors)
        self._tracer: Any = None
        self._versions: dict[torch.fx.Node, int] = {}
        """How often the memory of a node's tensor had been written to when the node was made."""
        self._nodes: list[torch.fx.Node] = []
        """The nodes by their numbers."""
        self._renewed: dict[int, int] = {}
        """For each number the one of the node that stands for its tensor since torch traced it anew."""
        self._line: torch.fx.Node | None = None
        """The node whose line of generated code made the latest node."""
        self._values: dict[int, Any] = {}
        """The value of the raw ONNX graph for each number, right after torch translated it."""
        self._tensors: dict[int, int] = {}
        """The tensor of the raw graph's view for each number."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe torch while the context lasts."""
        with (
            private_torch.observe_traced_tensors(self._note_version),
            private_torch.observe_retraced_nodes(self._renew),
            private_torch.observe_translated_graphs(self._keep_values),
        ):
            yield

    def begin(self, tracer: Any) -> None:
        """Begin anew with a tracer that runs the model."""
        self._tracer = tracer
        self.recorder.clear()
        self._renewed.clear()

    def _note_version(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        if not tensor.is_inference():
            self._versions[node] = tensor._version

    def _number_tensors(self, tensors: Sequence[torch.Tensor]) -> Iterator[int | None]:
        return map(self._number_tensor, tensors)

    def _number_tensor(self, tensor: torch.Tensor) -> int | None:
        node = private_torch.traced_node(tensor, self._tracer)
        # A node has the value of its tensor at that time; others may have written to its memory since.
        if node is None or tensor.is_inference() or self._versions.get(node) != tensor._version:
            return None
        return self._number_of(node)

    def _number_of(self, node: torch.fx.Node) -> int:
        number: int | None = node.meta.get(_NUMBER)
        if number is None:
            number = node.meta[_NUMBER] = len(self._nodes)
            self._nodes.append(node)
        return number

    def _renew(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        number = old.meta.get(_NUMBER)
        if number is not None and old is not new:
            self._renewed[number] = self._number_of(new)

    def follow_line(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Follow a node whose line of generated code is being run to the node that this makes, if it is the only one.

        torch runs the code of a region that it set apart, such as one without gradients, where it traces it anew.
        """
        number = old.meta.get(_NUMBER)
        if number is not None:
            if old is self._line:  # it became more than one
                self._renewed.pop(number, None)
            elif _without_place(old) == _without_place(new):
                self._renewed[number] = self._number_of(new)
        self._line = old

    def _keep_values(self, graph: torch.fx.Graph, values: Mapping[str, Any]) -> None:
        self._values = {}  # the main graph comes last
        for node in graph.nodes:
            number = node.meta.get(_NUMBER)
            # Nodes that torch adds may have the metadata of others; parameters get theirs back after a new trace.
            if number is not None and node.name in values and (node is self._nodes[number] or node.op == "placeholder"):
                self._values[number] = values[node.name]

    def keep_raw(self, raw: View) -> None:
        """Find the values in the raw graph while they have its names: torch renames them as it optimizes."""
        named = {raw.names[tensor]: tensor for tensor, graph in enumerate(raw.tensor_graphs) if graph == 0}
        names = {number: getattr(value, "name", None) for number, value in self._values.items()}
        self._tensors = {number: named[name] for number, name in names.items() if name in named}
        self._values.clear()

    def carry(self, final: Mapping[CallId, CallId], carried: Carried) -> dict[CallId, Exchange]:
        """Return what each call received and returned, by the tensors of the graph that the raw one became."""

        def move(number: int) -> int | None:
            tensor = self._find(number)
            return None if tensor is None else carried.tensors[tensor]

        found = self.recorder.exchanges.items()
        return {final[call]: exchange.moved(move) for call, exchange in found if call in final}

    def _find(self, number: int) -> int | None:
        """Return the tensor of the raw graph for a number: of the latest node that stands for it and is there."""
        found = self._tensors.get(number)
        while number in self._renewed:
            number = self._renewed[number]
            found = self._tensors.get(number, found)
        return found


def _without_place(node: torch.fx.Node) -> str:
    """Name what a node does, whether or not it does it in place: torch traces anew without that."""
    return str(node.target).replace("_.", ".")
