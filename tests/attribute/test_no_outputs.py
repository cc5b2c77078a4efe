"""Nodes that make nothing, which a domain of its own may have: a print, an assertion."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

import hieronnx
from hieronnx.match.renamed import pair_results
from support.annotated import annotated
from support.onnx_text import view

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.example" : 1, "com.microsoft" : 1]>'
WEIGHT = "<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}>"


def parse(nodes: str) -> onnx.ModelProto:
    model = parser.parse_model(f"{HEAD} main (float[2, 4] x) => (float[2, 4] y) {WEIGHT} {{ {nodes} }}")
    onnx.checker.check_model(model)
    return model


PLAIN = "a = MatMul (x, w)  b = Relu (a)  y = Neg (b)"
RENAMED = "n = MatMul (x, w)  m = Relu (n)  y = Neg (m)"
PRINTED = "a = MatMul (x, w)  = com.example.Print (a)  b = Relu (a)  y = Neg (b)"


@pytest.mark.parametrize(
    "after",
    [
        PLAIN,
        RENAMED,
        PRINTED,
        "n = MatMul (x, w)  = com.example.Print (n)  m = Relu (n)  y = Neg (m)",
        "n = MatMul (x, w)  = com.example.Other (n)  m = Relu (n)  y = Neg (m)",
        "= com.example.Print (w)  n = com.microsoft.FusedMatMul (x, w)  m = Relu (n)  y = Neg (m)",
        "n = com.example.Print (x, w)  y = Neg (n)",
        "n = com.example.Fused (x)  y = Neg (n)",
        "n = com.microsoft.FusedMatMul (x, w)  y = Neg (n)",
    ],
)
@pytest.mark.parametrize(
    "before",
    [
        PRINTED,
        "= com.example.Print (w)  a = MatMul (x, w)  b = Relu (a)  y = Neg (b)",
        "a = MatMul (x, w)  = com.example.Print (a)  = com.example.Print (a, x)  b = Relu (a)  y = Neg (b)",
        "a = MatMul (x, w)  b = Relu (a)  = com.example.Print (a)  y = Neg (b)",
        "= com.example.Print (x, w)  = com.example.Print (x)  b = MatMul (x, w)  y = Neg (b)",
    ],
)
def test_they_are_carried_and_change_nothing_for_others(before: str, after: str) -> None:
    a, b = parse(before), parse(after)
    calls = ["print" if not node.output else f"call.{node.op_type}" for node in a.graph.node]
    nodes = hieronnx.carry(annotated(a, calls), b).hierarchy.nodes
    for node, proto in zip(nodes, b.graph.node, strict=True):
        known = {call.rpartition(".")[2] for call in calls}
        if proto.output and proto.op_type in known:
            assert node.scope.module == f"call.{proto.op_type}"


def test_a_print_of_a_renamed_tensor_is_in_the_call_that_it_was_in() -> None:
    after = parse("n = MatMul (x, w)  = com.example.Print (n)  m = Relu (n)  y = Neg (m)")
    carried = hieronnx.carry(annotated(parse(PRINTED), ["mul", "print", "act", "neg"]), after)
    assert [node.scope.module for node in carried.hierarchy.nodes] == ["mul", "print", "act", "neg"]


def test_what_reads_a_weight_and_makes_nothing_gives_no_result() -> None:
    views = [
        view(f"main (float[2] x) => (float[2] y) <float[2] {name}> {{ = com.microsoft.P (x, {name})  y = Abs (x) }}")
        for name in ("w", "v")
    ]
    of_a, of_b = (next(iter(found.constants)) for found in views)
    assert pair_results(*views, {of_b: of_a}) == {}


def test_their_files_are_valid() -> None:
    model = annotated(parse(PRINTED), [""] * 4)
    assert hieronnx.validate(model).passed
