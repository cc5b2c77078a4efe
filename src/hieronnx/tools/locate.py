"""Locate: the module calls of a node or a tensor, by the name that runtimes and viewers print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

from hieronnx.errors import InputError
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_model, require_hierarchy
from hieronnx.graph.building import view_model
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Initializer, Node
from hieronnx.tools.results import Result

_MOST_NEAR = 5


@dataclass(frozen=True, slots=True)
class LocatedNode:
    """A node that a name leads to.

    Attributes:
        role: `node` where the name is its own, `producer` or `reader` of the tensor of that name.
        node: what the hierarchy says of it: call, origins, evidence.
        class_name: of its module.
        tag: of its call.
    """

    role: str
    node: Node
    class_name: str
    tag: str


@dataclass(frozen=True, slots=True)
class LocateResult(Result):
    """The nodes of a name.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        name: the name that was asked for.
        nodes: the nodes of that name; the producer and the readers of the tensors of that name.
        initializers: the initializers of that name, with the parameters that they hold.
        input: whether the model has an input of that name.
        output: whether it has such an output.
    """

    _derived: ClassVar[tuple[str, ...]] = ()

    model: str
    name: str
    nodes: tuple[LocatedNode, ...]
    initializers: tuple[Initializer, ...]
    input: bool
    output: bool

    def __repr__(self) -> str:
        calls = ", ".join(dict.fromkeys(str(item.node.scope) or "(root)" for item in self.nodes))
        return f"LocateResult({self.name!r}: {calls or 'no nodes'})"


@reads_files
def locate(model: ModelLike, name: str) -> LocateResult:
    """Find the module calls of a node or a tensor by its name, in bodies and functions too.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        name: The name of a node or of a tensor, as runtimes and viewers print it.

    Raises:
        InputError: If the file has nothing of that name; the message has names that look alike.
        HieronnxError: If the model cannot be read, or has no hierarchy.

    Example:
        >>> [str(item.node.scope) for item in hieronnx.locate("model.onnx", "/encoder/layer.0/Add").nodes]
        ['encoder.layer.0']
    """
    opened = open_model(model)
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    view = view_model(opened.model)
    nodes = tuple(_find_nodes(view, hierarchy, name))
    initializers = tuple(item for item in hierarchy.initializers if item.name == name)
    main = view.graphs[0]
    inputs, outputs = ({view.names[t] for t in tensors} for tensors in (main.inputs, main.outputs))
    if not nodes and not initializers and name not in view.names:
        raise InputError(f"no node or tensor '{name}'{_suggest(view, name)}")
    return LocateResult(opened.name, name, nodes, initializers, name in inputs, name in outputs)


def _find_nodes(view: View, hierarchy: Hierarchy, name: str) -> Iterator[LocatedNode]:
    roles: dict[int, str] = {index: "node" for index, node in enumerate(view.nodes) if node.name == name}
    for tensor in (tensor for tensor, other in enumerate(view.names) if other == name and name):
        if (producer := view.producers[tensor]) is not None:
            roles.setdefault(producer, "producer")
        for reader in view.consumers[tensor]:
            roles.setdefault(reader, "reader")
    for index, role in roles.items():
        node = hierarchy.node_by_key[view.node_key(index)]
        yield LocatedNode(role, node, hierarchy.modules[node.scope.module].class_name, hierarchy.tag_of(node.scope))


def _suggest(view: View, name: str) -> str:
    """List names that look like one: those that it is a part of or that are a part of it, and those spelt alike."""
    names = dict.fromkeys(filter(None, (*(node.name for node in view.nodes), *view.names)))
    parts = [other for other in names if name in other or other in name] if name else []
    parts.sort(key=lambda other: abs(len(other) - len(name)))
    near = dict.fromkeys((*parts[:_MOST_NEAR], *get_close_matches(name, names, 3)))
    return f"; did you mean {' or '.join(map(repr, list(near)[:_MOST_NEAR]))}?" if near else ""
