"""Small graphs written as ONNX text, matched and carried: what the tests of carry's rules share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx import helper, numpy_helper, parser

from hieronnx.attribute.carried import Carried, carry_scopes
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.match.structure import Matcher

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "com.microsoft.nchwc": 1]>'


def view(text: str) -> View:
    """View a model; what it declares and nobody makes are weights, each of other values."""
    model = parser.parse_model(HEAD + text)
    made = {name for node in model.graph.node for name in node.output}
    for number, value in enumerate((item for item in model.graph.value_info if item.name not in made), 1):
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        array = np.full(shape, number, helper.tensor_dtype_to_np_dtype(kind.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return view_model(ir.serde.deserialize_model(model))


def carry(before: str, after: str, calls: dict[str, str]) -> dict[str, tuple[set[str], str]]:
    """Carry the calls, given by output, and return for each output after its origins and its evidence."""
    return {output: summarize(found) for output, found in attribute(before, after, calls).items()}


def place(before: str, after: str, calls: dict[str, str]) -> dict[str, str]:
    """Carry the calls, given by output, and return for each output after the module of its scope."""
    return {output: found.scope.module for output, found in attribute(before, after, calls).items() if found}


def attribute(before: str, after: str, calls: dict[str, str]) -> dict[str, Attribution | None]:
    """Carry the calls, given by output, and return the attribution of each output after."""
    b = view(after)
    carried = carry_views(view(before), b, calls)
    return {b.node_key(index)[1]: found for index, found in enumerate(carried.nodes)}


def carry_views(a: View, b: View, calls: dict[str, str]) -> Carried:
    """Carry the calls, given by output, from one view to the other."""
    scopes = [CallId(calls[a.node_key(index)[1]], 0) for index in range(len(a.nodes))]
    parents: dict[CallId, CallId | None] = {ROOT: None}
    for scope in scopes:
        while scope not in parents:
            parents[scope] = scope = CallId(scope.module.rpartition(".")[0], 0)
    return carry_scopes(a, [Attribution(scope, (scope,), "captured") for scope in scopes], b, CallTree(parents))


def fold(before: str, after: str, calls: dict[str, str]) -> dict[str, tuple[set[str], set[str]]]:
    """Carry the calls, and return for each initializer after the modules whose work it holds, and what it was."""
    b = view(after)
    folded = carry_views(view(before), b, calls).initializers
    return {b.names[t]: ({o.module for o in found.origins}, set(found.sources)) for t, found in folded.items()}


def hold(before: str, after: str) -> dict[str, str | None]:
    """Return for each tensor before the one after that holds its value."""
    a, b = view(before), view(after)
    tensors = carry_views(a, b, {a.node_key(index)[1]: "" for index in range(len(a.nodes))}).tensors
    return {a.names[t]: None if found is None else b.names[found] for t, found in enumerate(tensors)}


def match(before: str, after: str, fixed: Mapping[str, str] | None = None) -> Matcher:
    """Match two graphs; fixed points by their names after and before."""
    a, b = view(before), view(after)
    return Matcher(a, b, {b.names.index(of_b): a.names.index(of_a) for of_b, of_a in (fixed or {}).items()}).run()


def regions(matcher: Matcher) -> dict[str, set[str]]:
    """Return for each matched node of B the nodes of A that it stands for, by their outputs."""
    keys = {index: {matcher.a.node_key(n)[1] for n in match.region} for index, match in matcher.matches.items()}
    return {matcher.b.node_key(index)[1]: outputs for index, outputs in keys.items()}


def summarize(found: Attribution | None) -> tuple[set[str], str]:
    return (set(), "") if found is None else ({origin.module for origin in found.origins}, found.evidence)
