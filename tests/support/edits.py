"""Random graphs, and edits that are made to them: what a comparison must find out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

UNARY = ("Relu", "Neg", "Abs", "Exp")
BINARY = ("Add", "Mul", "Sub", "MatMul")
SHAPE = [4, 4]


@dataclass(frozen=True)
class Edit:
    """A model after an edit, and what a comparison with the model before should say.

    Attributes:
        model: the edited model.
        kind: added, removed or changed, for a node; input or initializer; or same.
        outputs: the outputs of the edited nodes, as they are called where the nodes are.
        operators: of the edited nodes.
    """

    model: ModelProto
    kind: str
    outputs: frozenset[str] = frozenset()
    operators: tuple[str, ...] = ()


# -- graphs -----------------------------------------------------------------------------------------------


def random_model(rng: random.Random, size: int, *, bodies: bool = True, shared_weights: bool = True) -> ModelProto:
    """Make a model of about so many nodes; every tensor has one shape, so that any can be read anywhere."""
    builder = _Builder(rng, shared_weights=shared_weights)
    tensors = ["x0", "x1"]
    for _ in range(size):
        tensors.append(builder.add_node(tensors, bodies=bodies))
    used = {name for node in builder.nodes for name in _reads(node)}
    ends = [tensor for tensor in tensors[2:] if tensor not in used]
    return _make_model(builder.nodes, builder.weights, ["x0", "x1"], ends)


def layered_model(layers: int, *, prefix: str = "") -> ModelProto:
    """Make a model of identical layers, one behind the other, each with a residual connection."""
    nodes, weights, tensor = [], [], "x0"
    for layer in range(layers):
        name = f"{prefix}layer.{layer}"
        weights += [f"{name}.query", f"{name}.key", f"{name}.out"]
        steps = [
            ("MatMul", [tensor, f"{name}.query"], "q"),
            ("MatMul", [tensor, f"{name}.key"], "k"),
            ("Transpose", [f"{name}/k"], "t"),
            ("MatMul", [f"{name}/q", f"{name}/t"], "scores"),
            ("Softmax", [f"{name}/scores"], "attention"),
            ("MatMul", [f"{name}/attention", f"{name}.out"], "projected"),
            ("Add", [f"{name}/projected", tensor], "sum"),
            ("Relu", [f"{name}/sum"], "end"),
        ]
        nodes += [helper.make_node(op, reads, [f"{name}/{made}"], f"{name}/{made}") for op, reads, made in steps]
        tensor = f"{name}/end"
    return _make_model(nodes, weights, ["x0"], [tensor])


def _make_model(nodes: list[NodeProto], weights: list[str], inputs: list[str], outputs: list[str]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in outputs],
        [helper.make_tensor(name, TensorProto.FLOAT, SHAPE, [0.5] * 16) for name in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


class _Builder:
    """Adds random nodes to a graph."""

    def __init__(self, rng: random.Random, prefix: str = "", *, shared_weights: bool) -> None:
        self.rng, self.prefix, self.shared_weights = rng, prefix, shared_weights
        self.nodes: list[NodeProto] = []
        self.weights: list[str] = []

    def add_node(self, tensors: list[str], *, bodies: bool) -> str:
        output = f"{self.prefix}t{len(self.nodes)}"
        kind = self.rng.random()
        recent = tensors[-6:]
        if kind < 0.35:
            node = helper.make_node(self.rng.choice(UNARY), [self.rng.choice(recent)], [output])
        elif kind < 0.5:
            node = helper.make_node("Softmax", [self.rng.choice(recent)], [output], axis=self.rng.randrange(2))
        elif kind < 0.7:
            again = self.shared_weights and self.weights and self.rng.random() < 0.2
            weight = self.rng.choice(self.weights) if again else f"w{self.prefix}{len(self.nodes)}"
            self.weights += [weight] if weight not in self.weights else []
            node = helper.make_node("MatMul", [self.rng.choice(recent), weight], [output])
        elif kind < 0.95 or not bodies:
            reads = [self.rng.choice(recent), self.rng.choice(tensors)]
            node = helper.make_node(self.rng.choice(BINARY), reads, [output])
        else:
            node = self._make_if(output, tensors)
        node.name = f"node_{len(self.nodes)}"
        self.nodes.append(node)
        return output

    def _make_if(self, output: str, tensors: list[str]) -> NodeProto:
        branches = {}
        for branch in ("then_branch", "else_branch"):
            inner = _Builder(self.rng, f"{output}_{branch}_", shared_weights=self.shared_weights)
            made = list(tensors)
            for _ in range(3):
                made.append(inner.add_node(made[-4:], bodies=False))
            self.weights += [w for w in inner.weights if w not in self.weights]
            info = helper.make_tensor_value_info(made[-1], TensorProto.FLOAT, SHAPE)
            branches[branch] = helper.make_graph(inner.nodes, branch, [], [info])
        reads = [self.rng.choice(tensors)]
        return helper.make_node("If", reads, [output], **branches)


def walk(graph: GraphProto) -> Iterator[tuple[GraphProto, NodeProto]]:
    """Yield every node with the graph that it is in."""
    for node in graph.node:
        yield graph, node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from walk(attribute.g)


def _reads(node: NodeProto) -> list[str]:
    inner = [name for a in node.attribute for _, n in walk(a.g) for name in n.input]
    return [*node.input, *inner]


# -- edits ------------------------------------------------------------------------------------------------


def rename(model: ModelProto, rng: random.Random) -> Edit:
    """Give every node and tensor another name, dynamic axes included."""
    edited = _copy(model)
    names: dict[str, str] = {}

    def other(name: str) -> str:
        return names.setdefault(name, f"r{rng.randrange(10**9)}_{len(names)}") if name else ""

    _rename_graph(edited.graph, other)
    return Edit(edited, "same")


def _rename_graph(graph: GraphProto, other: Callable[[str], str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = other(value.name)
    for node in graph.node:
        node.name = other(node.name)
        node.input[:] = map(other, node.input)
        node.output[:] = map(other, node.output)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename_graph(attribute.g, other)


def reorder(model: ModelProto, rng: random.Random) -> Edit:
    """Write the nodes in another order that is as good, and the initializers in any."""
    edited = _copy(model)
    waiting, done = list(edited.graph.node), set[str]()
    made = {name for node in waiting for name in node.output}
    order: list[NodeProto] = []
    while waiting:
        ready = [n for n in waiting if all(name in done or name not in made for name in _reads(n))]
        node = rng.choice(ready)
        waiting.remove(node)
        order.append(node)
        done.update(node.output)
    held = list(edited.graph.initializer)
    rng.shuffle(held)
    for field, items in (("node", order), ("initializer", held)):
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        del getattr(edited.graph, field)[:]
        getattr(edited.graph, field).extend(copies)
    return Edit(edited, "same")


def insert(model: ModelProto, rng: random.Random) -> Edit:
    """Put a node between a tensor and one of its readers."""
    edited = _copy(model)
    graph, node = rng.choice([item for item in walk(edited.graph) if item[1].input])
    position = rng.randrange(len(node.input))
    name = f"inserted{rng.randrange(10**9)}"
    made = helper.make_node(rng.choice((*UNARY, "Tanh")), [node.input[position]], [name], name)
    node.input[position] = name
    index = list(graph.node).index(node)
    graph.node.insert(index, made)
    return Edit(edited, "added", frozenset({name}), (made.op_type,))


def delete(model: ModelProto, rng: random.Random) -> Edit | None:
    """Take out a node with one input, and let its readers read that."""
    edited = _copy(model)
    ends = {value.name for graph, _ in walk(edited.graph) for value in graph.output}
    candidates = [(g, n) for g, n in walk(edited.graph) if n.op_type in (*UNARY, "Softmax") and n.output[0] not in ends]
    if not candidates:
        return None
    graph, node = rng.choice(candidates)
    gone, before = node.output[0], node.input[0]
    for _, reader in walk(edited.graph):
        reader.input[:] = [before if name == gone else name for name in reader.input]
    operator = node.op_type
    graph.node.remove(node)
    return Edit(edited, "removed", frozenset({gone}), (operator,))


def change_attribute(model: ModelProto, rng: random.Random) -> Edit | None:
    """Turn a Softmax to the other axis."""
    edited = _copy(model)
    candidates = [n for _, n in walk(edited.graph) if n.op_type == "Softmax" and n.attribute]
    if not candidates:
        return None
    node = rng.choice(candidates)
    node.attribute[0].i = 1 - node.attribute[0].i
    return Edit(edited, "changed", frozenset(node.output), (node.op_type,))


def swap_inputs(model: ModelProto, rng: random.Random) -> Edit | None:
    """Swap the two inputs of a node, which are not two copies of one computation."""
    edited = _copy(model)
    terms = _terms(edited)
    candidates = [n for _, n in walk(edited.graph) if len({terms.get(name, name) for name in n.input}) == 2]
    if not candidates:
        return None
    node = rng.choice(candidates)
    node.input[:] = reversed(node.input)
    return Edit(edited, "changed", frozenset(node.output), (node.op_type,))


def _terms(model: ModelProto) -> dict[str, str]:
    """Write every tensor as the term that computes it; weights are alike."""
    terms: dict[str, str] = {held.name: "weight" for held in model.graph.initializer}
    for _, node in walk(model.graph):
        inputs = ", ".join(terms.get(name, name) for name in node.input)
        term = f"{node.op_type}{[a.i for a in node.attribute]}({inputs})"
        terms[node.output[0]] = node.output[0] if node.op_type == "If" else str(hash(term))
    return terms


def rewire(model: ModelProto, rng: random.Random) -> Edit | None:
    """Let a node of the main graph read another tensor that was there before it."""
    edited = _copy(model)
    index = rng.randrange(1, len(edited.graph.node))
    node = edited.graph.node[index]
    before = [name for earlier in edited.graph.node[:index] for name in earlier.output if name not in node.input]
    read = {name for _, n in walk(edited.graph) if n is not node for name in n.input}
    positions = [i for i, name in enumerate(node.input) if name in read and not name.startswith("w")]
    if not before or not positions:
        return None
    node.input[rng.choice(positions)] = rng.choice(before)
    return Edit(edited, "changed", frozenset(node.output), (node.op_type,))


def change_input_shape(model: ModelProto, rng: random.Random) -> Edit:
    """Give an input of the model another size."""
    edited = _copy(model)
    value = rng.choice(edited.graph.input)
    value.type.tensor_type.shape.dim[rng.randrange(2)].dim_value = 5
    return Edit(edited, "input", frozenset({value.name}))


def change_weight_shape(model: ModelProto, rng: random.Random) -> Edit | None:
    """Give an initializer another size."""
    edited = _copy(model)
    if not edited.graph.initializer:
        return None
    held = rng.choice(edited.graph.initializer)
    held.CopyFrom(helper.make_tensor(held.name, TensorProto.FLOAT, [4, 8], [0.5] * 32))
    return Edit(edited, "initializer", frozenset({held.name}))


SAME = (rename, reorder)
NODE_EDITS = (insert, delete, change_attribute, swap_inputs, rewire)
VALUE_EDITS = (change_input_shape, change_weight_shape)


def remove_layer(model: ModelProto, layer: str) -> ModelProto:
    """Take all nodes of a layer out, and let the next one read what it read."""
    edited = _copy(model)
    own = [node for node in edited.graph.node if node.name.startswith(f"{layer}/")]
    first, last = own[0].input[0], own[-1].output[0]
    for node in own:
        edited.graph.node.remove(node)
    for node in edited.graph.node:
        node.input[:] = [first if name == last else name for name in node.input]
    kept = [held for held in edited.graph.initializer if not held.name.startswith(f"{layer}.")]
    del edited.graph.initializer[:]
    edited.graph.initializer.extend(kept)
    return edited


def _copy(model: ModelProto) -> ModelProto:
    return ModelProto.FromString(model.SerializeToString())
