"""The model that parts are taken out of, with the facts that its parts need, each derived once for all of them."""

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
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node


@dataclass(frozen=True)
class Source:
    """A model that parts are taken out of."""

    opened: OpenedModel
    hierarchy: Hierarchy
    view: View
    nodes: Sequence[ir.Node]
    """By their numbers in the view, as are the attributions."""
    attributions: Sequence[Node]

    @cached_property
    def returned_by(self) -> Mapping[int, list[int]]:
        """For each tensor the graphs that have it as an output."""
        graphs: dict[int, list[int]] = defaultdict(list)
        for number, graph in enumerate(self.view.graphs):
            for tensor in graph.outputs:
                graphs[tensor].append(number)
        return graphs

    @cached_property
    def nodes_of(self) -> Mapping[CallId, list[int]]:
        """For each call the nodes that have it as their scope or one of their origins."""
        nodes: dict[CallId, list[int]] = defaultdict(list)
        for index, node in enumerate(self.attributions):
            for call in dict.fromkeys((node.scope, *node.origins)):
                nodes[call].append(index)
        return nodes

    @cached_property
    def functions(self) -> Mapping[ir.OperatorIdentifier, int]:
        """The graph of each function, by what its callers name it."""
        outer = [number for number, graph in enumerate(self.view.graphs) if graph.owner is None]
        return dict(zip(self.opened.model.functions, outer[1:], strict=True))

    @cached_property
    def values(self) -> Mapping[int, ir.Value]:
        """The tensors that nodes read or make, and those that the model receives, holds and returns."""
        main, whole = self.view.graphs[0], self.opened.model.graph
        held = ((self.view.find_tensor("", name), value) for name, value in whole.initializers.items())
        values = {tensor: value for tensor, value in held if tensor is not None}
        values.update(zip((*main.outputs, *main.inputs), (*whole.outputs, *whole.inputs), strict=True))
        for viewed, node in zip(self.view.nodes, self.nodes, strict=True):
            values.update((t, v) for t, v in zip(viewed.inputs, node.inputs, strict=True) if v is not None)
            values.update((t, v) for t, v in zip(viewed.outputs, node.outputs, strict=True) if t != NO_TENSOR)
        return values

    @cached_property
    def numbers(self) -> Sequence[int]:
        """For each tensor a number that equal computations share."""
        return Values(self.view).number

    @cached_property
    def received(self) -> frozenset[int]:
        """All tensors that any call received."""
        bound = (item for call in self.hierarchy.calls for item in call.received or ())
        tensors = (self.view.find_tensor(item.graph, item.tensor) for item in bound)
        return frozenset(tensor for tensor in tensors if tensor is not None)

    @cached_property
    def located(self) -> Mapping[str, tuple[int, int]]:
        """Where in the model's file its initializers are, by name; none for a model in memory."""
        return {} if self.opened.path is None else locate_initializers(self.opened.path)

    @cached_property
    def weighted(self) -> set[int]:
        """The tensors that depend on a parameter."""
        view, parameters = self.view, {item.name: item.parameter for item in self.hierarchy.initializers}
        # Without a sidecar it is not known what an initializer holds.
        weighted = {t for t in view.constants if parameters.get(view.names[t], "unknown") is not None}
        for node in view.nodes:
            if not weighted.isdisjoint(node.reads):
                weighted.update(node.makes)
        return weighted

    def is_literal(self, tensor: int) -> bool:
        """Say whether a tensor is written down in the file: an initializer, or what a Constant holds."""
        producer = self.view.producers[tensor]
        return tensor in self.view.constants or (producer is not None and self.view.nodes[producer].op == "Constant")

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
                    pending += self.view.nodes_in[graph]

    def functions_below(self, nodes: Iterable[int]) -> list[int]:
        """Return the graphs of the functions that come with nodes, in the order of the file."""
        return sorted(graph for graph in self.bodies_below(nodes) if self.view.graphs[graph].owner is None)


def prepare(opened: OpenedModel) -> Source:
    """Make a model ready to have parts taken out of it.

    Raises:
        HieronnxError: If it has no hierarchy.
    """
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    nodes: list[ir.Node] = []
    view = view_model(opened.model, lambda _, node: nodes.append(node))
    attributions = [hierarchy.node_by_key[view.node_key(index)] for index in range(len(view.nodes))]
    return Source(opened, hierarchy, view, nodes, attributions)
