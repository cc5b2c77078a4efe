"""compare finds out what was done to a graph: the verdict, and the very nodes that were edited."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

import hieronnx
import support.cli
from hieronnx import compare
from hieronnx.report.comparison import comparison_to_markdown, render_comparison
from support.edits import (
    NODE_EDITS,
    SAME,
    VALUE_EDITS,
    Edit,
    insert,
    layered_model,
    random_model,
    remove_layer,
    rename,
)
from support.exports import export_baseline, exported
from support.onnxdata import MADE, weights_elsewhere
from support.zoo import CASES

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(2, 60)


# -- random graphs and edits ------------------------------------------------------------------------------


@given(SEEDS, SIZES, st.sampled_from(SAME))
@settings(max_examples=120, deadline=None)
def test_other_names_and_another_order_are_the_same(
    seed: int, size: int, edit: Callable[[onnx.ModelProto, random.Random], Edit]
) -> None:
    rng = random.Random(seed)
    model = random_model(rng, size)
    found = compare(model, edit(model, rng).model)
    assert found.same, found.describe()


@given(SEEDS, SIZES, st.sampled_from(NODE_EDITS))
@settings(max_examples=300, deadline=None)
def test_an_edited_node_is_found_and_nothing_else(
    seed: int, size: int, edit: Callable[[onnx.ModelProto, random.Random], Edit | None]
) -> None:
    rng = random.Random(seed)
    model = random_model(rng, size)
    made = edit(model, rng)
    assume(made is not None)
    assert made is not None
    found = compare(model, made.model)
    assert not found.same
    assert [(change.kind, change.node.op_type) for change in found.nodes] == [(made.kind, made.operators[0])]
    assert found.nodes[0].node.output in made.outputs
    assert found.size == 1


@given(SEEDS, SIZES, st.sampled_from(NODE_EDITS))
@settings(max_examples=200, deadline=None)
def test_without_any_names_the_edit_is_as_small(
    seed: int, size: int, edit: Callable[[onnx.ModelProto, random.Random], Edit | None]
) -> None:
    rng = random.Random(seed)
    model = random_model(rng, size, shared_weights=False)
    made = edit(model, rng)
    assume(made is not None)
    assert made is not None
    found = compare(model, rename(made.model, rng).model)
    assert not found.same
    assert found.size == 1, found.describe()


@given(SEEDS, SIZES, st.sampled_from(VALUE_EDITS), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_changed_shape_is_found_where_it_is(
    seed: int, size: int, edit: Callable[[onnx.ModelProto, random.Random], Edit | None], renamed: bool
) -> None:
    rng = random.Random(seed)
    model = random_model(rng, size)
    made = edit(model, rng)
    assume(made is not None)
    assert made is not None
    found = compare(model, rename(made.model, rng).model if renamed else made.model)
    assert not found.same
    assert not found.nodes
    assert [change.role for change in found.values] == [made.kind]
    assert found.values[0].before in made.outputs
    assert found.values[0].differences[0].what == "type"


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_several_edits_in_different_layers_are_all_found(seed: int) -> None:
    rng = random.Random(seed)
    model = layered_model(12)
    edited, inserted = model, set[str]()
    for _ in range(4):
        made = insert(edited, rng)
        edited, inserted = made.model, inserted | made.outputs
    found = compare(model, edited)
    assert {change.kind for change in found.nodes} == {"added"}
    assert {change.node.output for change in found.nodes} == inserted
    assert compare(model, rename(edited, rng).model).size == 4


# -- layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 1, 7, 11])
def test_one_of_many_identical_layers_that_was_removed_is_the_only_difference(layer: int) -> None:
    model = layered_model(12)
    removed = remove_layer(model, f"layer.{layer}")
    found = compare(model, removed)
    assert {change.kind for change in found.nodes} == {"removed"}
    assert [change.node.name.partition("/")[0] for change in found.nodes] == [f"layer.{layer}"] * 8


def test_a_removed_layer_is_one_whole_layer_also_without_names() -> None:
    model = layered_model(12)
    renamed = rename(remove_layer(model, "layer.5"), random.Random(0)).model
    found = compare(model, renamed)
    assert {change.kind for change in found.nodes} == {"removed"}
    assert len(found.nodes) == 8
    assert len({change.node.name.partition("/")[0] for change in found.nodes}) == 1


def test_two_removed_layers_are_two_whole_layers() -> None:
    model = layered_model(12)
    edited = remove_layer(remove_layer(model, "layer.3"), "layer.8")
    assert {change.node.name.partition("/")[0] for change in compare(model, edited).nodes} == {"layer.3", "layer.8"}
    found = compare(model, rename(edited, random.Random(0)).model)
    assert found.count("removed") == found.size == 16


# -- what counts ------------------------------------------------------------------------------------------


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "local" : 1]> {text}')


BASE = f"""
    main (float[n, 4] x) => (float[n, 4] y)
    <float[4, 4] w = {{{", ".join(["0.5"] * 16)}}}>
    {{ a = MatMul (x, w) y = Softmax <axis = 1> (a) }}
"""


def test_dynamic_axes_count_by_which_are_the_same_not_by_name() -> None:
    text = "main (float[{}, 4] x, float[{}, 4] z) => (float[{}, 4] y) {{ y = Add (x, z) }}"
    same = parse(text.format("n", "n", "n"))
    assert compare(same, parse(text.format("batch", "batch", "batch"))).same
    assert not compare(same, parse(text.format("batch", "batch", "batch")), names=True).same
    assert not compare(same, parse(text.format("n", "m", "n"))).same
    assert not compare(same, parse(text.format("n", "3", "n"))).same


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (BASE.replace("axis = 1", "axis = 0"), "attribute"),
        (BASE.replace("float[n, 4] x", "float16[n, 4] x"), "type"),
        (BASE.replace("=> (float[n, 4] y)", "=> (float[n, 5] y)"), "type"),
        (BASE.replace("MatMul (x, w)", "MatMul (w, x)"), "input"),
    ],
)
def test_what_is_told_of_a_change(other: str, what: str) -> None:
    found = compare(parse(BASE), parse(other))
    changes = [*found.nodes, *found.values]
    assert len(changes) == 1
    assert changes[0].kind == "changed"
    assert {difference.what for difference in changes[0].differences} == {what}


def test_an_attribute_that_is_left_out_is_its_default() -> None:
    assert compare(parse(BASE.replace("axis = 1", "axis = -1")), parse(BASE.replace("<axis = 1>", ""))).same
    assert not compare(parse(BASE), parse(BASE.replace("<axis = 1>", ""))).same


def test_an_attribute_that_came_or_went_is_told_with_its_default() -> None:
    found = compare(parse(BASE), parse(BASE.replace("<axis = 1>", "")))
    assert str(found.nodes[0].differences[0]) == "attribute axis: 1 → -1 (default)"


def test_an_operator_counts_by_its_own_version_not_by_the_opset() -> None:
    def at(opset: int, op: str) -> onnx.ModelProto:
        graph = parse(f"main (float[4] x) => (float[4] y) {{ y = {op} (x) }}").graph
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])

    found = compare(at(20, "Tanh"), at(18, "Tanh"))
    assert found.same
    assert found.notes == ("opset ai.onnx 20 → 18",)
    changed = compare(at(14, "Relu"), at(13, "Relu"))
    assert [str(difference) for difference in changed.nodes[0].differences] == ["version: 14 → 13"]


def attribute(kind: int, **fields: object) -> onnx.ModelProto:
    """Return a model with a node of an unknown operator that has one attribute."""
    node = helper.make_node("Odd", ["x"], ["y"], domain="local")
    node.attribute.add(name="a", type=kind, **fields)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([node], "main", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("local", 1)])


def test_attributes_are_equal_only_in_type_and_value() -> None:
    kinds = onnx.AttributeProto
    models = [
        attribute(kinds.INT, i=1),
        attribute(kinds.FLOAT, f=1.0),
        attribute(kinds.INTS, ints=[1]),
        attribute(kinds.FLOATS, floats=[1.0]),
        attribute(kinds.FLOAT, f=0.0),
        attribute(kinds.FLOAT, f=-0.0),
        attribute(kinds.FLOAT, f=float("nan")),
        attribute(kinds.STRING, s=b"nan"),
        attribute(kinds.STRINGS, strings=[b"nan"]),
        attribute(kinds.TYPE_PROTO, tp=helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
        attribute(kinds.TYPE_PROTO, tp=helper.make_tensor_type_proto(TensorProto.FLOAT, [3])),
    ]
    for i, a in enumerate(models):
        for j, b in enumerate(models):
            assert compare(a, b).same == (i == j), (i, j)


def test_what_people_write_for_people_does_not_count() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    plain = attribute(onnx.AttributeProto.TYPE_PROTO, tp=kind)
    assert compare(plain, attribute(onnx.AttributeProto.TYPE_PROTO, tp=kind, doc_string="two of them")).same


def test_initializers_that_nobody_reads_are_told_apart_by_type_not_by_name() -> None:
    def holding(**sizes: int) -> onnx.ModelProto:
        model = parse("main (float[2] x) => (float[2] y) { y = Relu (x) }")
        held = [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in sizes.items()]
        model.graph.initializer.extend(held)
        return model

    assert compare(holding(a=2, b=3), holding(a=3, b=2)).same
    assert not compare(holding(a=2, b=3), holding(a=2, b=2)).same


def test_small_initializers_with_other_values_are_noted() -> None:
    text = "main (float[6] x) => (float[n, m] y) <int64[2] shape = {%s}> { y = Reshape (x, shape) }"
    found = compare(parse(text % "2, 3"), parse(text % "3, 2"))
    assert found.same
    assert found.notes == ("1 small initializer holds other values ('shape'); --values counts them",)
    assert not compare(parse(text % "2, 3"), parse(text % "3, 2"), values=True).same


def test_an_input_with_a_default_counts() -> None:
    plain = parse("main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }")
    given_too = onnx.ModelProto.FromString(plain.SerializeToString())
    given_too.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    found = compare(plain, given_too)
    assert [(change.role, change.kind, change.after) for change in found.values] == [("input", "added", "w")]
    plain.ir_version = given_too.ir_version = 3  # where all initializers had to be inputs
    assert compare(plain, given_too).same


def test_a_shared_initializer_is_not_two_equal_ones() -> None:
    held = "<float[2] w = {1, 2}, float[2] v = {1, 2}>"
    text = f"main (float[2] x) => (float[2] y) {held} {{ a = Add (x, w) y = Add (a, %s) }}"
    assert not compare(parse(text % "w"), parse(text % "v")).same


def test_an_initializer_that_nobody_reads_counts() -> None:
    extra = parse(BASE)
    extra.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "extra"))
    found = compare(parse(BASE), extra)
    assert not found.same
    assert [(change.role, change.kind, change.after) for change in found.values] == [("initializer", "added", "extra")]
    assert compare(extra, rename(extra, random.Random(0)).model).same


def test_names_count_only_if_asked() -> None:
    model = parse(BASE)
    renamed = rename(model, random.Random(0)).model
    assert compare(model, renamed).same
    assert not compare(model, renamed, names=True).same
    assert compare(model, model, names=True).same


def test_values_of_initializers_count_only_if_asked() -> None:
    model, other = parse(BASE), parse(BASE.replace("0.5", "0.25"))
    assert compare(model, other).same
    found = compare(model, other, values=True)
    assert [(change.role, change.differences[0].what) for change in found.values] == [("initializer", "values")]
    assert compare(model, model, values=True).same


def test_how_an_initializer_is_stored_does_not_count(tmp_path: Path) -> None:
    weights = np.arange(300, dtype=np.float32).reshape(3, 100)
    graph = parse("main (float[2, 3] x) => (float[2, 100] y) <float[3, 100] w> { y = MatMul (x, w) }").graph
    paths = []
    for name, tensor in (
        ("raw", numpy_helper.from_array(weights, "w")),
        ("field", helper.make_tensor("w", TensorProto.FLOAT, [3, 100], weights.ravel())),
    ):
        del graph.initializer[:]
        graph.initializer.append(tensor)
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), paths[-1])
    paths.append(tmp_path / "external.onnx")
    onnx.save(onnx.load(paths[0]), paths[2], save_as_external_data=True, size_threshold=0)
    assert all(compare(paths[0], path, values=True).same for path in paths)


def test_weights_are_read_only_if_their_values_count(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(weights_elsewhere(), path)
    assert compare(path, path).same
    with pytest.raises(hieronnx.HieronnxError, match=r"'outside' cannot be read: .*weights.data"):
        compare(path, path, values=True)


# -- bodies and functions ---------------------------------------------------------------------------------


def test_a_change_inside_a_body_is_told_with_its_place() -> None:
    model, edited = MADE["bodies"](), MADE["bodies"]()
    branch = edited.graph.node[1].attribute[0].g.node[1].attribute[1].g
    assert branch.node[0].op_type == "Sub"
    branch.node[0].op_type = "Mul"
    found = compare(model, edited)
    key = "y.then_branch/t.else_branch"
    assert {(c.kind, c.node.op_type, c.node.graph) for c in found.nodes} == {
        ("removed", "Sub", key),
        ("added", "Mul", key),
    }


def test_bodies_that_change_places_are_a_difference() -> None:
    model, edited = MADE["bodies"](), MADE["bodies"]()
    first, second = edited.graph.node[1].attribute
    first.name, second.name = second.name, first.name
    assert not compare(model, edited).same


def test_what_a_body_captures_counts() -> None:
    model, edited = MADE["bodies"](), MADE["bodies"]()
    loop = edited.graph.node[2].attribute[0].g
    assert list(loop.node[1].input) == ["s", "y"]
    loop.node[1].input[1] = "a"
    found = compare(model, edited)
    assert [change.kind for change in found.nodes] == ["changed"]
    assert str(found.nodes[0].differences[0]) == "input 1: y → a"


def test_functions_are_compared_too() -> None:
    model, edited = MADE["functions"](), MADE["functions"]()
    assert compare(model, edited).same
    edited.functions[0].node[0].op_type = "Mul"
    found = compare(model, edited)
    assert {change.node.graph for change in found.nodes} == {"local::twice"}
    del edited.functions[0]
    assert compare(model, edited).functions == {"local::twice": "removed"}


def function(attributes: str, body: str, call: str = "local.f (x)", overload: str = "") -> onnx.ModelProto:
    """Return a model with a function f, called once."""
    model = parse(
        f"""main (float[2] x) => (float[2] y) {{ y = {call} }}
        <domain: "local", opset_import: ["" : 21]> f {attributes} (x) => (y) {{ y = {body} }}"""
    )
    model.functions[0].overload = model.graph.node[0].overload = overload
    return model


def test_the_attributes_that_a_function_declares_count() -> None:
    leaky = "LeakyRelu <alpha: float = @alpha> (x)"
    a, b = function("<alpha: float = 0.1>", leaky), function("<alpha: float = 0.2>", leaky)
    assert compare(a, a).same
    assert compare(a, b).functions == {"local::f": "changed"}
    required = function("<alpha>", leaky, "local.f <alpha = 0.1> (x)")
    assert compare(required, function("<alpha: float = 0.1>", leaky, "local.f <alpha = 0.1> (x)")).functions


def test_the_overload_of_a_function_counts() -> None:
    both = [function("", "Relu (x)", overload="a"), function("", "Abs (x)", overload="b")]
    for model, other in zip(both, reversed(both), strict=True):
        model.functions.append(other.functions[0])
    assert not compare(*both).same


def test_a_body_given_by_a_function_s_attribute_is_compared_by_its_name() -> None:
    model = function("", "Relu (x)")
    node = model.functions[0].node[0]
    node.op_type, node.input[0] = "If", "x"
    for name in ("then_branch", "else_branch"):
        node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH, ref_attr_name=f"given_{name}")
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.functions[0].node[0].attribute[0].ref_attr_name = "another"
    assert compare(model, model).same
    assert not compare(model, other).same
    assert hieronnx.analyze(model).file_nodes == 2


def test_the_order_of_attributes_does_not_count() -> None:
    model, edited = MADE["bodies"](), MADE["bodies"]()
    for node in (edited.graph.node[1], edited.graph.node[1].attribute[0].g.node[1]):
        attributes = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in node.attribute]
        del node.attribute[:]
        node.attribute.extend(reversed(attributes))
    found = compare(model, edited)
    assert found.same, found.describe()


def test_a_body_that_returns_a_tensor_from_outside_is_compared_by_that_tensor() -> None:
    def returning(name: str) -> onnx.ModelProto:
        return parse(
            f"""main (float[2] x, bool c) => (float[2] y) {{
                p = Relu (x)
                q = Abs (x)
                y = If (c) <
                    then_branch = t () => (float[2] {name}) {{ }},
                    else_branch = e () => (float[2] z) {{ z = Add (p, q) }}
                >
            }}"""
        )

    assert compare(returning("p"), returning("p")).same
    assert not compare(returning("p"), returning("q")).same


def test_names_that_nothing_defines_are_told_apart() -> None:
    text = "main (float[2] x) => (float[2] y) {{ y = Sub ({}, {}) }}"
    assert compare(parse(text.format("u", "v")), parse(text.format("u", "v"))).same
    assert not compare(parse(text.format("u", "v")), parse(text.format("v", "v"))).same


# -- inputs and outputs -----------------------------------------------------------------------------------


def test_an_input_more_does_not_shift_the_others() -> None:
    text = "main (float[4] x{}, float[4] z) => (float[4] y) {{ y = Sub (x, z) }}"
    found = compare(parse(text.format("")), parse(text.format(", float[4] extra")))
    assert [(change.role, change.kind, change.after) for change in found.values] == [("input", "added", "extra")]
    assert not found.nodes


def test_an_output_that_comes_from_elsewhere_counts() -> None:
    text = "main (float[4] x) => (float[4] {}) {{ a = Relu (x) b = Neg (a) }}"
    found = compare(parse(text.format("b")), parse(text.format("a")))
    assert [(c.role, c.differences[0].what) for c in found.values] == [("output", "source")]


def test_a_node_put_before_an_output_is_only_added() -> None:
    before = parse("main (float[4] x) => (float[4] y) { y = Relu (x) }")
    after = parse("main (float[4] x) => (float[4] y) { a = Relu (x) y = Neg (a) }")
    found = compare(before, after)
    assert [(change.kind, change.node.op_type) for change in found.nodes] == [("added", "Neg")]
    assert not found.values


# -- modules ----------------------------------------------------------------------------------------------


def split_gemm(model: onnx.ModelProto, index: int) -> onnx.ModelProto:
    """Write a Gemm as MatMul and Add, and drop all metadata, as tools do."""
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
    nodes = model.graph.node
    gemm = [node for node in nodes if node.op_type == "Gemm"][index]
    place = list(nodes).index(gemm)
    product = helper.make_node("MatMul", [gemm.input[0], gemm.input[1]], ["product"])
    total = helper.make_node("Add", ["product", gemm.input[2]], list(gemm.output))
    nodes.remove(gemm)
    nodes.insert(place, total)
    nodes.insert(place, product)
    return model


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = exported("two_module_lists", "dynamo").result.path
    other = tmp_path_factory.mktemp("compare") / "split.onnx"
    onnx.save(split_gemm(onnx.load(path), 1), other)
    return path, other


def test_changes_are_grouped_by_module_where_only_one_file_has_a_hierarchy(split: tuple[Path, Path]) -> None:
    hierarchy = hieronnx.load(split[0])
    gemm = [node for node in hierarchy.nodes if node.op_type == "Gemm"][1]
    for a, b, summary in ((*split, "Gemm → MatMul+Add"), (*reversed(split), "MatMul+Add → Gemm")):
        found = compare(a, b)
        assert [group.scope for group in found.groups] == [gemm.scope]
        assert found.groups[0].tag == hierarchy.tag_of(gemm.scope)
        assert f"{gemm.scope}: {summary}" in render_comparison(found)


def test_what_was_fused_is_told_with_what_became_of_it(tmp_path: Path) -> None:
    path, optimized = exported("bert", "dynamo").result.path, tmp_path / "optimized.onnx"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimized)
    options.log_severity_level = 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fused = 0
    for group in compare(path, optimized).groups:
        kinds = {(change.kind, change.node.op_type) for change in group.changes}
        assert ("removed", "LayerNormalization") not in kinds or ("added", "SkipLayerNormalization") in kinds
        fused += ("added", "SkipLayerNormalization") in kinds
    assert fused == 4


def test_without_a_hierarchy_there_are_no_modules(split: tuple[Path, Path]) -> None:
    bare = split_gemm(onnx.load(split[0]), 0)
    found = compare(bare, split[1])
    assert [group.scope for group in found.groups] == [None]


@pytest.mark.parametrize(
    ("name", "exporter"),
    [(name, exporter) for name in ("two_module_lists", "cond", "lstm") for exporter in CASES[name].exporters],
)
def test_the_export_is_the_same_as_the_baseline(name: str, exporter: str) -> None:
    ours = exported(name, exporter).result.path
    found = compare(export_baseline(name, exporter, ours), ours, names=True, values=True)
    assert found.same, found.describe()


def test_an_export_can_be_verified(tmp_path: Path) -> None:
    case = CASES["two_module_lists"]
    result = hieronnx.export(case.build(), case.args(), tmp_path / "model.onnx", case.kwargs(), verify_topology=True)
    assert result.topology is not None
    assert result.topology.same
    assert result.topology.a == "torch.onnx.export"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.onnx",
        "model.onnx.data",
        "model_hierarchy.json",
    ]


# -- reports ----------------------------------------------------------------------------------------------


def test_the_report_tells_everything(split: tuple[Path, Path]) -> None:
    found = compare(*split)
    text = render_comparison(found)
    assert "- Gemm  " in text
    assert "+ MatMul  product" in text
    assert text.splitlines()[3] == found.describe()
    entry = json.loads(json.dumps(found.to_dict()))
    assert not entry["same"]
    assert [change["kind"] for change in entry["groups"][0]["changes"]] == ["removed", "added", "added"]
    assert entry["groups"][0]["summary"] == "Gemm → MatMul+Add"
    assert entry["counts"] == {"added": 2, "removed": 1, "changed": 0}
    assert entry["operators"]["Gemm"] == {"added": 0, "removed": 1, "changed": 0}
    assert "| Gemm → MatMul+Add |" in comparison_to_markdown(found)


def test_a_long_list_of_changes_is_cut_and_counted() -> None:
    found = compare(layered_model(2), layered_model(12))
    text = render_comparison(found, limit=5)
    assert sum(line.startswith("+ ") for line in text.splitlines()) == 5 + 3  # nodes, and a few initializers
    assert "… 75 more" in text


def test_names_in_reports_cannot_command_the_terminal() -> None:
    model = parse(BASE)
    model.graph.node[0].name = "evil\x1b[2J|`name`"
    found = compare(model, parse(BASE.replace("MatMul (x, w)", "MatMul (w, x)")))
    assert "\x1b" not in render_comparison(found)
    assert "evil\\\\x1b" in comparison_to_markdown(
        compare(parse(BASE.replace("MatMul (x, w)", "MatMul (w, x)")), model)
    )


# -- the command ------------------------------------------------------------------------------------------


def run(*args: object) -> tuple[int, str, str]:
    result = support.cli.run("compare", *args)
    return result.exit_code, result.stdout, result.stderr


def test_exit_codes_tell_the_verdict(split: tuple[Path, Path], tmp_path: Path) -> None:
    assert run(split[0], split[0])[:2] == (
        0,
        f"--- {split[0]}\n+++ {split[0]}\n\n"
        f"the same: {nodes(split[0])} nodes (contents of initializers not compared)\n",
    )
    assert run(*split)[0] == 1
    code, _, stderr = run(split[0], tmp_path / "missing.onnx")
    assert (code, stderr) == (2, f"error: no ONNX file at '{tmp_path / 'missing.onnx'}'\n")


def nodes(path: Path) -> int:
    return len(onnx.load(path, load_external_data=False).graph.node)


def test_the_reason_of_a_bug_is_no_verdict(split: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("hieronnx.tools.compare.compare", fail)
    assert run(*split)[0] == 2


def test_opset_domains_cannot_command_the_terminal(tmp_path: Path) -> None:
    paths = []
    for version in (1, 2):
        model = attribute(onnx.AttributeProto.INT, i=1)
        model.opset_import[1].domain = model.graph.node[0].domain = "\x1b]0;evil\x07"
        model.opset_import[1].version = version
        paths.append(tmp_path / f"{version}.onnx")
        onnx.save(model, paths[-1])
    code, stdout, _ = run(*paths)
    assert code == 1
    assert "evil" in stdout
    assert "\x1b" not in stdout


def test_json_and_markdown(split: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    code, stdout, _ = run(*split, "--json", "--markdown", report)
    assert code == 1
    assert json.loads(stdout)["same"] is False
    assert report.read_text(encoding="utf-8").startswith("# ")


def test_models_can_be_given_in_any_form(split: tuple[Path, Path]) -> None:
    proto = onnx.load(split[0])
    assert compare(split[0], proto).same
    assert compare(str(split[0]), ir.load(split[0])).same
