"""Functions that cannot be written out: their operators are of other versions than those of the model.

A function imports operator sets of its own. Its nodes mean the same in the main graph only where the model's version of
the set defines their operators alike::

    model: opset 21    function: opset 18    Neg      defined in 13, for both          written out
    model: opset 21    function: opset 11    Softmax  defined in 11, and anew in 13    stays a function
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from hieronnx.graph.operators import name_domain, name_operator
from hieronnx.graph.walks import function_key, walk_bodies


def find_versions(model: onnx.ModelProto, functions: Iterable[onnx.FunctionProto]) -> dict[str, int]:
    """Return the versions of the operator sets that a model has with some of its functions written out.

    They are the model's; of a set that it does not import, that of the first function that does.
    """
    versions = _read_imports(model.opset_import)
    for function in functions:
        for domain, version in _read_imports(function.opset_import).items():
            versions.setdefault(domain, version)
    return versions


def find_other_versions(functions: Mapping[str, onnx.FunctionProto], versions: Mapping[str, int]) -> dict[str, str]:
    """Return which of some functions, by their keys, cannot be written out in these versions, each with the reason."""
    found: dict[str, str] = {}
    for key, function in functions.items():
        own = _read_imports(function.opset_import)
        for node in _list_nodes(function):
            domain = name_domain(node.domain)
            here, there = own.get(domain, 0), versions.get(domain, 0)
            if not _is_call(node, functions) and not _is_same(domain, node.op_type, here, there):
                name = name_operator(domain, node.op_type)
                found.setdefault(key, f"it has {name} of opset {here}, which opset {there}, the model's, defines anew")
    _add_called(functions, found)
    return found


def _read_imports(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {name_domain(item.domain): item.version for item in imports}


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
