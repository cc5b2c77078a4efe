"""Extract where it is recorded what a call received and returned: names, order, the cut, and what is listed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import hieronnx
from hieronnx.hierarchy.records import BoundTensor, CallId
from hieronnx.report.extraction import render_extraction
from hieronnx.tools.extract.result import ConstantArgument
from support.annotated import annotated, names
from support.callrecords import open_session
from support.cli import run
from support.exports import exported

PAIR = """
    main (float[2] x, float[2] y) => (float[2] z)
    {
        p = Neg (x)
        q = Exp (y)
        r = Sub (q, p)
        s = Abs (p)
        t = Relu (r)
        z = Add (t, s)
    }
"""
PAIR_SCOPES: list[str | tuple[str, ...]] = ["", "", "block", "block", "block", ""]


def arguments(part: hieronnx.ExtractResult) -> list[tuple[str, tuple[str, ...]]]:
    return [(item.name, item.arguments) for item in part.inputs]


def places(part: hieronnx.ExtractResult) -> list[tuple[str, tuple[str, ...]]]:
    return [(item.name, item.places) for item in part.outputs]


def undeclared_inputs(part: hieronnx.ExtractResult) -> list[str]:
    return [item.name for item in part.undeclared_inputs]


# -- names and order --------------------------------------------------------------------------------------


def test_inputs_and_outputs_have_the_order_of_forward() -> None:
    model = annotated(PAIR, PAIR_SCOPES, {"block": (["left=p", "right=q"], ["0=t", "1=s"])})
    part = hieronnx.extract(model, "block")
    assert arguments(part) == [("p", ("left",)), ("q", ("right",))]
    assert places(part) == [("t", ("0",)), ("s", ("1",))]
    assert part.recorded
    assert part.undeclared_inputs == ()
    other = hieronnx.extract(annotated(PAIR, PAIR_SCOPES, {"block": (["a=q", "b=p"], ["s=s", "t=t"])}), "block")
    assert (other.input_names, other.output_names) == (("q", "p"), ("s", "t"))
    given = open_session(other.model).run(None, {"q": np.ones(2, np.float32), "p": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(given, [[0, 0], [1, 1]])


def test_a_tensor_that_was_passed_twice_has_both_names() -> None:
    model = annotated(PAIR, PAIR_SCOPES, {"block": (["left=p", "right=q", "again=p"], ["=t"])})
    part = hieronnx.extract(model, "block")
    assert arguments(part) == [("p", ("left", "again")), ("q", ("right",))]
    assert places(part) == [("t", ("",)), ("s", ())]


def test_without_records_nothing_is_claimed() -> None:
    part = hieronnx.extract(annotated(PAIR, PAIR_SCOPES), "block")
    assert not part.recorded
    assert arguments(part) == [("q", ()), ("p", ())]
    assert (part.undeclared_inputs, part.lost_arguments) == ((), ())


def test_what_was_not_received_is_listed_with_its_producer() -> None:
    model = annotated(PAIR, PAIR_SCOPES, {"block": (["left=", "right=q"], ["0=t", "1=s"])})
    part = hieronnx.extract(model, "block")
    assert arguments(part) == [("q", ("right",)), ("p", ())]
    (item,) = part.undeclared_inputs
    assert item.producer is not None
    assert (item.name, item.producer.op_type, item.producer.scope) == ("p", "Neg", CallId("", 0))
    assert part.lost_arguments == ("left",)


# -- the cut ----------------------------------------------------------------------------------------------


def test_a_copy_of_what_was_received_is_what_was_received() -> None:
    text = """
        main (float[2] x) => (float[2] y, float[2] r)
        { h = Neg (x)  r = Identity (h)  y = Exp (h) }
        """
    part = hieronnx.extract(annotated(text, ["", "", "block"], {"block": (["a=r"], ["=y"])}), "block")
    assert arguments(part) == [("h", ("a",))]
    assert part.undeclared_inputs == ()


@pytest.mark.parametrize(
    "view", ["Identity (x)", "Cast <to = 1> (x)", "Transpose <perm = [1, 0]> (x)", "Reshape (x, k)"]
)
def test_what_others_only_moved_is_taken_before_they_did(view: str) -> None:
    text = f"""
        main (float[2, 2] x) => (float[2, 2] y)
        <int64[2] k = {{2, 2}}, float[2, 2] h>
        {{ h = {view}  e = Exp (h)  y = Add (e, x) }}
        """
    part = hieronnx.extract(annotated(text, ["other", "block", "block"], {"block": (["a=x"], ["=y"])}), "block")
    assert arguments(part) == [("x", ("a",))]
    assert names(part.pulled_in_nodes) == ["h"]
    assert part.undeclared_inputs == ()
    open_session(part.model)


def test_what_others_computed_is_not_brought_along() -> None:
    text = "main (float[2] x) => (float[2] y) { h = Exp (x)  y = Add (h, x) }"
    part = hieronnx.extract(annotated(text, ["other", "block"], {"block": (["a=x"], ["=y"])}), "block")
    assert arguments(part) == [("x", ("a",)), ("h", ())]
    assert undeclared_inputs(part) == ["h"]
    assert part.pulled_in_nodes == ()


def test_a_shared_node_whose_result_was_received_is_left_out() -> None:
    text = """
        main (float[2] x, float[2] mask) => (float[2] y)
        { m = Neg (mask)  a = Add (x, m)  y = Mul (a, m) }
        """
    scopes: list[str | tuple[str, ...]] = [("first", "second"), "first", "second"]
    asked = hieronnx.extract(annotated(text, scopes, {"second": (["a=a", "mask=mask"], ["=y"])}), "second")
    assert (names(asked.nodes), asked.input_names) == (["m", "y"], ("a", "mask"))
    given = hieronnx.extract(annotated(text, scopes, {"second": (["a=a", "m=m"], ["=y"])}), "second")
    assert (names(given.nodes), given.input_names) == (["y"], ("a", "m"))


def test_a_node_of_the_call_itself_is_never_left_out() -> None:
    text = "main (float[2] x) => (float[2] y) { h = Neg (x)  y = Exp (h) }"
    part = hieronnx.extract(annotated(text, ["block", "block"], {"block": (["a=h"], ["=y"])}), "block")
    assert names(part.nodes) == ["h", "y"]


def test_a_size_is_taken_of_a_received_tensor_that_nothing_else_reads() -> None:
    text = """
        main (float[n, 4] x, float[2] w) => (float[n, 4] y, float[n, 4] v)
        { h = Neg (x)  s = Shape (h)  y = ConstantOfShape (s)  v = Exp (h) }
        """
    part = hieronnx.extract(annotated(text, ["", "", "block", ""], {"block": (["like=h"], ["=y"])}), "block")
    assert arguments(part) == [("h", ("like",))]
    assert names(part.pulled_in_nodes) == ["s"]


# -- constants and parameters -----------------------------------------------------------------------------

CONSTANT = """
    main (float[2] x) => (float[2] y)
    <float[2] w = {1.0, 2.0}>
    {
        b = Sqrt (w)
        h = Add (x, b)
        y = Mul (h, b)
    }
"""


def test_a_constant_is_passed_on_where_calls_pass_it_on() -> None:
    ends = {"first": (["x=x"], ["0=h", "1=b"]), "second": (["h=h", "bias=b"], ["=y"])}
    model = annotated(CONSTANT, ["first", "first", "second"], ends)
    first, second = hieronnx.extract(model, "first"), hieronnx.extract(model, "second")
    assert places(first) == [("h", ("0",)), ("b", ("1",))]
    assert arguments(second) == [("h", ("h",)), ("b", ("bias",))]
    assert second.initializers == ()


def test_a_parameter_that_was_passed_is_held_by_the_part() -> None:
    text = "main (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Mul (x, w) }"
    part = hieronnx.extract(annotated(text, ["block"], {"block": (["query=w", "x=x"], ["=y"])}), "block")
    assert part.input_names == ("x",)
    assert part.constant_arguments == (ConstantArgument("query", "w", None),)
    assert part.initializers == ("w",)


# -- nodes of several calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_calls_that_one_node_stands_for_are_named(exporter: str) -> None:
    path = exported("conv_batch_norm", exporter).result.path
    conv, norm = hieronnx.extract(path, "conv"), hieronnx.extract(path, "norm")
    assert (conv.fused_with, norm.fused_with) == ((CallId("norm", 0),), (CallId("conv", 0),))
    assert (undeclared_inputs(conv), norm.undeclared_inputs) == (
        [],
        tuple(replace(item, arguments=()) for item in conv.inputs),
    )
    assert [item.arguments for item in conv.inputs] == [("input",)]
    assert [item.places for item in (*conv.outputs, *norm.outputs)] == [(), ("",)]
    assert norm.lost_arguments == ("input",)
    assert "fused with 'norm': nodes of the part do the work of both" in render_extraction(conv)


# -- calls in bodies, parts of parts ----------------------------------------------------------------------

BRANCHES = """
    main (float[2] x, bool c) => (float[2] y)
    {
        h = Relu (x)
        y = If (c) <then_branch = yes () => (float[2] p) { n = Neg (h)  p = Add (n, x) },
                    else_branch = no () => (float[2] q) { q = Neg (h) }>
    }
"""


def test_a_call_in_a_body_has_arguments_too(tmp_path: Path) -> None:
    ends = {
        "outer": (["c=c", "x=x"], ["=y"]),
        "outer.inner": (["n=y.then_branch:n", "x=x"], ["=y.then_branch:p"]),
    }
    # In the order of the file: a node's bodies after it.
    model = annotated(BRANCHES, ["outer", "outer", "outer", "outer.inner", "outer"], ends)
    part = hieronnx.extract(model, "outer.inner")
    assert (arguments(part), places(part)) == ([("n", ("n",)), ("x", ("x",))], [("p", ("",))])
    outer = hieronnx.extract(model, "outer", output=tmp_path / "outer.onnx")
    assert arguments(outer) == [("c", ("c",)), ("x", ("x",))]
    again = hieronnx.extract(tmp_path / "outer.onnx", "inner")
    assert (arguments(again), places(again)) == (arguments(part), places(part))


def test_what_a_body_is_given_comes_from_the_node_that_has_it() -> None:
    text = """
        main (float[2] x, int64 n, bool c) => (float[2] y)
        {
            y = Loop (n, c, x) <body = step (int64 i, bool ci, float[2] s) => (bool co, float[2] so)
                { co = Identity (ci)  so = Neg (s) }>
        }
        """
    part = hieronnx.extract(annotated(text, ["", "", "block"], {"block": (["s="], ["=y.body:so"])}), "block")
    (item,) = part.undeclared_inputs
    assert (item.name, item.producer and item.producer.op_type) == ("s", "Loop")


def test_the_calls_of_a_part_keep_what_they_received_and_returned() -> None:
    ends = {"first": (["x=x", "gone="], ["=h"]), "first.inner": (["b=b"], ["=h"]), "second": (["h=h"], ["=y"])}
    part = hieronnx.extract(annotated(CONSTANT, ["first", "first.inner", "second"], ends), "first")
    found = {str(call.id): (call.received, call.returned) for call in part.hierarchy.calls}
    assert found == {
        "": ((BoundTensor("x", "x"), BoundTensor("gone", None)), (BoundTensor("", "h"),)),
        "inner": ((BoundTensor("b", "b"),), (BoundTensor("", "h"),)),
    }
    tail = hieronnx.extract(annotated(CONSTANT, ["", "first.inner", "second"], ends), "first")
    assert tail.hierarchy.calls[0].received == (BoundTensor("x", "x"), BoundTensor("gone", None))


def test_relative_names_are_those_that_the_calls_of_a_part_know() -> None:
    model = annotated(CONSTANT, ["block", "block", "block"], {"block": (["x=x", "w=block.w"], ["=y"])})
    model.graph.initializer[0].name = model.graph.node[0].input[0] = "block.w"
    part = hieronnx.extract(model, "block", relative_names=True)
    assert part.initializers == ("w",)
    assert part.hierarchy.calls[0].received == (BoundTensor("x", "x"), BoundTensor("w", "w"))


# -- the report -------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(annotated(PAIR, PAIR_SCOPES, {"block": (["left=", "right=q"], ["0=t"])}), "model.onnx")
    return tmp_path


def test_the_report_says_what_to_feed(pair: Path) -> None:
    lines = run("extract", "model.onnx", "block", "-o", "part.onnx").stdout.splitlines()
    rows = [line.split() for line in lines]
    assert ["input", "q", "float[2]", "←", "right"] in rows
    assert ["input", "p", "float[2]", "not", "known", "to", "be", "received"] in rows
    assert ["output", "t", "float[2]", "→", "0"] in rows
    assert ["output", "s", "float[2]", "not", "returned"] in rows
    assert "forward is not known to have received 'p': feed what Neg 'p' of the root gives" in lines
    assert "no tensor of the file is known to hold argument 'left'" in lines
    assert "forward did not return 's', but it is used outside" in lines


def test_the_report_says_that_nothing_is_recorded(pair: Path) -> None:
    onnx.save(annotated(PAIR, PAIR_SCOPES), "model.onnx")
    result = run("extract", "model.onnx", "block", "-o", "part.onnx")
    assert "not recorded: what forward received and returned" in result.stdout
    assert "not received" not in result.stdout


def test_json_has_what_was_received_and_returned(pair: Path) -> None:
    found = json.loads(run("extract", "model.onnx", "block", "-o", "part.onnx", "--json").stdout)
    (undeclared,) = found["undeclared_inputs"]
    producer = undeclared.pop("producer")
    assert undeclared == {"name": "p", "arguments": []}
    assert (producer["output"], producer["op_type"], producer["scope"]) == ("p", "Neg", {"module": "", "call": 0})
    assert [item["arguments"] for item in found["inputs"]] == [["right"], []]
    assert found["outputs"] == [{"name": "t", "places": ["0"]}, {"name": "s", "places": []}]
    assert (found["lost_arguments"], found["constant_arguments"], found["fused_with"]) == (["left"], [], [])
    assert found["recorded"] is True
