"""Modules as functions, and back: what is computed, what is shared, what every node gets back."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.inliner
import pytest
import torch
from transformers import BertConfig, BertModel

import hieronnx
from hieronnx import CallId, HieronnxError
from hieronnx.files.metadata import embed_in_nodes
from hieronnx.tools.fold.record import RECORD_KEY, decode_record, encode_record
from support.annotated import annotated
from support.cli import run
from support.computed import number_nodes
from support.exports import Exported, exported, quiet
from support.whole import assert_equal, feeds_of, run_file
from support.zoo import CASES
from support.zoo.transformers_models import TRANSFORMERS_CASES

EXPORTERS = ["dynamo", "torchscript"]
SOME = ["bert", "called_in_loop", "shared_under_two_names", "mask_in_every_layer", "returns_nested"]
BETWEEN = "net (float[2] x) => (float[2] y) { h = Neg(x)  m = Abs(h)  y = Add(h, m) }"


def is_exact(folded: Path, flat: Path, original: Path) -> None:
    """Make sure that a folded file is unfolded to what it was made of, with what others wrote on nodes."""
    result = hieronnx.unfold(folded, output=flat)
    assert result.exact
    assert not result.notes
    nodes = [list_nodes(onnx.load(path).graph) for path in (original, flat)]
    assert nodes[0] == nodes[1]
    before, after = hieronnx.load(original), hieronnx.load(flat)
    assert before.nodes == after.nodes
    assert before.calls == after.calls
    assert (before.modules, before.initializers, before.policy) == (after.modules, after.initializers, after.policy)
    compared = hieronnx.compare(original, flat, values=True)
    assert compared.same, compared.differences


def list_nodes(graph: onnx.GraphProto) -> list[tuple[object, ...]]:
    """List what the nodes of a graph are, those in bodies too, in order."""
    rows: list[tuple[object, ...]] = []
    for node in graph.node:
        plain = sorted(a.SerializeToString() for a in node.attribute if not a.HasField("g"))
        rows.append((node.name, node.domain, node.op_type, tuple(node.input), tuple(node.output), tuple(plain)))
        rows.append(tuple(sorted((entry.key, entry.value) for entry in node.metadata_props)))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rows += list_nodes(attribute.g)
    return rows


def check_folding(whole: Exported, folder: Path) -> hieronnx.FoldResult:
    """Fold a model; make sure that it computes the same, and that everything leads back."""
    original, folded = whole.result.path, folder / "folded.onnx"
    result = hieronnx.fold(original, output=folded)
    onnx.checker.check_model(folded, full_check=True)
    feeds = feeds_of(whole)
    expected = run_file(original, feeds)
    assert_equal(run_file(folded, feeds), expected, expected)
    is_exact(folded, folder / "flat.onnx", original)
    inlined = onnx.inliner.inline_local_functions(onnx.load(folded))
    assert number_nodes(inlined.graph) == number_nodes(onnx.load(original).graph)
    assert_equal(run_file(inlined, feeds), expected, expected)
    assert {node.key for node in result.hierarchy.nodes} == {node.key for node in hieronnx.load(folded).nodes}
    return result


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", SOME)
def test_a_folded_model_computes_the_same_and_unfolds_to_itself(name: str, exporter: str, tmp_path: Path) -> None:
    result = check_folding(exported(name, exporter), tmp_path)
    assert result.functions
    assert not result.inline


@pytest.mark.parametrize(("name", "exporter"), [("cond", "dynamo"), ("scripted_loop", "torchscript")])
def test_bodies_are_folded_with_their_nodes(name: str, exporter: str, tmp_path: Path) -> None:
    assert check_folding(exported(name, exporter), tmp_path).functions


@pytest.mark.long
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_so_it_is_for_the_whole_zoo_and_nearly_all_calls_are_lifted(exporter: str, tmp_path: Path) -> None:
    lifted = inline = 0
    for name, case in CASES.items():
        if exporter in case.exporters:
            result = check_folding(exported(name, exporter), tmp_path)
            assert all(item.reason for item in result.inline)
            lifted, inline = lifted + result.calls, inline + len(result.inline)
    assert lifted / (lifted + inline) >= 0.95


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_node_without_a_record_of_metadata_has_the_namespace_of_its_call(exporter: str, tmp_path: Path) -> None:
    original, folded, flat = exported("bert", exporter).result.path, tmp_path / "folded.onnx", tmp_path / "flat.onnx"
    hieronnx.fold(original, output=folded)
    model = onnx.load(folded)
    entry = next(entry for entry in model.metadata_props if entry.key == RECORD_KEY)
    record = decode_record(entry.value)
    calls = {name: msgspec.structs.replace(call, metadata={}) for name, call in record.calls.items()}
    entry.value = encode_record(msgspec.structs.replace(record, calls=calls))  # as it was before it had that
    onnx.save(model, folded)
    hieronnx.unfold(folded, output=flat)
    torchs, found = (read_namespaces(onnx.load(path).graph) for path in (original, flat))
    ours = {key: entries["namespace"] for key, entries in embed_in_nodes(hieronnx.load(original)).items()}
    assert len(found) == len(torchs) > 50
    assert all(space in (torchs[output], ours["", output]) for output, space in found.items())


def read_namespaces(graph: onnx.GraphProto) -> dict[str, str]:
    return {n.output[0]: e.value for n in graph.node for e in n.metadata_props if e.key == "namespace"}


# -- what is shared -----------------------------------------------------------------------------------------


def make_bert(layers: int, path: Path) -> hieronnx.ExportResult:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32}
    model = BertModel(BertConfig(num_hidden_layers=layers, max_position_embeddings=16, **sizes)).eval()
    for parameter in model.parameters():  # no two alike: the exporter writes those as copies of one
        torch.nn.init.normal_(parameter, std=0.1)
    ids = torch.ones(1, 4, dtype=torch.int64)
    inputs = {"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids}
    with quiet():
        return hieronnx.export(model, (), path, inputs, exporter="torchscript")


def test_twenty_four_layers_are_one_function(tmp_path: Path) -> None:
    original = make_bert(24, tmp_path / "bert.onnx")
    result = hieronnx.fold(original.path, output=tmp_path / "folded.onnx")
    layers = [function for function in result.functions if function.name.startswith("BertLayer")]
    assert [len(function.calls) for function in layers] == [24]
    assert layers[0].domain == "transformers"
    assert layers[0].inputs[:1] == ("hidden_states",)
    assert "attention.self.query.bias" in layers[0].inputs
    assert result.nodes_after <= result.nodes_before / 5
    assert result.bytes_after < result.bytes_before
    ids = np.ones((1, 4), np.int64)
    feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids}
    expected = run_file(original.path, feeds)
    assert_equal(run_file(tmp_path / "folded.onnx", feeds), expected, expected)
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", original.path)


DIFFERENT = {  # classes of which numbered modules are not alike, and how many functions they are
    "convnext": {"ConvNextStage": 2},  # the first has no downsampling
    "modernbert": {"ModernBertEncoderLayer": 2},  # local attention, and over all
    "resnet": {"ResNetConvLayer": 2, "ResNetBasicLayer": 2, "ResNetStage": 2},  # without activation; with a shortcut
    "segformer": {"SegformerStage": 2},  # the last does not reduce sequences
    "swin": {"SwinLayer": 4, "SwinStage": 2},  # shifted windows; the last does not merge patches
    "t5": {"T5Block": 4},  # the first has the position bias; encoder and decoder
}


@pytest.mark.long
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", [case.name for case in TRANSFORMERS_CASES])
def test_layers_of_every_transformer_share_a_function(name: str, exporter: str) -> None:
    if exporter not in CASES[name].exporters:
        return
    result = hieronnx.fold(exported(name, exporter).result.path)
    functions: dict[tuple[str, str], set[str]] = {}
    for function in result.functions:
        for call in function.calls:
            above, _, number = call.module.rpartition(".")
            if number.isdecimal():
                kind = result.hierarchy.modules[call.module].class_name
                functions.setdefault((above, kind), set()).add(function.name)
    for (above, kind), names in functions.items():
        assert len(names) <= DIFFERENT.get(name, {}).get(kind, 1), (above, kind, names)


def test_a_copy_of_a_weight_stays_with_the_weights() -> None:
    result = hieronnx.fold(exported("albert", "torchscript").result.path)
    assert [len(f.calls) for f in result.functions if f.name.startswith("AlbertLayer")] == [2, 2]


def test_a_shared_module_calls_its_function_again_with_the_same_weights() -> None:
    whole = exported("called_in_loop", "torchscript")
    result = hieronnx.fold(whole.result.path)
    calls = Counter((n.domain, n.op_type, tuple(n.input[1:])) for n in result.model.graph.node)  # type: ignore[union-attr]
    assert max(calls.values()) > 1


def test_what_differs_and_is_small_becomes_an_attribute(tmp_path: Path) -> None:
    text = """net (float[2,4] x) => (float[2,4] y) {
        h = LeakyRelu <alpha = 0.1> (x)  y = LeakyRelu <alpha = 0.2> (h) }"""
    onnx.save(annotated(text, ["a", "b"]), tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    assert [(f.domain, f.name, f.attributes, len(f.calls)) for f in result.functions] == [
        ("nets", "Net", ("alpha",), 2)
    ]
    feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    assert_equal(run_file(tmp_path / "folded.onnx", feeds), run_file(tmp_path / "net.onnx", feeds), ["y"])
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")


def test_an_output_that_one_call_does_not_need_is_one_of_the_function_all_the_same(tmp_path: Path) -> None:
    text = """net (float[4] x) => (float[2] y) {
        p, q = Split <axis = 0, num_outputs = 2> (x)  r = Concat <axis = 0> (p, q)
        s, t = Split <axis = 0, num_outputs = 2> (r)  y = Neg (s) }"""
    onnx.save(annotated(text, ["a", "", "b", ""]), tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    assert [f.outputs for f in result.functions] == [("p", "q")]
    calls = [node for node in onnx.load(tmp_path / "folded.onnx").graph.node if node.domain == "nets"]
    assert [list(node.output) for node in calls] == [["p", "q"], ["s", "t"]]
    feeds = {"x": np.arange(4, dtype=np.float32)}
    assert_equal(run_file(tmp_path / "folded.onnx", feeds), run_file(tmp_path / "net.onnx", feeds), ["y"])
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")


def test_a_node_of_a_function_stands_for_those_of_all_its_calls() -> None:
    result = hieronnx.fold(exported("bert", "torchscript").result.path)
    layer = next(f for f in result.functions if f.name == "BertLayer")
    inside = [node for node in result.hierarchy.nodes if node.graph == "transformers::BertLayer"]
    assert len(inside) == layer.nodes
    assert all(len(node.origins) == len(layer.calls) for node in inside)
    assert result.hierarchy.coverage() == 1.0


# -- which calls --------------------------------------------------------------------------------------------


def test_calls_are_chosen_by_depth_class_and_pattern() -> None:
    path = exported("bert", "torchscript").result.path
    by_class = hieronnx.fold(path, classes=["BertLayer"])
    assert [(f.name, len(f.calls)) for f in by_class.functions] == [("BertLayer", 2)]
    by_depth = hieronnx.fold(path, depth=1)
    assert {call.module for f in by_depth.functions for call in f.calls} == {"embeddings", "encoder", "pooler"}
    by_pattern = hieronnx.fold(path, "encoder.layer.1.attention.self")
    found = {str(call) for f in by_pattern.functions for call in f.calls}
    assert "encoder.layer.1.attention.self" in found
    assert all(name.startswith("encoder.layer.1.attention.self") for name in found)
    with pytest.raises(HieronnxError, match="no class 'BertLayr'; did you mean 'BertLayer'"):
        hieronnx.fold(path, classes=["BertLayr"])
    with pytest.raises(HieronnxError, match="depth of 0"):
        hieronnx.fold(path, depth=0)


def test_a_call_that_is_not_closed_stays_and_says_why_or_takes_in_what_is_needed(tmp_path: Path) -> None:
    onnx.save(annotated(BETWEEN, ["a", "b", "a"]), tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    assert [str(item.call) for item in result.inline] == ["a"]
    assert "not closed" in result.inline[0].reason
    assert [str(c) for f in result.functions for c in f.calls] == ["b"]
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "taken.onnx", take_in=True)
    assert [str(c) for f in result.functions for c in f.calls] == ["a"]
    assert [node.output for node in result.taken_in] == ["m"]
    feeds = {"x": np.array([1, -2], np.float32)}
    assert_equal(run_file(tmp_path / "taken.onnx", feeds), run_file(tmp_path / "net.onnx", feeds), ["y"])
    is_exact(tmp_path / "taken.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")


def test_two_calls_that_wait_for_each_other_do_not_both_become_nodes(tmp_path: Path) -> None:
    text = """net (float[2] x) => (float[2] y, float[2] z) {
        p = Neg(x)  q = Abs(x)  y = Relu(q)  z = Exp(p) }"""
    onnx.save(annotated(text, ["a", "b", "a", "b"]), tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    assert [str(item.call) for item in result.inline] == ["b"]
    onnx.checker.check_model(tmp_path / "folded.onnx", full_check=True)
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")


def test_nodes_of_others_that_lie_between_move_and_come_back_to_their_places(tmp_path: Path) -> None:
    text = """net (float[2] x) => (float[2] y, float[2] z) {
        p = Neg(x)  q = Abs(x)  y = Relu(p)  z = Exp(q) }"""
    onnx.save(annotated(text, ["a", "b", "a", "b"]), tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    assert not result.inline
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")


# -- files with functions -----------------------------------------------------------------------------------

FUNCTIONS = """<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
    net (float[2] x, float[2] w) => (float[2] y) {
        [first] h = other.Layer <slope = 0.5> (x, w)  [second] g = other.Layer <slope = 0.25> (h, w)  y = Neg(g) }
    <domain: "other", opset_import: ["" : 21, "other" : 1]>
    Layer <slope> (x, w) => (y) { s = Mul(x, w)  [act] y = other.Act <slope: float = @slope> (s) }
    <domain: "other", opset_import: ["" : 21]>
    Act <slope> (x) => (y) { y = LeakyRelu <alpha: float = @slope> (x) }"""


def test_functions_of_others_are_written_out_with_a_hierarchy_from_their_names(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(FUNCTIONS), tmp_path / "net.onnx")
    result = hieronnx.unfold(tmp_path / "net.onnx", output=tmp_path / "flat.onnx")
    assert result.functions == {"other::Layer": 2, "other::Act": 2}
    flat = onnx.load(tmp_path / "flat.onnx")
    assert [node.op_type for node in flat.graph.node] == ["Mul", "LeakyRelu", "Mul", "LeakyRelu", "Neg"]
    assert not flat.functions
    scopes = [(str(node.scope), node.evidence) for node in hieronnx.load(tmp_path / "flat.onnx").nodes]
    named = [("first", "name"), ("first.act", "name"), ("second", "name"), ("second.act", "name")]
    assert scopes == [*named, ("", "root")]
    onnx.checker.check_model(flat, full_check=True)
    feeds = {"x": np.array([1, -2], np.float32), "w": np.array([3, 4], np.float32)}
    assert_equal(run_file(tmp_path / "flat.onnx", feeds), run_file(tmp_path / "net.onnx", feeds), ["y"])


def test_functions_that_were_there_stay_as_they_are(tmp_path: Path) -> None:
    scopes: list[str | tuple[str, ...]] = ["a", "b", "", "a", "a", "a"]
    onnx.save(annotated(onnx.parser.parse_model(FUNCTIONS), scopes), tmp_path / "net.onnx")
    result = hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    assert [f.name for f in result.functions] == ["Net"]
    onnx.checker.check_model(tmp_path / "folded.onnx", full_check=True)
    feeds = {"x": np.array([1, -2], np.float32), "w": np.array([3, 4], np.float32)}
    assert_equal(run_file(tmp_path / "folded.onnx", feeds), run_file(tmp_path / "net.onnx", feeds), ["y"])
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", tmp_path / "net.onnx")
    assert len(onnx.load(tmp_path / "flat.onnx").functions) == 2


def test_a_folded_file_is_not_folded_again_and_a_flat_one_unfolds_to_itself(tmp_path: Path) -> None:
    path = exported("bert", "torchscript").result.path
    hieronnx.fold(path, output=tmp_path / "folded.onnx")
    with pytest.raises(HieronnxError, match="folded already; unfold it first"):
        hieronnx.fold(tmp_path / "folded.onnx")
    is_exact(path, tmp_path / "flat.onnx", path)


def test_what_someone_changed_is_unfolded_under_new_names_and_told(tmp_path: Path) -> None:
    text = "net (float[2] x) => (float[2] y) { h = Neg(x)  y = Abs(h) }"
    onnx.save(annotated(text, ["a", "a"]), tmp_path / "net.onnx")
    model = hieronnx.fold(tmp_path / "net.onnx").model
    assert isinstance(model, onnx.ModelProto)
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    changed.functions[0].node[0].op_type = "Exp"  # its name told of another operator
    assert not hieronnx.unfold(changed).exact
    added = model.functions[0].node.add()
    added.CopyFrom(model.functions[0].node[0])
    added.name, added.output[0] = "added", "unread"
    result = hieronnx.unfold(model)
    assert not result.exact
    assert "'a'" in str(result.notes) or "of a have new names" in result.notes[0]
    assert {node.scope for node in result.hierarchy.nodes} == {CallId("a", 0)}


def test_external_weights_stay_where_they_are_read_from(tmp_path: Path) -> None:
    whole = exported("bert", "torchscript")
    model = onnx.load(whole.result.path)
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=0)
    hieronnx.fold(tmp_path / "big.onnx", output=tmp_path / "folded.onnx")
    folded = onnx.load(tmp_path / "folded.onnx", load_external_data=False)
    large = [t for t in folded.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert len(large) == len(folded.graph.initializer)
    feeds = feeds_of(whole)
    expected = run_file(whole.result.path, feeds)
    assert_equal(run_file(tmp_path / "folded.onnx", feeds), expected, expected)


def test_other_commands_work_on_folded_files(tmp_path: Path) -> None:
    whole, folded = exported("bert", "torchscript"), tmp_path / "folded.onnx"
    hieronnx.fold(whole.result.path, output=folded)
    assert hieronnx.validate(folded).passed
    assert hieronnx.analyze(folded).hierarchy is not None
    assert run("tree", folded).exit_code == 0
    assert hieronnx.compare(whole.result.path, folded).same


@pytest.mark.long
def test_what_runs_models_runs_folded_ones_call_by_call(tmp_path: Path) -> None:
    whole, folded = exported("bert", "torchscript"), tmp_path / "folded.onnx"
    hieronnx.fold(whole.result.path, output=folded)
    verified = hieronnx.verify(folded, whole.result.path)
    assert verified.passed
    assert {"encoder.layer.0", "encoder.layer.1"} <= {item.module for item in verified.calls}
    made = [hieronnx.optimize(f, output=tmp_path / "o.onnx", tool="ort-extended") for f in (whole.result.path, folded)]
    assert [node.scope for node in made[0].hierarchy.nodes] == [node.scope for node in made[1].hierarchy.nodes]
    assert hieronnx.profile(folded, inputs=feeds_of(whole), runs=1, warmup=0).calls
    assert hieronnx.split(folded, at="pooler", into=tmp_path / "stages", check=True).passed


def test_a_call_inside_functions_is_extracted_as_from_the_flat_file(tmp_path: Path) -> None:
    path, target = exported("bert", "torchscript").result.path, "encoder.layer.1.attention"
    hieronnx.fold(path, output=tmp_path / "folded.onnx")
    parts = [hieronnx.extract(file, target, output=tmp_path / "part.onnx") for file in (path, tmp_path / "folded.onnx")]
    assert parts[0].nodes == parts[1].nodes
    assert parts[0].input_names == parts[1].input_names
    assert parts[0].initializers == parts[1].initializers


def test_functions_too_deep_in_one_another_are_told() -> None:
    count, imports = 400, [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("other", 1)]
    make = onnx.helper.make_node
    inner = [make(f"F{n + 1}", ["x"], ["y"], domain="other") for n in range(count - 1)] + [make("Neg", ["x"], ["y"])]
    functions = [
        onnx.helper.make_function("other", f"F{n}", ["x"], ["y"], [node], imports) for n, node in enumerate(inner)
    ]
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "other" : 1]> net (float[2] x) => (float[2] y) { y = other.F0(x) }'
    )
    model.functions.extend(functions)
    with pytest.raises(HieronnxError, match="more than 300 deep"):
        hieronnx.unfold(model)
    with pytest.raises(HieronnxError, match="more than 300 deep"):
        hieronnx.unfold(annotated(model, ["a"] * (count + 1)))


def test_the_commands_tell_what_was_done(tmp_path: Path) -> None:
    onnx.save(annotated(BETWEEN, ["a", "b", "a"]), tmp_path / "net.onnx")
    told = run("fold", tmp_path / "net.onnx", "-o", tmp_path / "folded.onnx").stdout
    assert "nets::Net" in told
    assert "not closed" in told
    assert "1 call to 1 function; 3 nodes to 4, functions counted once" in told
    assert re.search(r"; [\d.,]+ \w+ without weights to [\d.,]+ \w+", told)
    told = run("unfold", tmp_path / "folded.onnx", "-o", tmp_path / "flat.onnx").stdout
    assert "nets::Net" in told
