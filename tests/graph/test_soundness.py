"""What must hold of a model before its graph is read."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper, parser

from hieronnx.graph.soundness import find_faults, find_unmade
from support.onnxdata import BODIES, SHIPPED


def loop_without_a_body() -> onnx.NodeProto:
    return helper.make_node("Loop", ["n", "c", "x"], ["y"])


def axis_that_is_a_float() -> onnx.NodeProto:
    return helper.make_node("Softmax", ["x"], ["y"], axis=1.0)


def cast_to_nothing() -> onnx.NodeProto:
    return helper.make_node("Cast", ["x"], ["y"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (loop_without_a_body, "it has no attribute 'body', and Loop needs it"),
        (cast_to_nothing, "it has no attribute 'to', and Cast needs it"),
        (axis_that_is_a_float, "its attribute 'axis' is not of the type that Softmax has it in"),
    ],
)
def test_what_an_operator_cannot_do_with_is_told(make: object, said: str) -> None:
    assert callable(make)
    model = helper.make_model(helper.make_graph([make()], "main", [], []), opset_imports=[helper.make_opsetid("", 21)])
    assert [fault.message for fault in find_faults(model)] == [said]
    model.opset_import[0].domain = "other"  # whose operators may have other attributes
    assert not list(find_faults(model))


def test_what_is_sound_has_no_faults() -> None:
    models = [parser.parse_model(BODIES), *(onnx.load(path) for path in SHIPPED[::7])]
    assert not [fault for model in models for fault in (*find_faults(model), *find_unmade(model))]


READS_NOTHING = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[2] x, bool c) => (float[2] y, float[2] gone) {
  y = If (c) <
    then_branch = t () => (float[2] s) { s = Add(x, later) },
    else_branch = e () => (float[2] d) { d = Add(missing, later) }
  >
  later = own.F(x)
}
<domain: "own", opset_import: ["" : 17]> F (a) => (b) { b = Add(a, x) }
"""


def test_what_nothing_makes_is_told_with_who_reads_it() -> None:
    model = parser.parse_model(READS_NOTHING)
    assert not list(find_faults(model))  # it can be read
    assert [f"{fault.place}: {fault.message}" for fault in find_unmade(model)] == [
        "node 'd': it reads 'missing', which nothing makes",
        "output 'gone': nothing makes it",
        "node 'b': it reads 'x', which nothing makes",
    ]
