"""Functions and bodies put in place: the flat model computes the same, with the inner tensors in reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from hieronnx.runtime.flattening import Flat, flatten

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
HEAD = '<ir_version: 10, opset_import: ["" : 21, "other" : 1]>'


def run(model: onnx.ModelProto, names: list[str], feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def check(text: str, **feeds: Any) -> Flat:
    """Flatten a model; make sure that it computes the same, and that what it says it has can be had."""
    model, given = onnx.parser.parse_model(text), {"x": X, **feeds}
    flat = flatten(model, lambda asked, names: run(asked, names, given))
    assert np.array_equal(run(flat.model, ["y"], given)["y"], run(model, ["y"], given)["y"])
    run(flat.expose(flat.exposures), [item.exposed for item in flat.exposures], given)
    return flat


def test_a_function_of_another_version_of_operators_stays_one() -> None:
    flat = check(f"""{HEAD} net (float[2,4] x) => (float[2,4] y) {{ p = other.Old(x)  y = other.Alike(p) }}
        <domain: "other", opset_import: ["" : 12]> Old (x) => (y) {{ y = Softmax <axis = 0> (x) }}
        <domain: "other", opset_import: ["" : 17]> Alike (x) => (y) {{ h = Neg(x)  y = Abs(h) }}""")
    assert [node.op_type for node in flat.model.graph.node] == ["Old", "Neg", "Abs", "Identity"]
    assert {item.graph for item in flat.exposures} == {"", "other::Alike"}
    assert any("other::Old" in line and "Softmax of opset 12" in line for line in flat.hidden)


def test_operator_sets_that_only_functions_import_are_imported() -> None:
    flat = check(f"""{HEAD} net (float[2,4] x) => (float[2,4] y) {{ y = other.Fast(x) }}
        <domain: "other", opset_import: ["com.microsoft" : 1]> Fast (x) => (y) {{ y = com.microsoft.Gelu(x) }}""")
    assert {(item.domain, item.version) for item in flat.model.opset_import} >= {("com.microsoft", 1)}


@pytest.mark.parametrize("chosen", [True, False])
def test_bodies_in_functions_get_the_attributes_of_the_call(chosen: bool) -> None:
    flat = check(
        f"""{HEAD} net (float[2,4] x, bool c) => (float[2,4] y) {{
            p = other.Leak <slope = 0.5> (x, c)  y = other.Leak <slope = 0.25> (p, c) }}
        <domain: "other", opset_import: ["" : 21]> Leak <slope> (x, c) => (y) {{
            y = If (c) <then_branch = t () => (float[2,4] a) {{ a = LeakyRelu <alpha: float = @slope> (x) }},
                else_branch = e () => (float[2,4] b) {{ b = Neg(x) }}> }}""",
        c=np.array(chosen),
    )
    branch, name = ("then_branch", "a") if chosen else ("else_branch", "b")
    assert [item.name for item in flat.exposures if item.graph == f"other::Leak/y.{branch}"] == [name, name]


def test_a_loop_in_a_function_may_have_names_of_the_graph_around() -> None:
    flat = check(f"""{HEAD} net (float[2,4] x) => (float[2,4] y) <int64 n = {{3}}, bool t = {{1}}> {{
            a = Neg(x)  s = other.Turn(a, n, t)  y = other.Turn(s, n, t) }}
        <domain: "other", opset_import: ["" : 21]> Turn (x, n, t) => (y) {{
            y = Loop (n, t, x) <body = b (int64 i, bool go, float[2,4] s) => (bool on, float[2,4] z) {{
                on = Identity(go)  a = Add(s, x)  z = Abs(a) }}> }}""")
    inside = [item.name for item in flat.exposures if item.graph == "other::Turn/y.body"]
    assert inside == ["on", "a", "z"] * 2
