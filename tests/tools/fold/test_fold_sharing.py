"""Which calls share a function, and what the function says of its tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import pytest

import hieronnx
from hieronnx.graph.walks import walk_bodies
from support.annotated import annotated
from support.exports import exported
from support.whole import assert_equal, run_file
from tools.fold.test_fold import is_exact

X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}


def fold_model(model: onnx.ModelProto, folder: Path, feeds: dict[str, np.ndarray]) -> hieronnx.FoldResult:
    """Fold a model; make sure that it computes the same and unfolds to itself, with all that it says of tensors."""
    original, folded, flat = folder / "net.onnx", folder / "folded.onnx", folder / "flat.onnx"
    onnx.save(model, original)
    result = hieronnx.fold(original, output=folded)
    onnx.checker.check_model(folded, full_check=True)
    expected = run_file(original, feeds)
    assert_equal(run_file(folded, feeds), expected, expected)
    inlined = onnx.inliner.inline_local_functions(onnx.load(folded))
    assert_equal(run_file(inlined, feeds), expected, expected)
    is_exact(folded, flat, original)
    assert list_types(onnx.load(flat)) == list_types(model)
    return result


def list_types(model: onnx.ModelProto) -> dict[str, dict[str, bytes]]:
    """List what graphs say of their tensors, those in bodies too."""
    return {
        key: {info.name: info.SerializeToString() for info in (*graph.input, *graph.output, *graph.value_info)}
        for key, graph in walk_bodies(model.graph)
    }


def test_calls_that_give_one_tensor_twice_share_the_function_of_those_that_give_two(tmp_path: Path) -> None:
    text = "net (float[2,4] x) => (float[2,4] y) { p = Sub(x, x)  q = Sub(p, x)  y = Sub(q, q) }"
    result = fold_model(annotated(text, ["a", "b", "c"]), tmp_path, X)
    assert [len(function.calls) for function in result.functions] == [3]
    assert len(result.functions[0].inputs) == 2


def test_one_function_in_another_takes_one_tensor_twice(tmp_path: Path) -> None:
    text = """net (float[2,4] x) => (float[2,4] y) {
        p = Sub(x, x)  q = Neg(p)  r = Sub(q, x)  s = Neg(r)  y = Sub(s, s) }"""
    result = fold_model(annotated(text, ["a.i", "a", "b.i", "b", "c"]), tmp_path, X)
    assert sorted(len(function.calls) for function in result.functions) == [2, 3]


def test_a_weight_that_two_modules_of_one_layer_share_makes_no_second_function(tmp_path: Path) -> None:
    text = """net (float[2,4] x) => (float[2,4] y) <float[4] u = {1,2,3,4}, float[4] v = {5,6,7,8}> {
        a = Mul(x, u)  b = Add(a, v)  c = Mul(b, u)  y = Add(c, u) }"""
    result = fold_model(annotated(text, ["l.0", "l.0", "l.1", "l.1"]), tmp_path, X)
    assert [[str(call) for call in function.calls] for function in result.functions] == [["l.0", "l.1"], ["l"]]


def test_functions_inside_are_of_the_class_that_the_calls_are_of(tmp_path: Path) -> None:
    model = annotated("net (float[2,4] x) => (float[2,4] y) { h = Neg(x)  y = Neg(h) }", ["a.i", "b.i"])
    calls = next(entry for entry in model.metadata_props if entry.key == "hieronnx.calls")
    calls.value = calls.value.replace('/Net/b/i","nets.Net"', '/Net/b/i","nets.Other"')
    result = fold_model(model, tmp_path, X)
    assert [(f.name, [str(call) for call in f.calls]) for f in result.functions] == [
        ("Net", ["a.i"]),
        ("Net_2", ["a"]),
        ("Other", ["b.i"]),
        ("Net_3", ["b"]),
    ]


# -- names and versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scopes", [["", "a", "a"], ["b", "b.a", "b"]])
def test_no_two_nodes_get_one_name(scopes: list[str | tuple[str, ...]], tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[2,4] x) => (float[2,4] y) { [a] p = Neg(x)  [other] q = Abs(p)  [third] y = Neg(q) }"""
    )
    fold_model(annotated(model, scopes), tmp_path, X)  # which ONNX Runtime refuses to load if there are
    folded = onnx.load(tmp_path / "folded.onnx")
    names = [node.name for graph in (folded.graph, *folded.functions) for node in graph.node]
    assert "a_1" in names
    assert {node.name for node in hieronnx.load(tmp_path / "folded.onnx").nodes} == set(names)


def test_functions_have_the_operators_that_the_model_imports_by_another_name(tmp_path: Path) -> None:
    model = annotated("net (float[2,4] x) => (float[2,4] y) { h = Softmax(x)  y = Neg(h) }", ["a", "b"])
    model.opset_import[0].domain = "ai.onnx"
    fold_model(model, tmp_path, X)
    folded, flat = onnx.load(tmp_path / "folded.onnx"), onnx.load(tmp_path / "flat.onnx")
    assert {item.version for function in folded.functions for item in function.opset_import} == {21}
    assert list(flat.opset_import) == list(model.opset_import)


def test_what_is_said_of_quantization_comes_back(tmp_path: Path) -> None:
    model = annotated(WIDER, ["a", "a", "", "b", "b"])
    for name in ("p", "q", "x"):
        scale = onnx.StringStringEntryProto(key="SCALE_TENSOR", value="scale")
        model.graph.quantization_annotation.add(tensor_name=name, quant_parameter_tensor_names=[scale])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "scale"))
    fold_model(model, tmp_path, X)
    said = {
        name: sorted(item.SerializeToString() for item in onnx.load(tmp_path / name).graph.quantization_annotation)
        for name in ("net.onnx", "folded.onnx", "flat.onnx")
    }
    assert said["net.onnx"] == said["flat.onnx"]
    assert len(said["folded.onnx"]) == 2  # of x and q; p is inside a function


# -- types --------------------------------------------------------------------------------------------------

WIDER = """net (float[2,4] x) => (float[2,8] y)
    <float[2,4] p, float[2,4] q, float[2,8] r, float[2,8] s> {
        p = Neg(x)  q = Abs(p)  r = Concat <axis = 1> (q, q)  s = Neg(r)  y = Abs(s) }"""


def test_a_function_tells_the_types_that_all_its_calls_have(tmp_path: Path) -> None:
    text = """net (float[2,4] x) => (float[2,4] y) <float[2,4] p, float[2,4] q, float[2,4] r> {
        p = Neg(x)  q = Abs(p)  r = Neg(q)  y = Abs(r) }"""
    fold_model(annotated(text, ["a", "a", "b", "b"]), tmp_path, X)
    folded = onnx.load(tmp_path / "folded.onnx")
    assert {info.name for info in folded.functions[0].value_info} == {"p", "q"}
    assert [info.name for info in folded.graph.value_info] == ["q"]


def test_what_calls_differ_in_is_told_when_they_are_apart_again(tmp_path: Path) -> None:
    result = fold_model(annotated(WIDER, ["a", "a", "", "b", "b"]), tmp_path, X)
    assert [len(function.calls) for function in result.functions] == [2]
    assert not onnx.load(tmp_path / "folded.onnx").functions[0].value_info


@pytest.mark.parametrize("width", [4, 8])
def test_bodies_of_other_types_are_other_functions(width: int, tmp_path: Path) -> None:
    ways = """then_branch = t () => (float[2,{0}] {1}t) {{ {1}t = Neg({1}) }},
        else_branch = e () => (float[2,{0}] {1}e) {{ {1}e = Abs({1}) }}"""
    joined = "r = Identity(q)" if width == 4 else "r = Concat <axis = 1> (q, q)"
    text = f"""net (float[2,4] x, bool c) => (float[2,{width}] y) {{
        p = Relu(x)  q = If (c) <{ways.format(4, "p")}>  {joined}
        s = Relu(r)  y = If (c) <{ways.format(width, "s")}> }}"""
    scopes: list[str | tuple[str, ...]] = [*["a"] * 4, "", *["b"] * 4]
    for chosen in (True, False):
        result = fold_model(annotated(text, scopes), tmp_path, {**X, "c": np.array(chosen)})
        assert [len(function.calls) for function in result.functions] == ([2] if width == 4 else [1, 1])


def test_what_torch_says_of_tensors_comes_back(tmp_path: Path) -> None:
    path = exported("bert", "dynamo").result.path
    hieronnx.unfold(hieronnx.fold(path).model, output=tmp_path / "flat.onnx")
    before, after = onnx.load(path), onnx.load(tmp_path / "flat.onnx")
    weights = {item.name for item in before.graph.initializer}
    said = [
        {i.name: i.SerializeToString() for i in m.graph.value_info if i.metadata_props or i.name not in weights}
        for m in (before, after)
    ]
    assert said[0]
    assert said[0] == said[1]
    assert list(before.graph.metadata_props) == list(after.graph.metadata_props)


def test_what_a_model_says_of_itself_stays(tmp_path: Path) -> None:
    model = annotated(WIDER, ["a", "a", "", "b", "b"])
    model.doc_string, model.model_version, model.domain = "what it is for", 7, "nets"
    model.graph.doc_string = "a net"
    model.graph.metadata_props.add(key="made by", value="someone")
    model.graph.node[0].doc_string = "of the first call alone"
    fold_model(model, tmp_path, X)
    folded, flat = onnx.load(tmp_path / "folded.onnx"), onnx.load(tmp_path / "flat.onnx")
    assert not folded.functions[0].node[0].doc_string
    for made in (folded, flat):
        assert (made.doc_string, made.model_version, made.domain) == ("what it is for", 7, "nets")
        assert made.graph.doc_string == "a net"
        assert list(made.graph.metadata_props) == list(model.graph.metadata_props)
