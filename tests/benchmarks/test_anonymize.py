"""A model without names is the same model: every old name gone, every node in its place, every output the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from benchmarks.anonymize import anonymize, anonymize_file
from onnx import TensorProto, helper, parser

from hieronnx.graph.building import view_model
from support.exports import exported
from support.valuecheck import match_inputs, named_arrays
from support.zoo import CASES

CASES_TO_RUN = [
    ("mask_in_every_layer", "dynamo"),
    ("nested_cond", "dynamo"),
    ("scripted_loop", "torchscript"),
    ("shared_under_two_names", "torchscript"),
    ("conv_batch_norm", "torchscript"),
]

WITH_BODIES_AND_FUNCTIONS = """
<ir_version: 10, opset_import: ["" : 20, "my.library" : 1], producer_name: "old_producer", doc_string: "old_text">
old_graph (float[old_batch, 4] old_input, bool old_flag) => (float[old_batch, 4] old_output)
<float[4] old_weight = {1, 2, 3, 4}>
{
    [old_node] old_sum = Add(old_input, old_weight)
    old_scaled = my.library.OldFunction<old_attribute = 2.0>(old_sum)
    old_output = If(old_flag) <
        then_branch = old_then () => (float[old_batch, 4] old_taken) { old_taken = Relu(old_scaled) },
        else_branch = old_else () => (float[old_batch, 4] old_left) {
            old_constant = Constant<value = float[4] old_tensor {5, 6, 7, 8}>()
            old_left = Mul(old_scaled, old_constant)
        }
    >
}
<domain: "my.library", opset_import: ["" : 20]>
OldFunction <old_attribute> (old_argument) => (old_result)
{
    old_factor = Constant<value_float: float = @old_attribute>()
    old_result = Mul(old_argument, old_factor)
}
"""


def texts(model: onnx.ModelProto) -> set[bytes]:
    """Return the names in a model that say something: of tensors, nodes, graphs and modules."""
    pending, found = [model.graph], set()
    while pending:
        graph = pending.pop()
        found |= {value.name for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)}
        for node in graph.node:
            found |= {node.name, *node.input, *node.output, *(entry.value for entry in node.metadata_props)}
            for attribute in node.attribute:
                pending += [attribute.g] if attribute.HasField("g") else []
    return {name.encode() for name in found if len(name) > 4}


def run(model: onnx.ModelProto, feeds: list[np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((value.name for value in session.get_inputs()), feeds, strict=True)))


@pytest.mark.parametrize(("name", "exporter"), CASES_TO_RUN)
def test_no_old_name_is_left_and_the_outputs_are_the_same(name: str, exporter: str) -> None:
    case, found = CASES[name], exported(name, exporter)
    model = onnx.load(found.result.path)
    bare = anonymize(model)
    onnx.checker.check_model(bare, full_check=True)
    content = bare.SerializeToString()
    assert [text for text in texts(model) if text in content] == []
    with torch.no_grad():
        expected = found.model(*case.args(), **case.kwargs())
    outputs = torch.utils._pytree.tree_leaves(expected)
    feeds = match_inputs(model, named_arrays(found.model, case.args(), case.kwargs()), outputs)
    ordered = [feeds[value.name] for value in model.graph.input]
    for ours, theirs in zip(run(bare, ordered), run(model, ordered), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("name", "exporter"), CASES_TO_RUN)
def test_every_node_and_tensor_keeps_its_place(name: str, exporter: str) -> None:
    model = onnx.load(exported(name, exporter).result.path)
    before, after = (view_model(ir.serde.deserialize_model(m)) for m in (model, anonymize(model)))
    assert [(n.op, n.graph, n.inputs, n.outputs, n.attributes) for n in before.nodes] == [
        (n.op, n.graph, n.inputs, n.outputs, n.attributes) for n in after.nodes
    ]
    assert before.file_order == after.file_order


def test_bodies_functions_and_sizes_lose_their_names_too() -> None:
    model = parser.parse_model(WITH_BODIES_AND_FUNCTIONS)
    bare = anonymize(model)
    content = bare.SerializeToString().lower()
    assert b"old" not in content
    assert b"my.library" not in content
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    for flag in (True, False):
        feeds = [x, np.asarray(flag)]
        np.testing.assert_array_equal(run(bare, feeds)[0], run(model, feeds)[0])


def test_metadata_texts_and_shapes_inside_are_gone() -> None:
    model = parser.parse_model(WITH_BODIES_AND_FUNCTIONS)
    model.metadata_props.add(key="secret", value="secret")
    model.graph.node[0].metadata_props.add(key="secret", value="secret")
    model.graph.node[0].doc_string = model.graph.doc_string = model.graph.initializer[0].doc_string = "secret"
    model.graph.input[0].doc_string = "secret"
    model.graph.value_info.append(helper.make_tensor_value_info("old_sum", TensorProto.FLOAT, [None, 4]))
    bare = anonymize(model)
    assert b"secret" not in bare.SerializeToString()
    assert not bare.graph.value_info
    assert model.metadata_props, "the model that was given stays as it is"


def test_operators_of_other_domains_stay() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g (float[2] x) => (float[2] y)'
    bare = anonymize(parser.parse_model(text + "{ y = com.microsoft.Gelu(x) }"))
    assert (bare.graph.node[0].domain, bare.graph.node[0].op_type) == ("com.microsoft", "Gelu")
    assert {opset.domain for opset in bare.opset_import} == {"", "com.microsoft"}


def test_a_file_takes_its_external_data_along(tmp_path: Path) -> None:
    model = exported("tied_weights", "dynamo").result.path
    plain = onnx.load(model)
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "old_file.onnx"
    onnx.save(onnx.load(model), source, save_as_external_data=True, location="old_data.bin", size_threshold=0)
    anonymize_file(source, tmp_path / "bare.onnx")
    assert b"old_" not in (tmp_path / "bare.onnx").read_bytes()
    bare = onnx.load(tmp_path / "bare.onnx")
    for before, after in zip(plain.graph.initializer, bare.graph.initializer, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(before), onnx.numpy_helper.to_array(after))
