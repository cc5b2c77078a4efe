"""Names that torch's raw graph has twice, and what they would tell of the finished one."""

from __future__ import annotations

import onnx_ir as ir
from onnx import parser

from hieronnx.attribute.carried import carry_scopes
from hieronnx.capture.onnx_values import forget_repeated_names
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from support.onnx_text import HEAD, view

RAW = """
    main (float[2, 4] x) => (float[2, 4] y) <float[4] mean = {1, 2, 3, 4}> {
        centred = Sub (x, mean)
        first = ReduceMean (centred)
        gated = Mul (centred, first)
        second = ReduceMean (gated)
        y = Mul (gated, second)
    }
"""


def view_raw() -> View:
    """View the graph with the names that torch gives: after operations, whatever the buffers are called."""
    model = ir.serde.deserialize_model(parser.parse_model(HEAD + RAW))
    values = {value.name: value for node in model.graph for value in node.outputs}
    values["first"].name, values["second"].name = "mean", "mean_1"
    return view_model(model)


def test_a_name_that_torch_gave_twice_is_no_sign_of_a_value_and_neither_is_what_it_may_make_of_it() -> None:
    raw = view_raw()
    forget_repeated_names(raw)
    assert raw.names == ["x", "mean", "centred", "", "gated", "", "y"]


def test_a_value_that_the_optimizer_made_is_not_another_of_the_name_that_torch_gave_it() -> None:
    """The optimizer wrote the first mean again, and torch made its name another's that was there before."""
    raw, calls = view_raw(), [CallId(name, 0) for name in ("root", "a", "a", "b", "b")]
    forget_repeated_names(raw)
    scopes = [Attribution(call, (call,), "captured") for call in calls]
    finished = view(RAW.replace("first", "mean_1").replace("second", "mean_1_1"))
    kept = {finished.names.index(name): raw.names.index(name) for name in ("centred", "gated", "y")}
    found = carry_scopes(raw, scopes, finished, CallTree({ROOT: None} | dict.fromkeys(calls, ROOT)), kept)
    assert [node and node.scope for node in found.nodes] == calls


def test_a_name_in_a_body_is_no_sign_if_the_graph_around_it_has_it() -> None:
    model = parser.parse_model(
        HEAD
        + """
        main (bool flag, float[4] x) => (float[4] y) {
            inner = Neg (x)
            y = If (flag) <
                then_branch = then () => (float[4] out) { t = Abs (x) out = Neg (t) },
                else_branch = other () => (float[4] out2) { out2 = Abs (inner) }
            >
        }
    """
    )
    built = ir.serde.deserialize_model(model)
    branch = next(node for node in built.graph if node.op_type == "If").attributes["then_branch"].as_graph()
    branch[0].outputs[0].name = "inner"
    tensors = view_model(built)
    forget_repeated_names(tensors)
    assert "inner" not in tensors.names
    assert {"out", "out2", "y", "x", "flag"} <= set(tensors.names)
