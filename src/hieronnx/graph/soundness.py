"""What must hold of any ONNX model before its graph is read: types known, sizes consistent, names told apart.

Whatever reads a graph may trust that. What onnx-ir, onnx or numpy would raise on a value that they did not expect,
far from the file, is told here with the node or tensor that has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.graph.walks import first_name, proto_bodies

WIDTHS = {kind.value: kind.bitwidth for kind in ir.DataType if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}
"""The bits of an element, by its data type; none for strings."""
MOST_EXPANDED = 1_000_000
"""How many nodes a model may have with its functions written out: so runtimes and inference read them."""
_STANDARD = ("", "ai.onnx")
_MOST_ELEMENTS = 2**62
_HIGHEST_OPSET = 2**31 - 1
_MOST_DIGITS = 18
_COMPLEX = frozenset({onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128})
_TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_SINGLE: Mapping[int, str] = {  # the kinds of attributes that are messages, and the fields that these are in
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
}


_Operator: TypeAlias = tuple[str, str, str]
"""Domain, name and overload."""


class Fault(NamedTuple):
    """Something that makes a model unsound: where, and what."""

    place: str
    message: str


def find_faults(model: onnx.ModelProto) -> Iterator[Fault]:
    """Yield what makes a model unsound; its weights may be left out."""
    for entry in (*model.opset_import, *(entry for function in model.functions for entry in function.opset_import)):
        if not 0 < entry.version <= _HIGHEST_OPSET:
            yield Fault(f"opset '{entry.domain}'", f"{entry.version} is no version of an opset")
    local = {_identify(function, function.name) for function in model.functions}
    yield from _check_graph(model.graph, _Context(_find_opset(model.opset_import), local, in_function=False))
    for function in model.functions:
        context = _Context(_find_opset(function.opset_import), local, in_function=True)
        yield from _check_nodes(function.node, context)
    yield from _check_expansion(model)


def find_unmade(model: onnx.ModelProto) -> Iterator[Fault]:
    """Yield the nodes that read what nothing makes, and the outputs that nothing makes; in what order is no matter.

    Such a graph can be read, and so told of, but not run.
    """
    yield from _find_unmade_in(model.graph, frozenset())
    for function in model.functions:
        yield from _check_reads(function, frozenset((*function.input, *_list_made(function.node))), function.output)


def _find_unmade_in(graph: onnx.GraphProto, outside: frozenset[str]) -> Iterator[Fault]:
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    given = (item.name for item in (*graph.input, *graph.initializer))
    known = outside.union(given, sparse, _list_made(graph.node))
    yield from _check_reads(graph, known, [value.name for value in graph.output])


def _check_reads(
    graph: onnx.GraphProto | onnx.FunctionProto, known: frozenset[str], outputs: Iterable[str]
) -> Iterator[Fault]:
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                yield Fault(_name_place(node), f"it reads '{name}', which nothing makes")
        for _, body in proto_bodies(node):
            yield from _find_unmade_in(body, known)
    for name in outputs:
        if name and name not in known:
            yield Fault(f"output '{name}'", "nothing makes it")


def _list_made(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    return (name for node in nodes for name in node.output)


class _Context(NamedTuple):
    """What decides how a node is to be read: the standard opset, and the operators that the model defines itself."""

    opset: int | None
    """None where it is not known here: operators may be others than those that are."""
    local: set[_Operator]
    in_function: bool


def _find_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int | None:
    versions = [entry.version for entry in imports if entry.domain in _STANDARD]
    return versions[0] if len(versions) == 1 and 0 < versions[0] <= onnx.defs.onnx_opset_version() else None


def _identify(item: onnx.NodeProto | onnx.FunctionProto, name: str) -> _Operator:
    return item.domain, name, item.overload


# -- graphs -------------------------------------------------------------------------------------------------


def _check_graph(graph: onnx.GraphProto, context: _Context) -> Iterator[Fault]:
    for tensor in graph.initializer:
        if reason := _explain_tensor(tensor):
            yield Fault(f"initializer '{tensor.name}'", reason)
    for sparse in graph.sparse_initializer:
        if reason := _explain_sparse(sparse):
            yield Fault(f"initializer '{sparse.values.name}'", reason)
    yield from _check_nodes(graph.node, context)


def _check_nodes(nodes: Iterable[onnx.NodeProto], context: _Context) -> Iterator[Fault]:
    made: set[str] = set()
    for node in nodes:
        place = _name_place(node)
        if not node.op_type:
            yield Fault(place, "it has no operator")
        elif reason := _explain_use(node, context):
            yield Fault(place, reason)
        for name in node.output:
            if name and name in made:
                yield Fault(place, f"it makes '{name}', which another node makes, too")
            made.add(name)
        for attribute in node.attribute:
            if reason := _explain_attribute(attribute, in_function=context.in_function):
                yield Fault(place, f"its attribute '{attribute.name}' {reason}")
        if len({attribute.name for attribute in node.attribute}) < len(node.attribute):
            yield Fault(place, "it has two attributes of one name")
    for node in nodes:
        for _, body in proto_bodies(node):
            yield from _check_graph(body, context)


def _name_place(node: onnx.NodeProto) -> str:
    return f"node '{node.name or first_name(node.output) or node.op_type}'"


class _Signature(NamedTuple):
    """How many inputs and outputs an operator has, which inputs and attributes it needs, and of what kinds they are."""

    inputs: range
    outputs: range
    needed: tuple[int, ...]
    attributes: tuple[str, ...]
    kinds: Mapping[str, int]


@cache
def _read_signature(op_type: str, opset: int) -> _Signature | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Signature(
        range(schema.min_input, schema.max_input + 1),
        range(schema.min_output, schema.max_output + 1),
        tuple(position for position, item in enumerate(schema.inputs) if item.option == single),
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        {name: attribute.type.value for name, attribute in schema.attributes.items()},
    )


def _explain_use(node: onnx.NodeProto, context: _Context) -> str:
    """Say what is wrong with what a node reads and makes and with its attributes, if its operator is a known one."""
    if node.domain not in _STANDARD or context.opset is None or _identify(node, node.op_type) in context.local:
        return ""
    signature = _read_signature(node.op_type, context.opset)
    if signature is None:
        return ""
    for what, given, allowed in (("reads", node.input, signature.inputs), ("makes", node.output, signature.outputs)):
        if len(given) not in allowed:
            count = "too few" if len(given) < allowed.start else "too many"
            return f"it {what} {len(given)} tensors, {count} for {node.op_type}"
    for position in signature.needed:
        if position < len(node.input) and not node.input[position]:
            return f"its input {position} is left out, and {node.op_type} needs it"
    kinds = {attribute.name: attribute.type for attribute in node.attribute}
    for name in signature.attributes:
        if name not in kinds:
            return f"it has no attribute '{name}', and {node.op_type} needs it"
    for name, kind in kinds.items():
        if kind and signature.kinds.get(name, kind) != kind:
            return f"its attribute '{name}' is not of the type that {node.op_type} has it in"
    return ""


# -- functions ----------------------------------------------------------------------------------------------


def _check_expansion(model: onnx.ModelProto) -> Iterator[Fault]:
    """Yield the functions that call themselves, by whatever way; and whether the others are too large written out."""
    bodies = {_identify(function, function.name): _count_operators(function.node) for function in model.functions}
    if not bodies:
        return
    sizes: dict[_Operator, int] = {}

    def measure(operators: Counter[_Operator]) -> int:
        total = sum(times * (1 + sizes.get(operator, 0)) for operator, times in operators.items())
        return min(total, MOST_EXPANDED + 1)

    order = TopologicalSorter({key: body.keys() & bodies.keys() for key, body in bodies.items()})
    with suppress(CycleError):  # it gives those that are in none all the same
        order.prepare()
    while ready := order.get_ready():
        sizes.update((key, measure(bodies[key])) for key in ready)
        order.done(*ready)
    for domain, name, _ in bodies.keys() - sizes.keys():
        yield Fault(f"function '{domain}::{name}'", "it calls itself, or a function that does")
    if measure(_count_operators(model.graph.node)) > MOST_EXPANDED:
        yield Fault("functions", f"written out they are more than {MOST_EXPANDED:,} nodes, the most that is read")


def _count_operators(nodes: Iterable[onnx.NodeProto]) -> Counter[_Operator]:
    """Count the operators of nodes, of those in bodies too."""
    operators: Counter[_Operator] = Counter()
    for node in nodes:
        operators[_identify(node, node.op_type)] += 1
        for _, body in proto_bodies(node):
            operators.update(_count_operators(body.node))
    return operators


# -- attributes and tensors ---------------------------------------------------------------------------------


def _explain_attribute(attribute: onnx.AttributeProto, *, in_function: bool) -> str:
    """Say what is wrong with an attribute; nothing if it is sound."""
    kind = attribute.type
    if attribute.ref_attr_name:
        return "" if in_function else "is one of a function, and the node is in none"
    if not kind:
        return "has no type"
    if kind in _SINGLE and not attribute.HasField(_SINGLE[kind]):
        return f"is said to be a {onnx.AttributeProto.AttributeType.Name(kind)}, and is none"
    tensors = (attribute.t,) if kind == onnx.AttributeProto.TENSOR else attribute.tensors
    for tensor in tensors:
        if reason := _explain_tensor(tensor):
            return f"has a tensor that cannot be: {reason}"
    if kind == onnx.AttributeProto.SPARSE_TENSOR:
        return _explain_sparse(attribute.sparse_tensor)
    return ""


def _explain_sparse(sparse: onnx.SparseTensorProto) -> str:
    return _explain_tensor(sparse.values) or _explain_tensor(sparse.indices)


def _explain_tensor(tensor: onnx.TensorProto) -> str:
    """Say what is wrong with a tensor; nothing if it is sound."""
    width = WIDTHS.get(tensor.data_type)
    if width is None and tensor.data_type != onnx.TensorProto.STRING:
        return f"ONNX has no data type {tensor.data_type}"
    elements = math.prod(tensor.dims)
    if any(size < 0 for size in tensor.dims) or elements > _MOST_ELEMENTS:
        return f"no tensor has the shape {list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _explain_place(tensor)
    if tensor.HasField("raw_data"):
        needed = None if width is None else (elements * width + 7) // 8
        if needed != len(tensor.raw_data):
            return f"it has {len(tensor.raw_data):,} bytes where its shape and type need {needed or 0:,}"
        return ""
    expected = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    if others := [name for name in _TYPED_DATA if name != expected and len(getattr(tensor, name))]:
        return f"it has elements in {others[0]}, and its type has them in {expected}"
    if width is None:
        given, needed = len(tensor.string_data), elements
    else:
        given = len(getattr(tensor, expected))
        needed = (
            elements * 2 if tensor.data_type in _COMPLEX else (elements * width + 7) // 8 if width < 8 else elements
        )
    # Without any contents it is a structure: those of weights are left out where nobody reads them.
    if given in (0, needed):
        return ""
    return f"it has {given:,} elements where its shape needs {needed:,}"


def _explain_place(tensor: onnx.TensorProto) -> str:
    """Say what is wrong with where a tensor has its external data."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries.get("location"):
        return "it is said to be in a file, and in none"
    for key in ("offset", "length"):
        if not (value := entries.get(key) or "0").isdecimal() or len(value) > _MOST_DIGITS:
            return f"its {key} in '{entries['location']}' is '{value[:40]}'"
    return ""
