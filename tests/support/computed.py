"""What a graph computes, without the names of nodes and tensors and without their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx

from hieronnx.graph.walks import proto_bodies


def number_nodes(graph: onnx.GraphProto, outer: Mapping[str, int] | None = None) -> Counter[int]:
    """Return numbers for the nodes and the outputs of a graph: two graphs with the same ones compute the same.

    The number of a node is that of its operator, its attributes, its bodies, and how its inputs are computed.

    Args:
        graph: The graph; its initializers, and the inputs of a main graph, are known by their names.
        outer: Of a body the numbers of the tensors around it.
    """
    known = dict(outer or {})
    known.update((item.name, hash(("initializer", item.name))) for item in graph.initializer)
    for place, item in enumerate(graph.input):
        known[item.name] = hash(("input", item.name if outer is None else place))
    numbers: Counter[int] = Counter()
    for node in graph.node:
        plain = sorted(a.SerializeToString() for a in node.attribute if not a.HasField("g") and not a.graphs)
        bodies = [(label, frozenset(number_nodes(body, known).items())) for label, body in proto_bodies(node)]
        read = tuple(known[name] if name else 0 for name in node.input)
        number = hash((node.domain, node.op_type, tuple(plain), tuple(bodies), read))
        known.update((name, hash((number, place))) for place, name in enumerate(node.output))
        numbers[number] += 1
    numbers.update(hash((place, known[item.name])) for place, item in enumerate(graph.output))
    return numbers
