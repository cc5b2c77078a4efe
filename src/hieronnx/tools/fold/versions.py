"""Functions that cannot be written out: their operators are of other versions than those of the model.

A function imports operator sets of its own. Its nodes mean the same in the main graph only where the model's version of
the set defines their operators alike::

    model: opset 21    function: opset 18    Neg      defined in 13, for both          written out
    model: opset 21    function: opset 11    Softmax  defined in 11, and anew in 13    stays a function
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from hieronnx.graph.operators import name_operator
from hieronnx.graph.walks import function_key, walk_bodies


def find_other_versions(model: onnx.ModelProto, functions: Mapping[str, onnx.FunctionProto]) -> dict[str, str]:
    """Return which of some functions cannot be written out, each with the reason."""
    versions = {item.domain: item.version for item in model.opset_import}
    found: dict[str, str] = {}
    for key, function in functions.items():
        own = {item.domain: item.version for item in function.opset_import}
        for domain, version in own.items():
            versions.setdefault(domain, version)
        for node in _list_nodes(function):
            here, there = own.get(node.domain, 0), versions.get(node.domain, 0)
            if not _is_call(node, functions) and not _is_same(node.domain, node.op_type, here, there):
                name = name_operator(node.domain, node.op_type)
                found.setdefault(key, f"it has {name} of opset {here}, which opset {there}, the model's, defines anew")
    _add_called(functions, found)
    return found


def _add_called(functions: Mapping[str, onnx.FunctionProto], found: dict[str, str]) -> None:
    """Add the functions that others need which stay."""
    pending = list(found)
    for key in pending:
        for node in _list_nodes(functions[key]):
            called = function_key(node.domain, node.op_type, node.overload)
            if _is_call(node, functions) and called not in found:
                found[called] = f"'{key}' stays, and calls it"
                pending.append(called)


def _list_nodes(function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for _, graph in walk_bodies(function):
        yield from graph.node


def _is_call(node: onnx.NodeProto, functions: Mapping[str, onnx.FunctionProto]) -> bool:
    return function_key(node.domain, node.op_type, node.overload) in functions


def _is_same(domain: str, op_type: str, a: int, b: int) -> bool:
    """Say whether two versions of an operator set define an operator alike."""
    if a == b:
        return True
    try:
        schemas = [onnx.defs.get_schema(op_type, version, domain) for version in (a, b)]
    except onnx.defs.SchemaError:  # onnx does not know it
        return False
    return bool(schemas[0].since_version == schemas[1].since_version)
