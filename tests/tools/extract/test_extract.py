"""Extract: the nodes, inputs and outputs of a part, its sizes, its hierarchy, and the names of targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import hieronnx
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.records import ROOT, Call, CallId
from hieronnx.hierarchy.tags import TagPolicy
from hieronnx.tools.extract.extracting import Extractor, extract_all
from hieronnx.tools.extract.hierarchy import rebase_calls
from support.annotated import annotated, names
from support.callrecords import open_session
from support.exports import exported
from support.onnxdata import bodies, functions

# -- regions ----------------------------------------------------------------------------------------------


MASKED = annotated(
    """
    main (float[2] x, float[2] mask) => (float[2] y)
    {
        m = Neg (mask)
        a = Add (x, m)
        y = Mul (a, m)
    }
    """,
    [("first", "second"), "first", "second"],
)


def test_a_node_that_two_calls_share_comes_with_both() -> None:
    first, second = hieronnx.extract(MASKED, "first"), hieronnx.extract(MASKED, "second")
    assert names(first.nodes) == ["m", "a"]
    assert names(second.nodes) == ["m", "y"]
    assert (first.input_names, first.output_names) == (("mask", "x"), ("a",))
    assert (second.input_names, second.output_names) == (("mask", "a"), ("y",))
    assert names(second.shared_nodes) == ["m"]
    assert second.hierarchy.nodes[0].origins == (ROOT,)


def test_constants_come_along_and_are_no_outputs() -> None:
    model = annotated(
        """
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            c = Constant <value = float[2] {1.0, 2.0}> ()
            d = Sqrt (c)
            a = Add (x, d)
            b = Mul (a, w)
            y = Add (b, c)
        }
        """,
        ["first", "first", "first", "second", "second"],
    )
    first, second = hieronnx.extract(model, "first"), hieronnx.extract(model, "second")
    assert (first.input_names, first.output_names) == (("x",), ("a",))
    assert (second.input_names, second.output_names) == (("a",), ("y",))
    assert names(second.pulled_in_nodes) == ["c"]
    assert second.initializers == ("w",)
    assert second.hierarchy.nodes[0].evidence == "dataflow"


def test_what_ran_between_a_calls_nodes_belongs_to_it() -> None:
    model = annotated(
        "main (float[2] x) => (float[2] y) { a = Relu (x)  b = Neg (a)  y = Exp (b) }", ["block", "", "block"]
    )
    part = hieronnx.extract(model, "block")
    assert (part.input_names, part.output_names) == (("x",), ("y",))
    assert part.internal_tensors == ("a", "b")
    assert names(part.boundary_nodes) == ["a", "y"]


def test_random_numbers_are_drawn_outside() -> None:
    text = "main (float[2] x) => (float[2] y) { r = RandomNormal <shape = [2]> ()  y = Add (x, r) }"
    assert hieronnx.extract(annotated(text, ["", "block"]), "block").input_names == ("x", "r")


def body_model() -> onnx.ModelProto:
    """Return the model with If in If, and Loop; what the bodies do is done by other calls than what has them."""
    model = bodies()
    view = view_model(ir.serde.deserialize_model(model))
    keys = [view.node_key(index) for index in view.file_order]
    scope = {
        "": "",
        "y.then_branch": "outer",
        "y.then_branch/t.then_branch": "outer.inner",
        "y.then_branch/t.else_branch": "outer.other",
        "y.else_branch": "last",
        "z.body": "step",
    }
    return annotated(model, [scope[graph] for graph, _ in keys])


@pytest.mark.parametrize(
    ("target", "inputs", "outputs", "operations"),
    [
        ("outer", ("a", "c", "x"), ("t",), ["t1", "t"]),
        ("outer.inner", ("t1",), ("p",), ["p"]),
        ("outer.other", ("t1", "x"), ("q",), ["q"]),
        ("last", ("a",), ("e",), ["e"]),
        ("step", ("ci", "s", "y"), ("co", "so"), ["co", "so"]),
    ],
)
def test_a_call_in_a_body_can_be_extracted(
    target: str, inputs: tuple[str, ...], outputs: tuple[str, ...], operations: list[str]
) -> None:
    part = hieronnx.extract(body_model(), target)
    assert (part.input_names, part.output_names) == (inputs, outputs)
    assert [node.output for node in part.nodes if node.output in operations] == operations
    open_session(part.model)


def test_bodies_come_with_what_they_capture() -> None:
    part = hieronnx.extract(body_model(), "outer")
    assert part.initializers == ("w",)
    rng = np.random.default_rng(0)
    a, x = (rng.standard_normal(2).astype(np.float32) for _ in range(2))
    (given,) = open_session(part.model).run(None, {"a": a, "x": x, "c": np.array(False)})
    np.testing.assert_array_equal(given, a * np.array([1, 2], np.float32) - x)
    assert {node.graph for node in part.hierarchy.nodes} == {"", "t.then_branch", "t.else_branch"}


def test_functions_come_with_those_who_call_them() -> None:
    model = functions()
    view = view_model(ir.serde.deserialize_model(model))
    keys = [view.node_key(index) for index in view.file_order]
    part = hieronnx.extract(annotated(model, ["twice" if key == ("", "h") else "" for key in keys]), "twice")
    assert [function.name for function in part.model.functions] == ["twice"]
    (given,) = open_session(part.model).run(None, {"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(given, [2, 4])
    assert [(node.graph, node.output) for node in part.hierarchy.nodes] == [("", "h"), ("local::twice", "y")]


def test_a_call_inside_a_function_is_refused_in_one_line() -> None:
    model = functions()
    view = view_model(ir.serde.deserialize_model(model))
    keys = [view.node_key(index) for index in view.file_order]
    inner = annotated(model, ["twice.inner" if key == ("local::twice", "y") else "" for key in keys])
    with pytest.raises(hieronnx.HieronnxError, match=r"'twice\.inner' lies inside the function 'local::twice'"):
        hieronnx.extract(inner, "twice.inner")


def test_a_long_chain_is_cut_in_no_time() -> None:
    size = 10_000
    nodes = [helper.make_node("Relu", [f"t{n}"], [f"t{n + 1}"], name=f"n{n}") for n in range(size)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t0", f"t{size}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    for number in range(size):
        graph.value_info.append(helper.make_tensor_value_info(f"t{number + 1}", TensorProto.FLOAT, [2]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    extractor = Extractor(annotated(model, [f"layers.{n // 10}" for n in range(size)]))
    for number in (0, 500, 999):
        part = extractor.extract([extractor.hierarchy.call_by_id[CallId(f"layers.{number}", 0)]])
        assert (part.input_names, part.output_names) == ((f"t{number * 10}",), (f"t{number * 10 + 10}",))


def test_an_input_of_unknown_type_is_named() -> None:
    model = annotated("main (float[2] x) => (float[2] y) { h = Relu (x)  y = Neg (h) }", ["", "block"])
    model.opset_import.add(domain="odd", version=1)
    model.graph.node[0].domain = "odd"
    with pytest.raises(hieronnx.HieronnxError, match="the type of 'h', an input of the part"):
        hieronnx.extract(model, "block")


# -- sizes ------------------------------------------------------------------------------------------------


def test_a_size_of_the_parts_own_input_comes_along() -> None:
    model = annotated(
        """
        main (float[n, 4] x) => (float[n, 4] y)
        {
            s = Shape (x)
            h = Relu (x)
            k = Shape (h)
            z = ConstantOfShape (k)
            t = ConstantOfShape (s)
            a = Add (h, z)
            y = Add (a, t)
        }
        """,
        ["", "", "", "block", "block", "block", "block"],
    )
    part = hieronnx.extract(model, "block")
    assert part.input_names == ("h", "s")
    assert [item.name for item in part.undeclared_inputs] == ["s"]
    assert [node.output for node in part.pulled_in_nodes] == ["k"]


def test_a_size_is_taken_of_the_axis_of_the_same_name() -> None:
    model = annotated(
        """
        main (float[batch, 4] x, float[sequence] z) => (float[other, batch] y, float[other] w)
        <float[other, batch] h>
        {
            s = Shape <start: int = 0, end: int = 1> (x)
            r = Shape <start: int = -1> (z)
            h = Transpose (x)
            t = Expand (h, s)
            y = Relu (t)
            w = Expand (h, r)
        }
        """,
        ["", "", "", "block", "block", "other"],
    )
    part = hieronnx.extract(model, "block")
    assert (part.input_names, part.undeclared_inputs) == (("h",), ())
    size = part.model.graph.node[0]
    assert (size.op_type, list(size.input), list(size.output)) == ("Shape", ["h"], ["s"])
    assert {attribute.name: attribute.i for attribute in size.attribute} == {"start": 1, "end": 2}
    other = hieronnx.extract(model, "other")
    assert other.input_names == ("h", "r")
    assert [(item.name, item.producer and item.producer.op_type) for item in other.undeclared_inputs] == [
        ("r", "Shape")
    ]


@pytest.mark.parametrize(("evidence", "inputs"), [("dataflow", ("h",)), ("captured", ("ids", "h"))])
def test_a_size_that_was_only_given_to_its_reader_is_taken_of_the_parts_own_input(
    evidence: str, inputs: tuple[str, ...]
) -> None:
    model = annotated(
        """
        main (int64[batch] ids, float[10, 4] w) => (float[batch, 4] y)
        <float[batch, 4] h>
        {
            s = Shape (ids)
            h = Gather (w, ids)
            t = Expand (h, s)
            y = Relu (t)
        }
        """,
        ["block", "", "block", "block"],
    )
    (prop,) = (prop for prop in model.graph.node[0].metadata_props if prop.key == "hieronnx.evidence")
    prop.value = evidence
    assert hieronnx.extract(model, "block").input_names == inputs


# -- the hierarchy of a part ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "exporter"), [("bert", "dynamo"), ("t5", "torchscript"), ("cond", "dynamo")])
def test_a_part_of_a_part_is_a_part_of_the_whole(name: str, exporter: str, tmp_path: Path) -> None:
    whole = Extractor(exported(name, exporter).result.path)
    compared = 0
    for call in whole.hierarchy.calls:
        if call.parent != ROOT or whole.find(call.id) is None or call.id.number:
            continue
        outer = whole.extract([call], tmp_path / "outer.onnx")
        again = Extractor(tmp_path / "outer.onnx")
        assert again.hierarchy.nodes == outer.hierarchy.nodes
        for below in outer.hierarchy.calls:
            path = f"{call.id.module}.{below.id.module}" if below.id.module else call.id.module
            original = whole.hierarchy.call_by_id.get(CallId(path, below.id.number))
            if original is None or again.find(below.id) is None:
                continue
            first, second = whole.extract([original]), again.extract([below])
            assert names(first.nodes) == names(second.nodes)
            assert set(first.input_names) == set(second.input_names)
            assert set(first.output_names) >= set(second.output_names)
            compared += 1
    assert compared > 1


def test_the_hierarchy_of_a_part_is_rooted_at_its_module(tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    part = hieronnx.extract(exported("bert", "dynamo").result.path, "encoder.layer.1", output=path)
    assert part.model == path
    found = hieronnx.load(path)
    assert found.calls == part.hierarchy.calls
    assert replace(found.calls[0], received=None, returned=None) == Call(ROOT, None, "", "/BertLayer", True)
    assert [item.name for item in found.calls[0].received or ()] == ["hidden_states", "attention_mask"]
    assert found.tags["/BertLayer/BertAttention/BertSelfAttention"] == "attention.self"
    assert found.modules[""].class_name == "BertLayer"
    assert found.model["class"] == "BertLayer"
    assert found.model["file"] == "layer.onnx"
    assert {held.parameter for held in found.initializers} >= {"attention.self.query.bias", "output.LayerNorm.weight"}
    (tmp_path / "layer_hierarchy.json").unlink()
    assert hieronnx.load(path).nodes == found.nodes


def test_a_module_from_elsewhere_keeps_its_name_in_a_part() -> None:
    path = exported("sibling_borrowed", "dynamo").result.path
    part = hieronnx.extract(path, "borrower")
    assert [str(call.id) for call in part.hierarchy.calls] == ["", "linear", "lender.block", "lender.block.linear"]
    shared = hieronnx.extract(exported("shared_under_two_parents", "dynamo").result.path, "right")
    assert [str(call.id) for call in shared.hierarchy.calls] == ["", "block", "block.linear"]
    assert [call.via for call in shared.hierarchy.calls] == ["", "block", "block.linear"]


def test_a_module_that_calls_itself_is_numbered_from_the_part_on() -> None:
    path = exported("recursive_child", "dynamo").result.path
    whole = hieronnx.load(path)
    inner = [
        call for call in whole.calls if call.id.number == 1 and call.parent and call.parent.module == call.id.module
    ]
    part = hieronnx.extract(path, str(inner[0].id))
    recursive = [call for call in part.hierarchy.calls if not call.id.module]
    assert [call.id.number for call in recursive] == list(range(len(recursive)))
    assert {call.via for call in recursive} == {""}
    assert len(recursive) == sum(call.id.module == inner[0].id.module for call in whole.calls) - 1


def test_later_calls_are_numbered_anew() -> None:
    path = exported("called_in_loop", "dynamo").result.path
    part = hieronnx.extract(path, "cell@2")
    assert (part.module, part.call, part.calls) == ("cell", 2, 3)
    assert [str(call.id) for call in part.hierarchy.calls] == ["", "linear"]
    assert hieronnx.extract(path, "cell").call == 0


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("bert", "dynamo"),
        ("bert", "torchscript"),
        ("llama", "dynamo"),
        ("cond", "dynamo"),
        ("scripted_loop", "torchscript"),
        ("conv_batch_norm_residual", "dynamo"),
    ],
)
def test_every_part_of_a_model_is_valid(name: str, exporter: str, tmp_path: Path) -> None:
    extractor = Extractor(exported(name, exporter).result.path)
    with_nodes = [call for call in extractor.hierarchy.calls if extractor.find(call.id) is not None]
    assert len(with_nodes) > 1
    for call in with_nodes:
        extractor.extract([call], tmp_path / "part.onnx")
        assert list(hieronnx.validate(tmp_path / "part.onnx")) == []


# -- targets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("encoder.layer.1", "encoder.layer.1"),
        ("/BertModel/BertEncoder/BertLayer.1", "encoder.layer.1"),
        ("*/BertLayer.1", "encoder.layer.1"),
        ("*layer.1*", "encoder.layer.1"),
        ("*.1.attention.self.que?y", "encoder.layer.1.attention.self.query"),
        ("", ""),
        ("/BertModel", ""),
    ],
)
def test_a_target_is_a_path_a_tag_or_a_glob(target: str, found: str) -> None:
    assert hieronnx.extract(exported("bert", "dynamo").result.path, target).module == found


def test_all_matches_are_written_as_files_of_their_names(tmp_path: Path) -> None:
    path = exported("bert", "dynamo").result.path
    skipped: list[str] = []
    found = list(extract_all(path, "*.[01].output.*", tmp_path / "parts", skipped=skipped.append))
    assert [str(part.model.name) for part in found if isinstance(part.model, Path)] == [
        f"encoder.layer.{layer}.output.{name}.onnx" for layer in (0, 1) for name in ("dense", "LayerNorm")
    ]
    assert len(skipped) == 2
    assert "dropout" in skipped[0]


def test_the_tags_of_a_part_follow_the_policy_of_the_whole() -> None:
    whole = hieronnx.load(exported("bert", "dynamo").result.path)
    layer = CallId("encoder.layer.0", 0)
    tagged = {call.tag for call in rebase_calls(whole, layer).calls if call.tagged}
    assert "/BertLayer/BertOutput/LayerNorm" in tagged
    everything = rebase_calls(replace(whole, policy=TagPolicy(None)), layer)
    assert "/BertLayer/BertOutput/Linear" in {call.tag for call in everything.calls if call.tagged}
    nothing = rebase_calls(replace(whole, policy=TagPolicy(frozenset())), layer)
    assert not any("LayerNorm" in call.tag for call in nothing.calls)
