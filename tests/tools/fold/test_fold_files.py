"""Folded files in other commands, files of others with functions, and files that are large."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import hieronnx
from support.annotated import annotated
from support.cli import run
from support.exports import export_ours, exported, quiet
from support.whole import assert_equal, feeds_of, run_file
from tools.fold.test_fold import is_exact

X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
LAYERS = "net (float[2,4] x) => (float[2,4] y) { p = Neg(x)  q = Abs(p)  r = Neg(q)  y = Abs(r) }"


@pytest.fixture
def folded(tmp_path: Path) -> Path:
    """Return a folded file of two layers that share a function."""
    onnx.save(annotated(LAYERS, ["l.0", "l.0", "l.1", "l.1"]), tmp_path / "net.onnx")
    hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    return tmp_path / "folded.onnx"


# -- other commands -----------------------------------------------------------------------------------------


def test_nodes_of_a_folded_file_are_selected_as_that_file_has_them(folded: Path) -> None:
    selected = hieronnx.select(folded, "l.0")
    names = {(graph.name, node.output[0]) for graph in [onnx.load(folded).graph] for node in graph.node}
    names |= {(f.name, node.output[0]) for f in onnx.load(folded).functions for node in f.node}
    assert selected.nodes
    assert {(node.graph.rpartition(":")[2] or "net", node.output) for node in selected.nodes} <= names
    assert {node.output for node in selected.shared} == {"p", "q"}  # the other layer has them, too


@pytest.mark.parametrize("optimization", ["none", "extended"])
def test_every_kernel_of_a_folded_file_is_that_of_a_call(optimization: str, tmp_path: Path) -> None:
    flat = export_ours("bert", "torchscript")
    hieronnx.fold(flat, output=tmp_path / "folded.onnx")
    settings = {"runs": 2, "warmup": 0, "roofline": False, "optimization": optimization}
    owned = [
        Counter((kernel.op_type, kernel.origins) for kernel in hieronnx.profile(path, **settings).kernels)
        for path in (flat, tmp_path / "folded.onnx")
    ]
    assert owned[0] == owned[1]
    assert len(owned[0]) > 20


def test_nodes_of_a_folded_file_are_placed_call_by_call(folded: Path, tmp_path: Path) -> None:
    result = hieronnx.place(folded, on=["cuda:l.0", "cpu:l.1"], output=tmp_path / "placed.onnx", check=False)
    nodes = onnx.load(tmp_path / "placed.onnx").graph.node
    devices = [next(e.value for e in node.metadata_props if e.key == "layer_ann") for node in nodes]
    assert devices == ["cuda", "cuda", "cpu", "cpu"]
    assert [rule.nodes for rule in result.rules] == [2, 2]
    expected = run_file(tmp_path / "net.onnx", X)
    assert_equal(run_file(tmp_path / "placed.onnx", X), expected, expected)


def test_the_tree_of_a_folded_file_is_that_of_the_flat_one(folded: Path) -> None:
    flat, told = run("tree", folded.with_name("net.onnx"), "--nodes"), run("tree", folded, "--nodes")
    assert told.stdout == flat.stdout
    assert "the file is folded" in told.stderr
    assert "folded" not in flat.stderr


def test_the_graph_of_a_folded_file_is_that_of_the_flat_one(folded: Path) -> None:
    found = hieronnx.validate(folded, baseline=folded.with_name("net.onnx"))
    assert "baseline" not in {item.check for item in found}


def test_a_name_in_a_function_that_runs_twice_says_nothing_of_one_run(folded: Path) -> None:
    carried = hieronnx.carry(folded.with_name("net.onnx"), folded).hierarchy  # as a tool may leave it
    layer = [node for node in carried.nodes if node.graph == "nets::Net"]
    assert [node.output for node in layer] == ["p", "q"]  # as the first layer's are called
    assert not any(node.is_attributed() for node in layer)


def test_calls_of_a_folded_file_cost_what_they_cost_in_the_flat_one(tmp_path: Path) -> None:
    path = exported("bert", "torchscript").result.path
    hieronnx.fold(path, output=tmp_path / "folded.onnx")
    flat, folded = (hieronnx.analyze(file, all_calls=True) for file in (path, tmp_path / "folded.onnx"))
    assert flat.total == folded.total
    assert flat.modules == folded.modules
    assert any("folded" in note for note in folded.notes)
    flat_view, folded_view = (hieronnx.view(file) for file in (path, tmp_path / "folded.onnx"))
    assert (flat_view.calls, flat_view.nodes) == (folded_view.calls, folded_view.nodes)


def test_what_onnx_runtime_makes_of_a_folded_file_is_what_it_makes_of_the_flat_one(tmp_path: Path) -> None:
    path = exported("bert", "torchscript").result.path
    hieronnx.fold(path, output=tmp_path / "folded.onnx")
    kernels = []
    for file in (path, tmp_path / "folded.onnx"):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "made.onnx"), 4
        ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        kernels.append(Counter((node.domain, node.op_type) for node in onnx.load(tmp_path / "made.onnx").graph.node))
    assert kernels[0] == kernels[1]
    assert any(domain == "com.microsoft" for domain, _ in kernels[0])  # it fused something


def test_a_file_that_a_tool_made_is_folded_with_the_operators_of_that(tmp_path: Path) -> None:
    whole, fast = exported("bert", "torchscript"), tmp_path / "fast.onnx"
    hieronnx.optimize(whole.result.path, output=fast, tool="ort-extended")
    result = hieronnx.fold(fast, output=tmp_path / "folded.onnx")
    assert [len(function.calls) for function in result.functions if function.name == "BertLayer"] == [2]
    folded = onnx.load(tmp_path / "folded.onnx")
    onnx.checker.check_model(folded)
    versions = {item.domain: item.version for item in onnx.load(fast).opset_import}
    for function in folded.functions:
        used = {node.domain for node in function.node}
        imports = {item.domain: item.version for item in function.opset_import}
        assert imports == {domain: versions.get(domain, 1) for domain in used}
    assert any("com.microsoft" in {item.domain for item in function.opset_import} for function in folded.functions)
    expected = run_file(fast, feeds_of(whole))
    assert_equal(run_file(tmp_path / "folded.onnx", feeds_of(whole)), expected, expected)
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", fast)


# -- functions of others ------------------------------------------------------------------------------------

VERSIONS = """<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
    net (float[2,4] x) => (float[2,4] y) { p = other.Old(x)  q = other.Alike(p)  y = other.Outer(q) }
    <domain: "other", opset_import: ["" : 12]> Old (x) => (y) { y = Softmax <axis = 0> (x) }
    <domain: "other", opset_import: ["" : 17]> Alike (x) => (y) { y = Neg(x) }
    <domain: "other", opset_import: ["" : 21, "other" : 1]> Outer (x) => (y) { h = other.Old(x)  y = Abs(h) }"""


def test_a_function_of_another_version_of_operators_stays_one_where_they_differ(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(VERSIONS), tmp_path / "net.onnx")
    result = hieronnx.unfold(tmp_path / "net.onnx", output=tmp_path / "flat.onnx")
    flat = onnx.load(tmp_path / "flat.onnx")
    assert [(node.domain, node.op_type) for node in flat.graph.node] == [
        ("other", "Old"),
        ("", "Neg"),
        ("other", "Old"),
        ("", "Abs"),
    ]
    assert [function.name for function in flat.functions] == ["Old"]
    assert len(result.notes) == 1
    assert "'other::Old' stays as it is: it has Softmax of opset 12" in result.notes[0]
    told = {(node.graph, node.output): (str(node.scope), node.evidence) for node in result.hierarchy.nodes}
    assert told["other::Old", "y"] == ("", "root")
    onnx.checker.check_model(flat, full_check=True, skip_opset_compatibility_check=True)
    expected = run_file(tmp_path / "net.onnx", X)
    assert_equal(run_file(tmp_path / "flat.onnx", X), expected, expected)
    assert not any(e.key.startswith("hieronnx_fold") for f in flat.functions for n in f.node for e in n.metadata_props)


def test_operator_sets_that_only_functions_import_get_the_version_of_what_is_written_out() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
        net (float[2,4] x) => (float[2,4] y) { p = other.One(x)  y = other.Two(p) }
        <domain: "other", opset_import: ["odd" : 1]> One (x) => (y) { y = odd.Act(x) }
        <domain: "other", opset_import: ["odd" : 2]> Two (x) => (y) { y = odd.Act(x) }"""
    flat = hieronnx.unfold(onnx.parser.parse_model(text)).model
    assert isinstance(flat, onnx.ModelProto)
    assert [(node.domain, node.op_type) for node in flat.graph.node] == [("odd", "Act"), ("other", "Two")]
    assert {item.domain: item.version for item in flat.opset_import}["odd"] == 1


def test_a_sidecar_need_not_tell_which_overload_of_a_function_is_called(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
        net (float[2,4] x) => (float[2,4] y) { p = other.Act(x)  y = Abs(p) }
        <domain: "other", opset_import: ["" : 21]> Act (x) => (y) { y = Neg(x) }"""
    model = onnx.parser.parse_model(text)
    model.functions[0].overload = model.graph.node[0].overload = "second"
    hieronnx.fold(annotated(model, ["a", "b", "a"]), output=tmp_path / "folded.onnx")
    assert not [item for item in hieronnx.validate(tmp_path / "folded.onnx") if item.check == "sidecar-nodes"]


def test_sparse_initializers_stay(tmp_path: Path) -> None:
    model = annotated("net (float[2,4] x) => (float[2,4] y) { p = Add(x, s)  y = Add(p, s) }", ["l.0", "l.1"])
    values = onnx.numpy_helper.from_array(np.array([5], np.float32), "s")
    sparse = onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array([1])), [4])
    model.graph.sparse_initializer.append(sparse)
    onnx.save(model, tmp_path / "net.onnx")
    hieronnx.fold(tmp_path / "net.onnx", output=tmp_path / "folded.onnx")
    hieronnx.unfold(tmp_path / "folded.onnx", output=tmp_path / "flat.onnx")
    expected = run_file(tmp_path / "net.onnx", X)
    for made in ("folded.onnx", "flat.onnx"):
        assert_equal(run_file(tmp_path / made, X), expected, expected)
    branch = onnx.helper.make_graph([], "b", [], [], sparse_initializer=[sparse])
    model.graph.node.append(onnx.helper.make_node("Other", ["x"], ["z"], domain="other", body=branch))
    with pytest.raises(hieronnx.HieronnxError, match="make them dense first"):
        hieronnx.unfold(model)


def test_a_record_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hieronnx.tools.fold.record._LARGEST_RECORD", 100)
    with pytest.raises(hieronnx.HieronnxError, match=r"at most 100 bytes.*fold fewer calls"):
        hieronnx.fold(annotated(LAYERS, ["l.0", "l.0", "l.1", "l.1"]), output=tmp_path / "folded.onnx")
    assert list(tmp_path.iterdir()) == []


# -- sizes --------------------------------------------------------------------------------------------------


def test_axes_that_are_dynamic_stay_so(tmp_path: Path) -> None:
    text = """net (float[N,4] x) => (float[N,4] y) <float[N,4] p, float[N,4] q> {
        p = Neg(x)  a = Shape(p)  q = Reshape(p, a)  r = Neg(q)  b = Shape(r)  y = Reshape(r, b) }"""
    original, made = tmp_path / "net.onnx", tmp_path / "folded.onnx"
    onnx.save(annotated(text, ["l.0", "l.0", "l.0", "l.1", "l.1", "l.1"]), original)
    result = hieronnx.fold(original, output=made)
    assert [len(function.calls) for function in result.functions] == [2, 1]
    assert [d.dim_param for d in onnx.load(made).graph.input[0].type.tensor_type.shape.dim] == ["N", ""]
    for size in (1, 3, 7):
        feeds = {"x": np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)}
        expected = run_file(original, feeds)
        assert expected["y"].shape == (size, 4)
        assert_equal(run_file(made, feeds), expected, expected)
    is_exact(made, tmp_path / "flat.onnx", original)


class Layer(nn.Module):
    """A layer that computes with the size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0], dtype=torch.float32).unsqueeze(1)
        return torch.relu(self.linear(x + positions)).reshape(x.shape[0], -1)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_export_with_dynamic_axes_runs_folded_at_other_sizes(exporter: str, tmp_path: Path) -> None:
    with quiet():
        path = hieronnx.export(
            nn.Sequential(Layer(), Layer(), Layer()).eval(),
            (torch.randn(3, 4),),
            tmp_path / "net.onnx",
            exporter=exporter,
            dynamic_shapes={"input": {0: "tokens"}},
        ).path
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_param
    hieronnx.fold(path, output=tmp_path / "folded.onnx")
    onnx.checker.check_model(tmp_path / "folded.onnx", full_check=True)
    name = onnx.load(path).graph.input[0].name
    for size in (2, 9):
        feeds = {name: np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)}
        expected = run_file(path, feeds)
        assert_equal(run_file(tmp_path / "folded.onnx", feeds), expected, expected)
    is_exact(tmp_path / "folded.onnx", tmp_path / "flat.onnx", path)


SIZE = 32_800  # squared and in float16: more than 2 GB
FOLD = """
import resource, sys, hieronnx
result = hieronnx.fold(sys.argv[1], output=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, result.calls, result.bytes_before, result.bytes_after)
"""


@pytest.mark.long
def test_weights_of_a_file_over_two_gigabytes_are_not_read(tmp_path: Path) -> None:
    text = f"""net (float16[2,{SIZE}] x) => (float16[2,{SIZE}] y) {{
        p = MatMul(x, w)  q = Relu(p)  r = MatMul(q, w)  y = Relu(r) }}"""
    model = annotated(text, ["l.0", "l.0", "l.1", "l.1"])
    weight = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT16, dims=[SIZE, SIZE])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="net.bin")
    with (tmp_path / "net.bin").open("wb") as data:
        data.truncate(2 * SIZE * SIZE)  # no block of it is on the disk
    onnx.save(model, tmp_path / "net.onnx")
    paths = [tmp_path / name for name in ("net.onnx", "folded.onnx")]
    told = subprocess.run([sys.executable, "-c", FOLD, *paths], check=True, capture_output=True, text=True).stdout
    peak, calls, before, after = map(int, told.split())
    assert peak < 1 << 20  # in units of 1,024 bytes
    assert calls == 3
    assert max(before, after) < 1 << 20
    (made,) = onnx.load(paths[1], load_external_data=False).graph.initializer
    location = {entry.key: entry.value for entry in made.external_data}["location"]
    assert (tmp_path / location).stat().st_size == 2 * SIZE * SIZE
