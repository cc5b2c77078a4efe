"""A graph with parts in the places of module calls.

What the old part made for others, the new one makes under the same names, so that all others stay as they are::

    x → [ Mul → Add ] → y → Relu          x → [ Gemm ] → y → Relu

Nodes of the old part that others read as well stay for these. A node of the part that computes what such a node does,
under the same name (a mask that all layers share, a size of an input), is not put in: the model has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.graph.walks import first_name, proto_bodies, walk_bodies
from hieronnx.tools.extract.boundary import size_taken
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.source import Source
from hieronnx.tools.replace.interface import Interface


@dataclass(slots=True)
class Grafted:
    """A part as it is in the model: its nodes under their new names.

    Attributes:
        nodes: with the positions of the part's own nodes; None for one that only passes a tensor on.
        tensors: the new name of each tensor of the part.
        merged: the nodes of the part that the model has already, by position.
    """

    nodes: list[tuple[int | None, onnx.NodeProto]] = field(default_factory=list)
    tensors: dict[str, str] = field(default_factory=dict)
    merged: list[int] = field(default_factory=list)


class Names:
    """Names that are taken, and new ones beside them."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def take(self, name: str) -> str:
        """Return a name that is free, the one given if it is, and take it."""
        new, number = name, 0
        while new in self._taken:
            number += 1
            new = f"{name}_{number}"
        if new:
            self._taken.add(new)
        return new


def find_alive(source: Source, replaced: Sequence[Part], needed: Collection[int] = ()) -> set[int]:
    """Return the nodes of the main graph that stay: all but those that only old parts needed.

    Args:
        source: The model.
        replaced: The old parts; what they made for others, the new ones make.
        needed: Tensors that the new parts read.
    """
    view = source.view
    candidates = {index for part in replaced for index in (*part.region, *part.pulled_in)}
    made_anew = {t for part in replaced for t in part.outputs if view.producers[t] in part.region}
    alive: set[int] = set()
    wanted = ({*needed} | set(view.graphs[0].outputs)) - made_anew
    wanted |= {t for part in replaced for t in part.inputs} - made_anew
    for index in reversed(view.nodes_in[0]):
        if index not in candidates or not wanted.isdisjoint(view.nodes[index].makes):
            alive.add(index)
            wanted |= set(view.nodes[index].reads) - made_anew
    return alive


def graft(
    source: Source,
    old: Part,
    part: ir.Model,
    nodes: Sequence[onnx.NodeProto],
    interface: Interface,
    weights: Mapping[str, str],
    kept: Collection[int],
    tensors: Names,
    node_names: Names,
) -> Grafted:
    """Put a part in the place of an old one: give it names, and leave out what the model has already.

    Args:
        source: The model.
        old: The part that is replaced.
        part: The new one.
        nodes: Its nodes.
        interface: Which of its ends is which tensor.
        weights: The new names of its initializers.
        kept: The nodes of the model that stay.
        tensors: The names that tensors have; those of the part join them.
        node_names: The names that nodes have.
    """
    names, result = source.view.names, Grafted()
    result.tensors |= {name: names[tensor] for name, tensor in interface.inputs.items()}
    result.tensors |= weights
    outputs = interface.outputs
    ends = {name: [names[t] for t, end in outputs.items() if end == name] for name in outputs.values()}
    shared = (*old.pulled_in, *(index for index in old.region if index in kept))
    reusable = {names[t]: index for index in shared for t in source.view.nodes[index].makes}
    for position, node in enumerate(nodes):
        same = _find_same(source, node, reusable, result.tensors, ends)
        if same is not None:
            result.merged.append(position)
            result.tensors |= zip(node.output, (value.name or "" for value in source.nodes[same].outputs), strict=True)
            continue
        for name in node.output:
            if name:
                result.tensors[name] = ends[name][0] if name in ends else tensors.take(name)
        result.nodes.append((position, _rename(node, result.tensors, tensors, node_names)))
    _pass_on(ends, part, result, tensors, node_names)
    return result


def _find_same(
    source: Source,
    node: onnx.NodeProto,
    reusable: Mapping[str, int],
    renamed: Mapping[str, str],
    ends: Collection[str],
) -> int | None:
    """Return the node of the model that has this one's name and computes the same; None if there is none."""
    index = reusable.get(first_name(node.output))
    if index is None or not set(node.output).isdisjoint(ends) or any(True for _ in proto_bodies(node)):
        return None
    other = ir.serde.serialize_node(source.nodes[index])
    if (node.op_type, node.domain, list(node.output)) != (other.op_type, other.domain, list(other.output)):
        return None
    inputs = [renamed.get(name, name) for name in node.input]
    if inputs == list(other.input) and _attributes(node) == _attributes(other):
        return index
    size = size_taken(source, index)  # a part takes a size from an input of its own, where an axis has the same name
    return index if size and size == _size_of(source, node, inputs) else None


def _attributes(node: onnx.NodeProto) -> list[bytes]:
    return sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)


def _size_of(source: Source, node: onnx.NodeProto, inputs: Sequence[str]) -> str:
    """Return the name of the one axis of a tensor of the model whose size a node takes."""
    tensor = source.view.find_tensor("", inputs[0]) if node.op_type == "Shape" else None
    axes = () if tensor is None else source.view.axes[tensor] or ()
    given = {attribute.name: attribute.i for attribute in node.attribute}
    taken = axes[given.get("start", 0) : given.get("end", len(axes))]
    return taken[0] if len(taken) == 1 and isinstance(taken[0], str) else ""


def _rename(node: onnx.NodeProto, renamed: dict[str, str], tensors: Names, node_names: Names) -> onnx.NodeProto:
    """Return a node under new names, those in its bodies too, which must not hide names outside."""
    new = onnx.NodeProto()
    new.CopyFrom(node)
    inner = dict(renamed)
    for _, body in proto_bodies(new):
        for _, graph in walk_bodies(body):
            made = [item.name for item in (*graph.input, *graph.initializer)]
            made += [name for inside in graph.node for name in inside.output if name]
            inner |= {name: tensors.take(name) for name in made}
    new.input[:] = [renamed.get(name, name) for name in node.input]
    new.output[:] = [renamed.get(name, name) for name in node.output]
    new.name = node_names.take(node.name) if node.name else ""
    for _, body in proto_bodies(new):
        _rename_body(body, inner)
    return new


def _rename_body(body: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for _, graph in walk_bodies(body):
        for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            item.name = names.get(item.name, item.name)
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


def _pass_on(
    ends: Mapping[str, Sequence[str]], part: ir.Model, result: Grafted, tensors: Names, node_names: Names
) -> None:
    """Give what the part passes on as it got it, or gives twice, the names that others read it by."""
    made = {name for node in part.graph for value in node.outputs if (name := value.name)}
    for name, wanted in ends.items():
        for other in wanted[1:] if name in made else wanted:
            node = onnx.helper.make_node(
                "Identity", [result.tensors[name]], [other], node_names.take(f"{other}_passed")
            )
            result.nodes.append((None, node))


def sort_nodes(
    old: Iterable[tuple[int, onnx.NodeProto]], grafts: Iterable[tuple[int, Grafted]]
) -> list[onnx.NodeProto]:
    """Put nodes into an order in which each comes after what it reads, near to the order that they had.

    Raises:
        HieronnxError: If there is none: what a part takes depends on what it makes.
    """
    placed = [((index, 0), node) for index, node in old]
    for place, item in grafts:
        placed += (((place, number + 1), node) for number, (_, node) in enumerate(item.nodes))
    placed.sort(key=lambda pair: pair[0])
    nodes = [node for _, node in placed]
    makers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    order: list[onnx.NodeProto] = []
    state = [0] * len(nodes)
    for start in range(len(nodes)):
        pending = [start]
        while pending:
            number = pending[-1]
            before = {makers[name] for name in _read_by(nodes[number]) if name in makers} if state[number] == 0 else ()
            state[number] = max(state[number], 1)
            open_ = [other for other in sorted(before) if state[other] < 2]
            if any(state[other] == 1 and other in pending for other in open_):
                raise HieronnxError(
                    "the part would make the model cyclic: what it takes depends on what it gives, by way of nodes "
                    "outside; give a part whose outputs depend on the inputs that they depended on before"
                )
            pending += reversed(open_)
            if not open_:
                pending.pop()
                if state[number] < 2:
                    state[number] = 2
                    order.append(nodes[number])
    return order


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, in its bodies too."""
    yield from node.input
    for _, body in proto_bodies(node):
        for _, graph in walk_bodies(body):
            yield from (item.name for item in graph.output)
            yield from (name for inside in graph.node for name in inside.input)
