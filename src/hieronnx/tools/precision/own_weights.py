"""The weights of nodes that stay in float: such a node reads its own, whatever a tool does with them for others.

Tools quantize a weight once for all that read it, and some give what they make of it the name that it had. So what
stays in float gets a copy before the tool runs, which nothing that is quantized reads; afterwards that gets the old
name, or gives way to the weight where that is still in the file as it was::

    given      head, words ─→ w                         head is to stay in float
    separated  head ─→ w/float    words ─→ w
    made       head ─→ w/float    words ─→ w_quantized
    joined     head ─→ w          words ─→ w_quantized
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple, TypeAlias

import onnx

from hieronnx.files.wire import read_skeleton
from hieronnx.graph.operators import COPY_OPS, RESHAPE_OPS
from hieronnx.graph.walks import body_key, first_name, proto_bodies, walk_bodies
from hieronnx.hierarchy.hierarchy import NodeKey

_MOVING = COPY_OPS | RESHAPE_OPS | {"Transpose"}
"""They give all values of their first input, in another form."""


class _Held(NamedTuple):
    """An initializer, and the graph that has it."""

    graph: onnx.GraphProto
    tensor: onnx.TensorProto


class _Made(NamedTuple):
    """A node, with its key."""

    key: NodeKey
    node: onnx.NodeProto


_Visible: TypeAlias = Mapping[str, _Held | _Made | None]
"""What the names are that a graph can read; None for what is given where it runs."""


def find_sources(path: Path, chosen: Collection[NodeKey]) -> set[NodeKey]:
    """Return the nodes that give chosen ones of a model a weight in another form, or a constant."""
    found: set[NodeKey] = set()
    for made, visible in _walk(read_skeleton(path).graph):
        if made.key in chosen:
            for name in made.node.input:
                found.update(_list_way(name, visible))
    return found


def separate_weights(path: Path, is_chosen: Callable[[onnx.NodeProto], bool], suffix: str) -> dict[str, str]:
    """Give chosen nodes copies of the weights that others read, too; return whose copy each name is."""
    model = onnx.load(path, load_external_data=False)
    readers: defaultdict[tuple[int, str], list[onnx.NodeProto]] = defaultdict(list)
    weights: dict[tuple[int, str], _Held] = {}
    for made, visible in _walk(model.graph):
        for name in dict.fromkeys(made.node.input):
            if isinstance(held := visible.get(name), _Held):
                weights[id(held.graph), name] = held
                readers[id(held.graph), name].append(made.node)
    taken, copies = _list_names([graph for _, graph in walk_bodies(model.graph)]), dict[str, str]()
    for key, (graph, tensor) in weights.items():
        own = [node for node in readers[key] if is_chosen(node)]
        if own and len(own) < len(readers[key]):
            copied = graph.initializer.add()
            copied.CopyFrom(tensor)
            names = chain([f"{tensor.name}/{suffix}"], (f"{tensor.name}/{suffix}_{number}" for number in count(1)))
            copied.name = next(name for name in names if name not in taken)
            taken.add(copied.name)
            copies[copied.name] = tensor.name
            _rename_inputs(own, {tensor.name: copied.name})
    if copies:
        path.write_bytes(model.SerializeToString())
    return copies


def join_weights(path: Path, copies: Mapping[str, str]) -> None:
    """Give copies the names of their weights where nothing has these, and leave out those that are there twice."""
    if not copies:
        return
    model = onnx.load(path, load_external_data=False)
    graphs = [graph for _, graph in walk_bodies(model.graph)]
    doubtful, read = copies.keys() | set(copies.values()), _list_read(graphs)
    for graph in graphs:
        _keep(graph, doubtful, read)
    taken, renamed = _list_names(graphs), dict[str, str]()
    for graph in graphs:
        held = {tensor.name: tensor for tensor in graph.initializer}
        for name in [name for name in held if name in copies]:
            weight = copies[name]
            if weight not in taken:
                held[name].name = weight
                taken.add(weight)
            elif weight not in held or not _are_equal(held[name], held[weight], path.parent):
                continue
            renamed[name] = weight
    _rename_inputs((node for graph in graphs for node in graph.node), renamed)
    for graph in graphs:
        _keep(graph, renamed.keys(), ())
    path.write_bytes(model.SerializeToString())


def _walk(graph: onnx.GraphProto, key: str = "", outside: _Visible | None = None) -> Iterator[tuple[_Made, _Visible]]:
    """Yield each node of a graph and of the bodies in it, with what the names are that it can read."""
    visible: dict[str, _Held | _Made | None] = dict(outside or {})
    nodes = [_Made((key, first_name(node.output)), node) for node in graph.node]
    visible |= {tensor.name: _Held(graph, tensor) for tensor in graph.initializer}
    visible |= {name: made for made in nodes for name in made.node.output}
    visible |= {value.name: None for value in graph.input}  # an initializer that is one may be replaced
    for made in nodes:
        yield made, visible
        for label, body in proto_bodies(made.node):
            yield from _walk(body, body_key(key, made.key[1], label), visible)


def _list_way(name: str, visible: _Visible) -> list[NodeKey]:
    """Return the nodes on the way from a weight or a constant to a tensor; none if it is not one in another form."""
    way = []
    while isinstance(source := visible.get(name), _Made):
        way.append(source.key)
        if source.node.op_type == "Constant":
            return way
        if source.node.domain or source.node.op_type not in _MOVING:
            return []
        name = source.node.input[0]
    return way if source is not None else []


def _list_names(graphs: Collection[onnx.GraphProto]) -> set[str]:
    """Return all names of tensors in graphs."""
    made = {name for graph in graphs for node in graph.node for name in node.output}
    held = {tensor.name for graph in graphs for tensor in graph.initializer}
    return _list_read(graphs) | made | held | {value.name for graph in graphs for value in graph.input}


def _list_read(graphs: Iterable[onnx.GraphProto]) -> set[str]:
    """Return the names of the tensors that are read in graphs, or given back by them."""
    read = set[str]()
    for graph in graphs:
        read.update(name for node in graph.node for name in node.input)
        read.update(value.name for value in graph.output)
    return read


def _rename_inputs(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]


def _keep(graph: onnx.GraphProto, doubtful: Collection[str], read: Collection[str]) -> None:
    """Remove doubtful initializers that are not read."""
    kept = [tensor for tensor in graph.initializer if tensor.name not in doubtful or tensor.name in read]
    if len(kept) < len(graph.initializer):
        single = onnx.GraphProto(initializer=kept)
        del graph.initializer[:]
        graph.initializer.extend(single.initializer)


def _are_equal(a: onnx.TensorProto, b: onnx.TensorProto, folder: Path) -> bool:
    if (a.data_type, list(a.dims)) != (b.data_type, list(b.dims)):
        return False
    first, second = (onnx.numpy_helper.to_array(tensor, str(folder)) for tensor in (a, b))
    return bool(first.tobytes() == second.tobytes())
