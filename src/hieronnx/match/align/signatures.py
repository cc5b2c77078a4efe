"""What a node is, apart from its place: operator, version, attributes; and what an initializer holds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.graph.building import attribute_value_key, view_model
from hieronnx.graph.view import NO_TENSOR, SMALL_TENSOR_BYTES, View, ViewNode
from hieronnx.match.align.numbering import Numbers, Side
from hieronnx.tools.compare.result import Difference

_ABSENT = "(none)"
_FEW = 8


def make_side(model: ir.Model, numbers: Numbers, *, values: bool) -> Side:
    """Make one side of a comparison; the contents of initializers are read only if they count.

    Raises:
        HieronnxError: If they count and cannot be read.
    """
    view = view_model(model, content=_digest if values else _digest_small)
    opsets = _find_opsets(model, view)
    signatures = [numbers(_sign(node, view, opsets[node.graph])) for node in view.nodes]
    operators = [numbers(("operator", *_operator(node))) for node in view.nodes]
    held = {tensor: (view.types[tensor], content if values else None) for tensor, content in view.constants.items()}
    return Side(view, signatures, operators, held, view.constants, opsets)


def _digest_small(tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
    """Key an initializer of which the contents are few, and in the file itself."""
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return None
    return None if tensor.dtype != ir.DataType.STRING and tensor.nbytes > SMALL_TENSOR_BYTES else _digest(tensor, name)


def _digest(tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
    if tensor is None:
        return None
    if tensor.dtype == ir.DataType.STRING:
        return tuple(tensor.numpy().ravel().tolist())
    try:
        content = tensor.tobytes()
    except (OSError, ValueError) as error:
        raise HieronnxError(f"the contents of initializer '{name}' cannot be read: {error}") from error
    return hashlib.blake2b(content, digest_size=16).digest()


def _find_opsets(model: ir.Model, view: View) -> list[Mapping[str, int]]:
    """Return the opset imports that hold in each graph: those of the model or of the function around it."""
    outermost = iter([model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())])
    opsets: list[Mapping[str, int]] = []
    for graph in view.graphs:  # a body comes after the graph that its node is in
        opsets.append(next(outermost) if graph.owner is None else opsets[view.nodes[graph.owner].graph])
    return opsets


def _operator(node: ViewNode) -> tuple[str, str]:
    domain, _, op_type = node.op.rpartition("::")
    return ("" if domain == "ai.onnx" else domain), op_type


def _sign(node: ViewNode, view: View, opsets: Mapping[str, int]) -> Hashable:
    outputs = tuple(position for position, tensor in enumerate(node.outputs) if tensor != NO_TENSOR)
    bodies = tuple(sorted(view.graphs[body].label for body in node.bodies))
    version, attributes = _version_and_attributes(node, opsets)
    return _operator(node), version, tuple(attributes.items()), outputs, bodies


def _version_and_attributes(node: ViewNode, opsets: Mapping[str, int]) -> tuple[int, dict[str, Hashable]]:
    """Return the operator's own version, and the attributes that are not at their default."""
    version, defaults = _read_schema(*_operator(node), _find_opset(node, opsets))
    return version, {name: key for name, key in _attributes(node) if name not in defaults or defaults[name] != key}


def _find_opset(node: ViewNode, opsets: Mapping[str, int]) -> int:
    domain, _ = _operator(node)
    return opsets.get(domain, opsets.get("ai.onnx", 0) if not domain else 0)


def _attributes(node: ViewNode) -> Iterator[tuple[str, Hashable]]:
    assert isinstance(node.attributes, tuple)
    yield from node.attributes


@cache
def _read_schema(domain: str, op_type: str, opset: int) -> tuple[int, Mapping[str, Hashable]]:
    """Return since when an operator is as it is, and its default attributes; of an unknown one just the opset."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return opset, {}
    defaults = {
        name: attribute_value_key(ir.serde.deserialize_attribute(attribute.default_value))
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }
    return schema.since_version, defaults


def describe_signature(a: Side, node_a: int, b: Side, node_b: int) -> Iterator[Difference]:
    """Yield the respects in which two nodes of one operator differ, apart from what they read."""
    if a.signatures[node_a] == b.signatures[node_b]:
        return
    left, right = a.view.nodes[node_a], b.view.nodes[node_b]
    version_a, attributes_a = _version_and_attributes(left, a.opsets[left.graph])
    version_b, attributes_b = _version_and_attributes(right, b.opsets[right.graph])
    if version_a != version_b:
        yield Difference("version", "", str(version_a), str(version_b))
    for name in sorted({*attributes_a, *attributes_b}):
        if attributes_a.get(name, _ABSENT) != attributes_b.get(name, _ABSENT):
            before = _show_attribute(attributes_a, a.opsets[left.graph], left, name)
            after = _show_attribute(attributes_b, b.opsets[right.graph], right, name)
            yield Difference("attribute", name, before, after)
    made_a, made_b = (sum(t != NO_TENSOR for t in node.outputs) for node in (left, right))
    if made_a != made_b:
        yield Difference("outputs", "", str(made_a), str(made_b))
    bodies_a, bodies_b = (sorted(s.view.graphs[g].label for g in n.bodies) for s, n in ((a, left), (b, right)))
    if bodies_a != bodies_b:
        yield Difference("bodies", "", ", ".join(bodies_a), ", ".join(bodies_b))


def _show_attribute(attributes: Mapping[str, Hashable], opsets: Mapping[str, int], node: ViewNode, name: str) -> str:
    if name in attributes:
        return _show(attributes[name])
    _, defaults = _read_schema(*_operator(node), _find_opset(node, opsets))
    return f"{_show(defaults[name])} (default)" if name in defaults else _ABSENT


def _show(key: Hashable) -> str:
    """Write an attribute's value; of a tensor its type, and its contents if they are few."""
    if isinstance(key, tuple) and len(key) == 3 and isinstance(key[0], ir.DataType):
        dtype, shape, content = key
        return f"{dtype.name.lower()}[{', '.join(map(str, shape))}] {_show_elements(dtype, math.prod(shape), content)}"
    value = key[-1] if isinstance(key, tuple) else key
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return value.hex()[:16] if isinstance(value, bytes) else str(value)


def _show_elements(dtype: ir.DataType, size: int, content: Hashable) -> str:
    """Write up to eight elements; of more the first bytes or the digest, which is enough to tell two apart."""
    if not isinstance(content, bytes):
        return str(content)
    if size > _FEW or len(content) != size * dtype.numpy().itemsize:
        return f"({content.hex()[:16]})"
    return str(np.frombuffer(content, dtype.numpy()).tolist())
