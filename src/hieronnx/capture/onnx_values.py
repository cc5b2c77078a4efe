"""The values of torch's ONNX program beside the tensors of its view: they stay what they are when torch renames them.

The raw graph names the results of operations after FX nodes, whatever its initializers are called. When torch is done
it makes the names unique, and a name may then be that of another value before:

    raw:      mean (a buffer), mean = ReduceMean (x), mean_1 = ReduceMean (y)
    finished: mean (a buffer), mean_1 = ReduceMean (x), mean_1_1 = ReduceMean (y)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from hieronnx.graph.building import view_model
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.graph.walks import walk_nodes

_NUMBERS = re.compile(r"(_\d+)+$")


def view_values(
    model: ir.Model, visit: Callable[[ir.Node], None] = lambda node: None
) -> tuple[View, dict[ir.Value, int]]:
    """Build the view of a model, and tell which tensor each of its values is; nodes are visited."""
    nodes: list[ir.Node] = []

    def note(_: int, node: ir.Node) -> None:
        nodes.append(node)
        visit(node)

    view = view_model(model, note)
    tensors = dict(zip(model.graph.inputs, view.graphs[0].inputs, strict=True))
    tensors |= zip(model.graph.initializers.values(), view.constants, strict=False)  # those of bodies come behind
    for node, known in zip(nodes, view.nodes, strict=True):
        tensors.update((value, t) for value, t in zip(node.outputs, known.outputs, strict=True) if t != NO_TENSOR)
    return view, tensors


def walk_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the inputs and initializers of a model, and the values that its nodes make, in their order."""
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for _, node in walk_nodes(model):
        yield from node.outputs


def find_values(copies: Mapping[ir.Value, ir.Value], tensors: Mapping[ir.Value, int]) -> dict[ir.Value, int]:
    """Find the tensors that values are, by their copies; by name where a function was inlined since."""
    times = Counter(value.name for value in tensors)
    named = {value.name: tensor for value, tensor in tensors.items() if times[value.name] == 1}
    found = ((value, tensors.get(copy, named.get(copy.name))) for value, copy in copies.items())
    return {value: tensor for value, tensor in found if tensor is not None}


def forget_repeated_names(view: View) -> None:
    """Take away the names of computed tensors that others in sight have, or that torch may give to these."""
    times = Counter(zip(view.tensor_graphs, view.names, strict=True))
    repeated = {name for (graph, name), number in times.items() if number > 1 or (graph and (0, name) in times)}
    for tensor, name in enumerate(view.names):
        if view.producers[tensor] is not None and (name in repeated or _NUMBERS.sub("", name) in repeated):
            view.names[tensor] = ""
