"""The adapter over onnx-ir: loading without weights, and a light view of a graph's structure.

A `View` has numbers for tensors and nodes, all graphs of the model in one space: the main graph, the bodies
of control-flow nodes, and functions. It is what carry and the tools walk; it holds no weights, so that a
view of a graph can outlive the graph (an optimizer works in place).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError

if TYPE_CHECKING:
    import onnx

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

NO_TENSOR = -1
SMALL_TENSOR_BYTES = 1024
_SCALARS = frozenset({ir.AttributeType.FLOAT, ir.AttributeType.INT, ir.AttributeType.STRING})
_LISTS = frozenset({ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS})
_NO_NUMBER = "invalid literal for int() with base 10: "
# Inputs of which only the shape or the element type counts, not the values.
_VALUE_FREE_INPUTS: Mapping[str, int] = {"Shape": 0, "Size": 0, "EyeLike": 0, "CastLike": 1}


class TensorType(NamedTuple):
    """The element type of a tensor, by its name, and its sizes; None for a size that is not static."""

    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A node by numbers: its operator, its tensors, the graph that it is in and the bodies that it has."""

    op: str
    """The operator, with its domain before `::` where that is not the standard one, and its overload behind `:`."""
    name: str
    graph: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Hashable
    bodies: tuple[int, ...] = ()
    captures: tuple[int, ...] = ()
    """Tensors from outside that the bodies use."""

    @property
    def reads_values(self) -> list[int]:
        """The tensors whose values the node reads, not their shape or type alone."""
        free = _VALUE_FREE_INPUTS.get(self.op)
        inputs = (t for position, t in enumerate(self.inputs) if position != free)
        return [t for t in (*inputs, *self.captures) if t != NO_TENSOR]


@dataclass(frozen=True, slots=True)
class ViewGraph:
    """A graph of the model: main (key `""`), a body (`output.attribute` of its node) or a function."""

    key: str
    label: str
    """What tells a body from its node's other bodies: the attribute's name and index."""
    owner: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class View:
    """The structure of a model: nodes in file order (a body's nodes before their owner), tensors, graphs."""

    nodes: list[ViewNode] = field(default_factory=list)
    graphs: list[ViewGraph] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    producers: list[int | None] = field(default_factory=list)
    tensor_graphs: list[int] = field(default_factory=list)
    types: list[TensorType | None] = field(default_factory=list)
    """The type of each tensor, None where unknown."""
    axes: list[tuple[int | str | None, ...] | None] = field(default_factory=list)
    """The sizes of each tensor, with the names of those that are not static; None where unknown."""
    constants: dict[int, Hashable] = field(default_factory=dict)
    """Initializers by tensor, with a key that is equal only for equal contents."""

    def add_tensor(
        self,
        name: str,
        graph: int,
        type_: TensorType | None = None,
        axes: tuple[int | str | None, ...] | None = None,
    ) -> int:
        """Add a tensor and return its number."""
        self.names.append(name)
        self.producers.append(None)
        self.tensor_graphs.append(graph)
        self.types.append(type_)
        self.axes.append(axes if axes is not None or type_ is None else type_.shape)
        return len(self.names) - 1

    def add_node(self, node: ViewNode) -> int:
        """Add a node, as the producer of its outputs, and return its number."""
        self.nodes.append(node)
        index = len(self.nodes) - 1
        for output in node.outputs:
            if output != NO_TENSOR:
                self.producers[output] = index
        return index

    def reads(self, node: int) -> tuple[int, ...]:
        """Return all tensors that a node reads, those captured by its bodies included."""
        found = self.nodes[node]
        return tuple(t for t in (*found.inputs, *found.captures) if t != NO_TENSOR)

    def file_order(self) -> list[int]:
        """Return the nodes in the order of the file: the bodies of a node right after it, functions last."""
        by_graph: list[list[int]] = [[] for _ in self.graphs]
        for index, node in enumerate(self.nodes):
            by_graph[node.graph].append(index)
        order: list[int] = []
        pending = [index for g in reversed(self._outer_graphs()) for index in reversed(by_graph[g])]
        while pending:
            index = pending.pop()
            order.append(index)
            for body in reversed(self.nodes[index].bodies):
                pending.extend(reversed(by_graph[body]))
        return order

    def _outer_graphs(self) -> list[int]:
        return [number for number, graph in enumerate(self.graphs) if graph.owner is None]

    def node_key(self, index: int) -> tuple[str, str]:
        """Return what identifies a node in its file: its graph's key and its first output."""
        node = self.nodes[index]
        output = next((self.names[t] for t in node.outputs if t != NO_TENSOR), "")
        return self.graphs[node.graph].key, output

    def consumers(self) -> list[list[int]]:
        """Return for each tensor the nodes that read it, captures not counted."""
        found: list[list[int]] = [[] for _ in self.names]
        for index, node in enumerate(self.nodes):
            for tensor in node.inputs:
                if tensor != NO_TENSOR:
                    found[tensor].append(index)
        return found


def load_model(model: ModelLike) -> ir.Model:
    """Return the model as onnx-ir, with weights in external files left where they are.

    Raises:
        HieronnxError: If the file is missing or is not an ONNX model.
    """
    if isinstance(model, ir.Model):
        return model
    if not isinstance(model, str | os.PathLike):
        if not hasattr(model, "graph"):
            raise InputError(f"the model is a {type(model).__name__}; give a path, a ModelProto or an ir.Model")
        with reading_graph("the model"):
            return ir.serde.deserialize_model(model)
    path = Path(model)
    if not path.is_file():
        raise HieronnxError(f"no ONNX file at '{path}'")
    try:
        with reading_graph(f"'{path}'"):
            loaded = ir.load(path)
    except HieronnxError:
        raise
    except Exception as error:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: {error}") from error
    if not loaded.graph.opset_imports:
        raise HieronnxError(f"'{path}' cannot be read as an ONNX model: it names no opset")
    return loaded


@contextmanager
def reading_graph(name: str) -> Iterator[None]:
    """Turn what onnx-ir says of a graph that it cannot read into one of our errors, with the innermost cause."""
    try:
        yield
    except (ir.serde.SerdeError, NotImplementedError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise HieronnxError(f"hieronnx cannot read {name}: {_innermost_reason(error)}") from error


def _innermost_reason(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:  # onnx-ir may fail while it tells of a failure
        error = inner
    reason = " ".join(str(error).split())
    if reason.startswith(_NO_NUMBER):
        return f"it has {reason.removeprefix(_NO_NUMBER)} where a number should be"
    # onnx-ir only asserts that contents and type of a tensor fit.
    return reason or "a tensor holds what its type does not"


def first_output(node: ir.Node) -> str:
    """Return the name of the node's first output that has one: what identifies it within its graph."""
    return next((value.name for value in node.outputs if value.name), "")


def walk_nodes(model: ir.Model) -> Iterator[tuple[str, ir.Node]]:
    """Yield each node with the key of its graph: main graph, bodies after their node, then functions."""
    yield from _walk_graph(model.graph, "")
    for function in model.functions.values():
        yield from _walk_graph(function.graph, function_key(function))


def _walk_graph(graph: ir.Graph, key: str) -> Iterator[tuple[str, ir.Node]]:
    for node in graph:
        yield key, node
        for label, body in node_bodies(node):
            yield from _walk_graph(body, body_key(key, first_output(node), label))


def body_key(parent: str, output: str, label: str) -> str:
    """Return the key of a body: the keys above it, its node's output, and its attribute."""
    return f"{parent}/{output}.{label}" if parent else f"{output}.{label}"


def function_key(function: ir.Function) -> str:
    """Return the key of a function's graph: its domain and name, and its overload."""
    domain, name, overload = function.identifier()
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


def node_bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the bodies of a node with their labels: the attribute's name, and its index in a list."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():  # given where the function is called
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for index, body in enumerate(attribute.as_graphs()):
                yield f"{name}.{index}", body


def view_model(
    model: ir.Model,
    visit: Callable[[int, ir.Node], None] | None = None,
    content: Callable[[ir.TensorProtocol | None, str | None], Hashable] | None = None,
) -> View:
    """Build the view of a model in one walk.

    Args:
        model: The model.
        visit: Called with each node's number and the node itself.
        content: Keys an initializer and its name; by default so that only equal contents have equal keys.
    """
    builder = _ViewBuilder(visit, content or _content_key)
    builder.add_graph(model.graph, "", "", None)
    for function in model.functions.values():
        builder.add_graph(function.graph, function_key(function), "", None)
    return builder.view


class _ViewBuilder:
    """Numbers values as it meets them; a value is one tensor wherever it is captured."""

    def __init__(
        self,
        visit: Callable[[int, ir.Node], None] | None,
        content: Callable[[ir.TensorProtocol | None, str | None], Hashable],
    ) -> None:
        self.view = View()
        self._visit, self._content = visit, content
        self._numbers: dict[ir.Value, int] = {}
        self._names: list[dict[str, int]] = []
        """For each graph around the place the numbers of its tensors by name."""

    def add_graph(self, graph: ir.Graph, key: str, label: str, owner: int | None) -> int:
        view = self.view
        number = len(view.graphs)
        view.graphs.append(ViewGraph(key, label, owner, (), ()))
        self._names.append({})
        inputs = tuple(self._number(value, number) for value in graph.inputs)
        for value in graph.initializers.values():
            view.constants[self._number(value, number)] = self._content(value.const_value, value.name)
        for node in graph:
            self._add_node(node, number, key)
        outputs = tuple(self._number_output(value, number) for value in graph.outputs)
        view.graphs[number] = ViewGraph(key, label, owner, inputs, outputs)
        self._names.pop()
        return number

    def _number_output(self, value: ir.Value, graph: int) -> int:
        """Number an output; one that a graph around this one computes is known by its name alone."""
        if value not in self._numbers and value.name:
            for names in reversed(self._names):
                if value.name in names:
                    return names[value.name]
        return self._number(value, graph)

    def _add_node(self, node: ir.Node, graph: int, key: str) -> None:
        view = self.view
        inputs = tuple(NO_TENSOR if v is None else self._number(v, graph) for v in node.inputs)
        outputs = tuple(self._number(v, graph) if v.name else NO_TENSOR for v in node.outputs)
        start, known = len(view.nodes), len(view.names)
        bodies = tuple(
            self.add_graph(body, body_key(key, first_output(node), label), label, None)
            for label, body in node_bodies(node)
        )
        captures = self._captures(bodies, start, known) if bodies else ()
        op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        op += f":{node.overload}" if node.overload else ""
        made = ViewNode(op, node.name or "", graph, inputs, outputs, _attribute_key(node), bodies, captures)
        index = view.add_node(made)
        for body in bodies:
            old = view.graphs[body]
            view.graphs[body] = ViewGraph(old.key, old.label, index, old.inputs, old.outputs)
        if self._visit is not None:
            self._visit(index, node)

    def _captures(self, bodies: Sequence[int], start: int, known: int) -> tuple[int, ...]:
        """Return what the bodies' nodes (those from `start`) read of the tensors that came before them."""
        found: dict[int, None] = {}
        for node in self.view.nodes[start:]:
            found.update(dict.fromkeys(t for t in node.inputs if 0 <= t < known))
        for body in bodies:
            found.update(dict.fromkeys(t for t in self.view.graphs[body].outputs if t < known))
        return tuple(found)

    def _number(self, value: ir.Value, graph: int) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self.view.add_tensor(value.name or "", graph, _type_of(value), _axes_of(value))
            self._numbers[value] = number
            if value.name:
                self._names[-1][value.name] = number
        return number


def _type_of(value: ir.Value) -> TensorType | None:
    if value.dtype is None or value.shape is None:
        return None
    return TensorType(value.dtype.name, tuple(dim if isinstance(dim, int) else None for dim in value.shape))


def _axes_of(value: ir.Value) -> tuple[int | str | None, ...] | None:
    shape = value.shape
    return None if shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def _attribute_key(node: ir.Node) -> Hashable:
    return tuple(
        (name, attribute_value_key(attribute))
        for name, attribute in sorted(node.attributes.items())
        if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    )


def attribute_value_key(attribute: ir.Attr) -> Hashable:
    """Key an attribute so that only equal values of one type have equal keys."""
    kind = attribute.type
    if attribute.is_ref():
        return "reference", kind.name, attribute.ref_attr_name
    if kind == ir.AttributeType.TENSOR:
        return _tensor_key(attribute.as_tensor())
    if kind in _SCALARS:
        return kind.name, _exact(attribute.value)
    if kind in _LISTS:
        return kind.name, tuple(map(_exact, attribute.value))
    return kind.name, _serialize_bare(attribute)


def _exact(value: Hashable) -> Hashable:
    # As text, NaN equals itself, and -0.0 is not 0.0.
    return repr(value) if isinstance(value, float) else value


def _serialize_bare(attribute: ir.Attr) -> bytes:
    """Serialize an attribute without what people write for people."""
    proto = ir.serde.serialize_attribute(attribute)
    proto.doc_string = ""
    sparse = [item for field in (proto.sparse_tensor, *proto.sparse_tensors) for item in (field.values, field.indices)]
    for tensor in (*proto.tensors, *sparse):
        tensor.name = tensor.doc_string = ""
    return bytes(proto.SerializeToString(deterministic=True))


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    """Key a tensor in an attribute by its content; one that is in another file by where it is."""
    if isinstance(tensor, ir.ExternalTensor):
        return "external", tensor.location, tensor.offset, tensor.length
    shape = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return tensor.dtype, shape, tuple(cast("ir.StringTensor", tensor).string_data())
    content = tensor.tobytes()
    if len(content) > SMALL_TENSOR_BYTES:
        content = hashlib.blake2b(content, digest_size=16).digest()
    return tensor.dtype, shape, content


def _content_key(tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
    """Key a tensor by its content where that is small and at hand; else by where it is, or by its name."""
    if isinstance(tensor, ir.ExternalTensor):
        return "external", tensor.location, tensor.offset, tensor.length
    if tensor is None or tensor.nbytes > SMALL_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
        return "named", name
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
