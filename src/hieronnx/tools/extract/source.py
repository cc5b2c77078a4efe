"""A model made ready to have parts taken out of it: its structure, its calls, and what its tensors depend on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from hieronnx.files.opening import OpenedModel, require_hierarchy
from hieronnx.files.wire import locate_initializers
from hieronnx.graph.building import view_model
from hieronnx.graph.values import Values
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
from hieronnx.hierarchy.records import BoundTensor, CallId, Node

# What a tensor is: the same whatever is fed, a size of what is fed, or made of its values.
CONSTANT, SIZE, DATA = range(3)


@dataclass(frozen=True)
class Source:
    """A model made ready to have parts taken out of it."""

    opened: OpenedModel
    hierarchy: Hierarchy
    view: View
    nodes: Sequence[ir.Node]
    """By their numbers in the view."""
    attributions: Sequence[Node]
    kinds: Sequence[int]

    @cached_property
    def tree(self) -> CallTree:
        """The calls and those above them."""
        return CallTree({call.id: call.parent for call in self.hierarchy.calls})

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each tensor the nodes that read it."""
        return self.view.consumers

    @cached_property
    def returned_by(self) -> Mapping[int, list[int]]:
        """For each tensor the graphs that have it as an output."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, graph in enumerate(self.view.graphs):
            for tensor in graph.outputs:
                found[tensor].append(number)
        return found

    @cached_property
    def calls_below(self) -> Mapping[CallId, list[CallId]]:
        """For each call those that it made itself."""
        found: dict[CallId, list[CallId]] = defaultdict(list)
        for call in self.hierarchy.calls:
            if call.parent is not None:
                found[call.parent].append(call.id)
        return found

    @cached_property
    def nodes_of(self) -> Mapping[CallId, list[int]]:
        """For each call the nodes that have it as their scope or one of their origins."""
        found: dict[CallId, list[int]] = defaultdict(list)
        for index, node in enumerate(self.attributions):
            for call in dict.fromkeys((node.scope, *node.origins)):
                found[call].append(index)
        return found

    @cached_property
    def nodes_in(self) -> Mapping[int, list[int]]:
        """For each graph its nodes."""
        found: dict[int, list[int]] = defaultdict(list)
        for index, node in enumerate(self.view.nodes):
            found[node.graph].append(index)
        return found

    @cached_property
    def functions(self) -> Mapping[tuple[str, str, str], int]:
        """The graph of each function, by what its callers name it."""
        outer = [number for number, graph in enumerate(self.view.graphs) if graph.owner is None]
        return dict(zip(self.opened.model.functions, outer[1:], strict=True))

    @cached_property
    def values(self) -> Mapping[int, ir.Value]:
        """The tensors that nodes read or make, and those that the model receives and returns."""
        main, whole = self.view.graphs[0], self.opened.model.graph
        found = dict(zip((*main.outputs, *main.inputs), (*whole.outputs, *whole.inputs), strict=True))
        for index, node in enumerate(self.nodes):
            held = self.view.nodes[index]
            found.update((t, v) for t, v in zip(held.inputs, node.inputs, strict=True) if v is not None)
            found.update((t, v) for t, v in zip(held.outputs, node.outputs, strict=True) if t != NO_TENSOR)
        return found

    @cached_property
    def numbers(self) -> Sequence[int]:
        """For each tensor a number that equal computations share."""
        return Values(self.view).number

    @cached_property
    def received(self) -> frozenset[int]:
        """All tensors that any call received."""
        passed = (item for call in self.hierarchy.calls for item in call.received or ())
        return frozenset(tensor for item in passed if (tensor := self.find_tensor(item)) is not None)

    def find_tensor(self, passed: BoundTensor) -> int | None:
        """Return the tensor that was passed to a call or by it; None where the file has it no more."""
        return None if passed.tensor is None else self._tensors.get((passed.graph, passed.tensor))

    @cached_property
    def _tensors(self) -> Mapping[tuple[str, str], int]:
        keys = [graph.key for graph in self.view.graphs]
        names = enumerate(zip(self.view.tensor_graphs, self.view.names, strict=True))
        return {(keys[graph], name): tensor for tensor, (graph, name) in names}

    @cached_property
    def located(self) -> Mapping[str, tuple[int, int]]:
        """Where in the model's file its initializers are, by name; none for a model in memory."""
        return {} if self.opened.path is None else locate_initializers(self.opened.path)

    def is_literal(self, tensor: int) -> bool:
        """Say whether a tensor is written down in the file: an initializer, or what a Constant holds."""
        producer = self.view.producers[tensor]
        return tensor in self.view.constants or (producer is not None and self.view.nodes[producer].op == "Constant")

    @cached_property
    def weighted(self) -> set[int]:
        """The tensors that depend on a parameter."""
        view, known = self.view, {held.name: held.parameter for held in self.hierarchy.initializers}
        # Without a sidecar it is not known what an initializer holds.
        found = {t for t in view.constants if known.get(view.names[t], "unknown") is not None}
        for index, node in enumerate(view.nodes):
            if not found.isdisjoint(view.nodes[index].reads):
                found.update(tensor for tensor in node.outputs if tensor != NO_TENSOR)
        return found

    def below(self, call: CallId) -> list[CallId]:
        """Return the call and all below it."""
        found = [call]
        for item in found:
            found += self.calls_below.get(item, ())
        return found

    def bodies_below(self, nodes: Iterable[int]) -> Iterator[int]:
        """Yield the graphs that come with nodes: their bodies, the functions that they call, and those of these."""
        pending, seen = list(nodes), set[int]()
        while pending:
            index = pending.pop()
            function = self.functions.get(self.nodes[index].op_identifier())
            for graph in (*self.view.nodes[index].bodies, *(() if function is None else (function,))):
                if graph not in seen:
                    seen.add(graph)
                    yield graph
                    pending += self.nodes_in.get(graph, ())


def prepare(opened: OpenedModel) -> Source:
    """Make a model ready to have parts taken out of it.

    Raises:
        HieronnxError: If it has no hierarchy.
    """
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    nodes: list[ir.Node] = []
    view = view_model(opened.model, lambda _, node: nodes.append(node))
    known = {(node.graph, node.output): node for node in hierarchy.nodes}
    attributions = [known[view.node_key(index)] for index in range(len(view.nodes))]
    return Source(opened, hierarchy, view, nodes, attributions, _find_kinds(view))


# -- what tensors depend on -------------------------------------------------------------------------------


def _find_kinds(view: View) -> list[int]:
    flow = view.flow
    return [
        CONSTANT if literal else SIZE if size else DATA for literal, size in zip(flow.literal, flow.size, strict=True)
    ]
