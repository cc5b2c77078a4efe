"""Signatures: what a node is by itself (operator, version, attributes), and what an initializer holds."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from functools import cache
from typing import NamedTuple

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.graph.building import attribute_value_key, view_model
from hieronnx.graph.operators import name_domain
from hieronnx.graph.values import Interner
from hieronnx.graph.view import NO_TENSOR, SMALL_TENSOR_BYTES, View, ViewNode
from hieronnx.match.align.numbering import Side


class OperatorForm(NamedTuple):
    """An operator as a node uses it."""

    version: int
    """The opset since which the operator is as it is."""
    attributes: dict[str, Hashable]
    """Those that are not at their default."""
    defaults: Mapping[str, Hashable]


def make_side(model: ir.Model, interner: Interner, *, values: bool) -> Side:
    """Make one side of a comparison; the contents of initializers are read only if they count.

    Raises:
        HieronnxError: If they count and cannot be read.
    """
    tensors: list[ir.TensorProtocol | None] = []

    def key(tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
        tensors.append(tensor)
        return _digest(tensor, name) if values else _digest_small(tensor, name)

    view = view_model(model, content=key)
    opsets = _find_opsets(model, view)
    signatures = [interner[_sign(node, view, opsets[node.graph])] for node in view.nodes]
    operators = [interner[("operator", *_operator(node))] for node in view.nodes]
    held = {tensor: (view.types[tensor], content if values else None) for tensor, content in view.constants.items()}
    by_number = dict(zip(view.constants, tensors, strict=True))
    return Side(view, interner, signatures, operators, held, view.constants, by_number, opsets)


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
    return name_domain(domain), op_type


def _sign(node: ViewNode, view: View, opsets: Mapping[str, int]) -> Hashable:
    outputs = tuple(position for position, tensor in enumerate(node.outputs) if tensor != NO_TENSOR)
    bodies = tuple(sorted(view.graphs[body].label for body in node.bodies))
    form = read_form(node, opsets)
    return _operator(node), form.version, tuple(form.attributes.items()), outputs, bodies


def read_form(node: ViewNode, opsets: Mapping[str, int]) -> OperatorForm:
    """Return the operator's own version, and the attributes that are not at their default."""
    domain, op_type = _operator(node)
    version, defaults = _read_schema(domain, op_type, opsets.get(domain, 0 if domain else opsets.get("ai.onnx", 0)))
    return OperatorForm(version, {n: k for n, k in node.attributes if n not in defaults or defaults[n] != k}, defaults)


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
