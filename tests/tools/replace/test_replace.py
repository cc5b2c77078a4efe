"""Parts in the places of module calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hieronnx
from hieronnx import HieronnxError
from hieronnx.tools.replace.graph import Grafted, sort_nodes
from support.annotated import annotated
from support.cli import run
from support.exports import Exported, exported
from support.whole import assert_equal, feeds_of, run_file
from support.zoo import CASES

EXPORTERS = ["dynamo", "torchscript"]


def replace_every_call(whole: Exported, folder: Path) -> int:
    """Extract every call that can be and put it back; return how many there are."""
    path, done = whole.result.path, 0
    for call in whole.hierarchy.calls:
        try:
            hieronnx.extract(path, str(call.id), output=folder / "part.onnx")
        except HieronnxError:
            continue  # it has no nodes
        try:
            result = hieronnx.replace(path, str(call.id), folder / "part.onnx", output=folder / "out.onnx")
        except HieronnxError as error:
            if "inside the body" not in str(error):
                raise
            continue
        compared = hieronnx.compare(path, folder / "out.onnx", values=True)
        assert compared.same, (call.id, compared.differences, result)
        old, new = (sorted(n.key for n in hieronnx.load(p).nodes) for p in (path, folder / "out.onnx"))
        assert old == new, call.id
        scopes = {node.key: (node.scope, node.evidence) for node in hieronnx.load(folder / "out.onnx").nodes}
        moved = [n.key for n in whole.hierarchy.nodes if scopes[n.key] != (n.scope, n.evidence) and len(n.origins) == 1]
        assert not moved, (call.id, moved)
        done += 1
    return done


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert", "conv_batch_norm_residual", "called_in_loop"])
def test_what_was_extracted_and_put_back_is_the_same_model(name: str, exporter: str, tmp_path: Path) -> None:
    assert replace_every_call(exported(name, exporter), tmp_path) > 1


@pytest.mark.long
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_so_it_is_for_every_call_of_the_zoo(name: str, exporter: str, tmp_path: Path) -> None:
    if exporter in CASES[name].exporters:
        replace_every_call(exported(name, exporter), tmp_path)


# --- other forms of a block ---


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_optimized_block_runs_in_the_place_of_the_one_it_was_made_of(exporter: str, tmp_path: Path) -> None:
    whole = exported("bert", exporter)
    hieronnx.extract(whole.result.path, "encoder.layer.0", output=tmp_path / "part.onnx")
    hieronnx.optimize(tmp_path / "part.onnx", output=tmp_path / "fast.onnx", tool="ort-extended")
    result = hieronnx.replace(whole.result.path, "encoder.layer.0", tmp_path / "fast.onnx", output=tmp_path / "o.onnx")
    assert len(result.added) < len(result.removed)
    feeds = feeds_of(whole)
    expected, got = run_file(whole.result.path, feeds), run_file(tmp_path / "o.onnx", feeds)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-4)
    assert [f for f in hieronnx.validate(tmp_path / "o.onnx").findings if f.severity == "error"] == []
    hierarchy = hieronnx.load(tmp_path / "o.onnx")
    assert hierarchy.coverage() == whole.hierarchy.coverage() == 1.0
    optimized = {node.output for node in hieronnx.load(tmp_path / "fast.onnx").nodes}
    assert {node.scope.module[:15] for node in hierarchy.nodes if node.output in optimized - {"input_ids"}} >= {
        "encoder.layer.0"
    }


def test_the_error_of_a_quantized_block_is_that_of_the_block(tmp_path: Path) -> None:
    whole = exported("bert", "torchscript")
    part = hieronnx.extract(whole.result.path, "pooler", output=tmp_path / "part.onnx")
    hieronnx.quantize(tmp_path / "part.onnx", output=tmp_path / "int8.onnx", tool="dynamic")
    hieronnx.replace(whole.result.path, "pooler", tmp_path / "int8.onnx", output=tmp_path / "o.onnx")
    feeds = feeds_of(whole)
    seen = {**feeds, **run_file(whole.result.path, feeds, part.input_names)}
    alone = run_file(tmp_path / "int8.onnx", seen)
    got, expected = run_file(tmp_path / "o.onnx", feeds), run_file(whole.result.path, feeds)
    assert_equal(got, alone, part.output_names)
    name = part.output_names[0]
    assert np.abs(got[name] - expected[name]).max() > 0
    assert hieronnx.compare(whole.result.path, tmp_path / "o.onnx").same is False


@pytest.mark.parametrize("form", ["corrected", "fp16"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_weight_that_changed_takes_the_place_of_the_one_of_its_name(exporter: str, form: str, tmp_path: Path) -> None:
    whole = exported("bert", exporter)
    part = hieronnx.extract(whole.result.path, "pooler", output=tmp_path / "part.onnx")
    if form == "fp16":
        hieronnx.quantize(tmp_path / "part.onnx", output=tmp_path / "new.onnx", tool="fp16", keep_io_types=True)
    else:
        model = onnx.load(tmp_path / "part.onnx")
        bias = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 1)
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 1, bias.name))
        onnx.save(model, tmp_path / "new.onnx")
    hieronnx.replace(whole.result.path, "pooler", tmp_path / "new.onnx", output=tmp_path / "o.onnx")
    onnx.checker.check_model(tmp_path / "o.onnx", full_check=True)
    assert hieronnx.validate(tmp_path / "o.onnx").passed
    feeds = feeds_of(whole)
    seen = {**feeds, **run_file(whole.result.path, feeds, part.input_names)}
    got, alone = run_file(tmp_path / "o.onnx", feeds), run_file(tmp_path / "new.onnx", seen)
    assert_equal(got, alone, part.output_names)
    before, name = run_file(whole.result.path, feeds), part.output_names[0]
    assert np.abs(got[name] - before[name]).max() > 0


@pytest.mark.parametrize("form", ["ort-extended", "int8"])
@pytest.mark.parametrize("call", ["encoder.layer.0", "pooler"])
def test_the_error_that_a_block_brings_is_what_verify_says(call: str, form: str, tmp_path: Path) -> None:
    whole = exported("bert", "torchscript")
    part = hieronnx.extract(whole.result.path, call, output=tmp_path / "part.onnx")
    if form == "int8":
        hieronnx.quantize(tmp_path / "part.onnx", output=tmp_path / "other.onnx", tool="dynamic")
    else:
        hieronnx.optimize(tmp_path / "part.onnx", output=tmp_path / "other.onnx", tool=form)
    hieronnx.replace(whole.result.path, call, tmp_path / "other.onnx", output=tmp_path / "o.onnx")
    feeds = feeds_of(whole)
    seen = {**feeds, **run_file(whole.result.path, feeds, part.input_names)}
    alone, expected = (run_file(tmp_path / name, seen) for name in ("other.onnx", "part.onnx"))
    result = hieronnx.verify(tmp_path / "o.onnx", whole.result.path, inputs=feeds)
    found = {str(item.id): item for item in result.calls}
    error = max(float(np.abs(alone[name] - expected[name]).max()) for name in part.output_names)
    assert found[call].introduced.max_abs == pytest.approx(error, rel=1e-6, abs=1e-9)
    apart = [item for item in result.calls if not item.module.startswith(call) and not call.startswith(item.module)]
    assert [str(item.id) for item in apart if item.introduced.max_abs > 1e-5] == []
    assert all(culprit.module.startswith(call) for culprit in result.culprits)


def test_several_calls_keep_their_own_weights(tmp_path: Path) -> None:
    whole = exported("bert", "dynamo")
    path = whole.result.path
    hieronnx.extract(path, "encoder.layer.1", output=tmp_path / "part.onnx")
    result = hieronnx.replace(path, "encoder.layer.*", tmp_path / "part.onnx", output=tmp_path / "o.onnx")
    assert [str(call) for call in result.targets] == ["encoder.layer.0", "encoder.layer.1"]
    feeds = feeds_of(whole)
    expected = run_file(path, feeds)
    assert_equal(run_file(tmp_path / "o.onnx", feeds), expected, expected)
    assert result.added_weights == ()
    onnx.checker.check_model(tmp_path / "o.onnx", full_check=True)


def test_a_block_of_other_modules_brings_its_own_hierarchy(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b", "c"]), tmp_path / "m.onnx")
    onnx.save(
        annotated("part (float[2,3] v) => (float[2,3] w) { k = Exp(v)  w = Tanh(k) }", ["e", ""]), tmp_path / "p.onnx"
    )
    result = hieronnx.replace(tmp_path / "m.onnx", "b", tmp_path / "p.onnx", output=tmp_path / "o.onnx")
    hierarchy = hieronnx.load(tmp_path / "o.onnx")
    assert [(node.op_type, str(node.scope)) for node in hierarchy.nodes] == [
        ("Relu", "a"),
        ("Exp", "b.e"),
        ("Tanh", "b"),
        ("Abs", "c"),
    ]
    assert repr(result) == "ReplaceResult('b': 1 nodes to 2 nodes)"
    assert result.inputs == {"v": ("x1",)}
    assert hieronnx.validate(tmp_path / "o.onnx").passed


def test_names_that_others_have_are_made_unique_and_weights_go(tmp_path: Path) -> None:
    text = "net (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}> "
    onnx.save(annotated(text + "{ a = Mul(x, w)  b = Add(a, v)  y = Mul(b, v) }", ["p", "q", "r"]), tmp_path / "m.onnx")
    part = "part (float[2] a) => (float[2] b) <float[2] v = {5.0, 6.0}> { y = Mul(a, v)  b = Neg(y) }"
    onnx.save(onnx.parser.parse_model(HEADER + part), tmp_path / "p.onnx")
    result = hieronnx.replace(tmp_path / "m.onnx", "q", tmp_path / "p.onnx", output=tmp_path / "o.onnx")
    assert result.renamed == {"y": ("y_1",)}
    assert (result.added_weights, result.removed_weights) == (("v_1",), ())
    (got,) = run_file(tmp_path / "o.onnx", {"x": np.float32([1, 1])}).values()
    np.testing.assert_array_equal(got, [-(1 * 5) * 3, -(2 * 6) * 4])
    again = hieronnx.replace(tmp_path / "m.onnx", "p", onnx.parser.parse_model(HEADER + SINGLE))
    assert again.removed_weights == ("w",)
    assert [node.evidence for node in again.added] == ["carried"]


def test_a_part_of_another_opset_is_brought_to_that_of_the_model(tmp_path: Path) -> None:
    net = of(
        "net (float[2,3] x) => (float[2] y) <int64[1] k = {1}> "
        "{ a = Relu(x)  b = ReduceSum<keepdims = 0>(a, k)  y = Neg(b) }",
        '<ir_version: 8, opset_import: ["" : 13]> ',
    )()
    onnx.save(annotated(net, ["p", "q", "r"]), tmp_path / "m.onnx")
    older = "p (float[2,3] a) => (float[2] b) { c = Abs(a)  b = ReduceSum<axes = [1], keepdims = 0>(c) }"
    part = of(older, '<ir_version: 6, opset_import: ["" : 12]> ')()
    hieronnx.replace(tmp_path / "m.onnx", "q", part, output=tmp_path / "o.onnx")
    onnx.checker.check_model(tmp_path / "o.onnx", full_check=True)
    (got,) = run_file(tmp_path / "o.onnx", {"x": np.float32([[1, 2, 3], [4, 5, 6]])}).values()
    np.testing.assert_array_equal(got, [-6, -15])
    newer = of("p (float[2,3] x) => (float[2,3] a) { a = Gelu(x) }", '<ir_version: 9, opset_import: ["" : 20]> ')()
    with pytest.raises(HieronnxError, match=r"changes Gelu .*export the part with the model's opset"):
        hieronnx.replace(tmp_path / "m.onnx", "p", newer, output=tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


# --- parts that do not fit ---

HEADER = '<ir_version: 10, opset_import: ["" : 21]> '
SINGLE = "part (float[2] x) => (float[2] a) { a = Neg(x) }"
NET = "net (float[2,3] x0) => (float[2,3] y) { x1 = Relu(x0)  x2 = Neg(x1)  y = Abs(x2) }"
TWO = "net (float[2] x) => (float[2] y, float[2] z) "
TWO += "{ a = Relu(x)  b = Neg(a)  c = Exp(b)  d = Abs(c)  y = Mul(d, a)  z = Tanh(b) }"


def of(text: str, header: str = HEADER) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.parser.parse_model(header + text)


def sequence_input() -> onnx.ModelProto:
    model = of("part (float[2,3] x1) => (float[2,3] x2) { x2 = Neg(x1) }")()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    model.graph.input[0].type.CopyFrom(kind)
    return model


FITTING = "part (float[2,3] x1) => (float[2,3] x2) "
OLD, FUTURE = HEADER.replace("21", "17"), HEADER.replace("21", "999")
WRONG: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "no output": (
        of("part (float[2,3] x1) => (float[2,3] q, float[2,3] r) { q = Neg(x1) r = Abs(q) }"),
        "not give 'x2'",
    ),
    "another input": (of("part (float[2,3] x1, float[2,3] m) => (float[2,3] x2) { x2 = Add(x1, m) }"), "takes 'm'"),
    "two inputs": (of("part (float[2,3] v, float[2,3] m) => (float[2,3] x2) { x2 = Add(v, m) }"), "it takes 'v'"),
    "double": (
        of("part (double[2,3] x1) => (double[2,3] x2) { x2 = Neg(x1) }"),
        r"float\[2,3\] in the model and double",
    ),
    "half in": (of("part (float16[2,3] x1) => (float[2,3] x2) { h = Neg(x1) x2 = Cast<to = 1>(h) }"), "float16"),
    "half out": (
        of("part (float[2,3] x1) => (float16[2,3] x2) { x2 = Cast<to = 10>(x1) }"),
        "the output 'x2' is float",
    ),
    "int": (of("part (int64[2,3] x1) => (int64[2,3] x2) { x2 = Neg(x1) }"), "int64"),
    "rank 1": (of("part (float[6] x1) => (float[6] x2) { x2 = Neg(x1) }"), r"float\[6\] in the part"),
    "rank 3": (of("part (float[1,2,3] x1) => (float[1,2,3] x2) { x2 = Neg(x1) }"), r"float\[1,2,3\]"),
    "size": (of("part (float[2,4] x1) => (float[2,4] x2) { x2 = Neg(x1) }"), r"float\[2,4\]"),
    "batch": (of("part (float[1,3] x1) => (float[1,3] x2) { x2 = Neg(x1) }"), r"float\[1,3\]"),
    "size out": (of("part (float[2,3] x1) => (float[3,2] x2) { x2 = Transpose(x1) }"), r"float\[3,2\]"),
    "by position": (of("part (float[9] v) => (float[9] w) { w = Neg(v) }"), r"\(its 'v'\)"),
    "sequence": (sequence_input, "sequence_type in the part"),
    "opset 999": (of(FITTING + "{ x2 = Neg(x1) }", FUTURE), "opset 999"),
    "no operator": (of(FITTING + "{ x2 = Nog(x1) }"), "the operator Nog"),
    "a tensor of the model's": (of(FITTING + "{ q = Neg(x1) x2 = Add(q, x0) }"), "reads 'x0', which is none of its"),
    "an output of nobody's": (of("part (float[2,3] x1) => (float[2,3] x2) { q = Neg(x1) }"), "made by none of its"),
    "a tensor of nobody's": (of(FITTING + "{ x2 = Add(x1, q) }"), "reads 'q', which is none of its inputs"),
    "the wrong order": (of(FITTING + "{ x2 = Neg(q) q = Abs(x1) }"), "reads 'q', .* nothing before it makes"),
    "not yet in its opset": (of(FITTING + "{ x2 = Gelu(x1) }", OLD), "Gelu"),
}


@pytest.mark.parametrize(("part", "message"), WRONG.values(), ids=WRONG)
def test_a_part_that_does_not_fit_is_refused_and_nothing_is_written(
    part: Callable[[], onnx.ModelProto], message: str, tmp_path: Path
) -> None:
    onnx.save(annotated(NET, ["a", "b", "c"]), tmp_path / "m.onnx")
    with pytest.raises(HieronnxError, match=message):
        hieronnx.replace(tmp_path / "m.onnx", "b", part(), output=tmp_path / "o.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_part_that_would_close_a_circle_is_refused(tmp_path: Path) -> None:
    onnx.save(annotated(TWO, ["p", "p", "", "p", "", ""]), tmp_path / "m.onnx")
    part = of(
        "part (float[2] x, float[2] c) => (float[2] a, float[2] b, float[2] d) "
        "{ a = Relu(x)  b = Add(a, c)  d = Abs(c) }"
    )()
    with pytest.raises(HieronnxError, match=r"takes 'c', which the call is not given"):
        hieronnx.replace(tmp_path / "m.onnx", "p", part, output=tmp_path / "o.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_nodes_in_a_circle_have_no_order() -> None:
    outside = helper.make_node("Neg", ["y"], ["x"])
    part = Grafted([(0, helper.make_node("Abs", ["x"], ["z"])), (1, helper.make_node("Exp", ["z"], ["y"]))])
    with pytest.raises(HieronnxError, match="would make the model cyclic"):
        sort_nodes([(0, outside)], [(1, part)])
    free = helper.make_node("Neg", ["w"], ["x"])
    assert [node.op_type for node in sort_nodes([(5, free)], [(1, part)])] == ["Neg", "Abs", "Exp"]


def test_calls_that_cannot_be_replaced_are_told(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "b", "c"]), tmp_path / "m.onnx")
    onnx.save(of("part (float[2,3] x1) => (float[2,3] x2) { x2 = Neg(x1) }")(), tmp_path / "p.onnx")
    for target, part, message in (
        ("d", "p.onnx", "no module call 'd'"),
        ("b", "none.onnx", "no ONNX file at"),
    ):
        done = run("replace", tmp_path / "m.onnx", target, tmp_path / part, "-o", tmp_path / "o.onnx")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
        assert message in done.stderr
    done = run("replace", tmp_path / "m.onnx", "b", tmp_path / "p.onnx", "-o", tmp_path / "p.onnx")
    assert "would overwrite" in done.stderr
    done = run("replace", tmp_path / "m.onnx", "b", tmp_path / "p.onnx", "-o", tmp_path / "o.onnx")
    assert done.exit_code == 0, done.output
    assert "replaced b" in done.stdout
    assert hieronnx.compare(tmp_path / "m.onnx", tmp_path / "o.onnx").same
