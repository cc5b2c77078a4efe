"""Extract: the files of a part with their weights, and the command with its errors."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import hieronnx
import support.cli
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.hierarchy.records import CallId, Node
from support.annotated import make_hierarchy
from support.callrecords import open_session
from support.exports import exported
from support.onnxdata import bodies

# -- weights and files ------------------------------------------------------------------------------------


def run_part(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return open_session(path).run(None, feeds)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_written_part_has_the_weights_that_it_needs_and_no_others(exporter: str, tmp_path: Path) -> None:
    whole = exported("bert", exporter).result.path
    path = tmp_path / "part.onnx"
    part = hieronnx.extract(whole, "pooler", output=path)
    held = hieronnx.extract(whole, "pooler")
    feeds = {name: np.random.default_rng(0).standard_normal((2, 8, 32)).astype(np.float32) for name in part.input_names}
    np.testing.assert_array_equal(run_part(path, feeds), open_session(held.model).run(None, feeds))
    external = exporter == "dynamo"
    assert {p.name for p in tmp_path.iterdir()} == {"part.onnx", "part_hierarchy.json"} | (
        {"part.onnx.data"} if external else set()
    )
    wanted = sum(t.ByteSize() for t in held.model.graph.initializer)
    size = path.stat().st_size + ((tmp_path / "part.onnx.data").stat().st_size if external else 0)
    assert size < wanted + 10_000


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_relative_names_are_those_of_the_module(exporter: str, tmp_path: Path) -> None:
    found = exported("bert", exporter)
    path = tmp_path / "part.onnx"
    part = hieronnx.extract(found.result.path, "encoder.layer.0.output", output=path, relative_names=True)
    layer = found.model.get_submodule("encoder.layer.0.output")
    loaded = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    for name in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias"):
        np.testing.assert_array_equal(loaded[name], layer.state_dict()[name])
        assert name in part.initializers
    assert "dense.weight" not in loaded  # the file has it transposed, which is not the parameter
    assert not any(name.startswith("encoder") for name in loaded)
    open_session(path)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_part_with_relative_names_can_be_cut_again(exporter: str, tmp_path: Path) -> None:
    whole = exported("bert", exporter).result.path
    hieronnx.extract(whole, "encoder.layer.0", output=tmp_path / "layer.onnx", relative_names=True)
    inner = hieronnx.extract(tmp_path / "layer.onnx", "output.LayerNorm", relative_names=True)
    direct = hieronnx.extract(whole, "encoder.layer.0.output.LayerNorm", relative_names=True)
    assert {"weight", "bias"} <= set(inner.initializers)
    contents = [
        {t.name: numpy_helper.to_array(t).tobytes() for t in p.model.graph.initializer} for p in (inner, direct)
    ]
    assert contents[0] == contents[1]


def test_models_in_memory_give_the_same_part(tmp_path: Path) -> None:
    path = exported("bert", "dynamo").result.path
    proto = onnx.load(path)
    parts = [hieronnx.extract(model, "pooler") for model in (path, proto, ir.load(path), ir.from_proto(proto))]
    for part in parts[1:]:
        assert part.input_names == parts[0].input_names
        contents = [
            [(t.name, numpy_helper.to_array(t).tobytes()) for t in p.model.graph.initializer] for p in (part, parts[0])
        ]
        assert contents[0] == contents[1]
    hieronnx.extract(ir.load(path), "pooler", output=tmp_path / "part.onnx")
    open_session(tmp_path / "part.onnx")


def test_an_earlier_part_of_the_name_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "part.onnx"
    for target in ("encoder.layer.0", "pooler"):
        hieronnx.extract(exported("bert", "dynamo").result.path, target, output=path)
    assert hieronnx.load(path).modules[""].class_name == "BertPooler"
    open_session(path)
    (data,) = tmp_path.glob("part*.data")
    assert set(tmp_path.iterdir()) == {path, data, tmp_path / "part_hierarchy.json"}


@pytest.mark.long
def test_a_part_over_two_gigabytes_is_written_with_external_data(tmp_path: Path) -> None:
    size = 300_000_000
    weights = [ir.Tensor(np.zeros((3, size // 3), np.float32), name=f"w{n}") for n in range(2)]
    values = [
        ir.Value(name=w.name, shape=ir.Shape([3, size // 3]), type=ir.TensorType(ir.DataType.FLOAT), const_value=w)
        for w in weights
    ]
    x = ir.Value(name="x", shape=ir.Shape([1, 1]), type=ir.TensorType(ir.DataType.FLOAT))
    adds = [ir.node("Add", [x, value]) for value in values]
    y = ir.node("Add", [adds[0].outputs[0], adds[1].outputs[0]])
    for number, node in enumerate((*adds, y)):
        node.outputs[0].name = f"t{number}"
    graph = ir.Graph([x], [y.outputs[0]], nodes=[*adds, y], initializers=values, opset_imports={"": 21}, name="main")
    model = ir.Model(graph, ir_version=10)
    nodes = [Node("", "", "Add", "", f"t{n}", CallId("block", 0), (CallId("block", 0),), "captured") for n in range(3)]
    hierarchy = make_hierarchy({"block"}, nodes)
    model.metadata_props.update(embedded_model_metadata(hierarchy))
    for node, metadata in zip(graph, embed_in_nodes(hierarchy).values(), strict=True):
        node.metadata_props.update(metadata)
    with pytest.raises(hieronnx.HieronnxError, match="over 2 GB"):
        hieronnx.extract(model, "block")
    hieronnx.extract(model, "block", output=tmp_path / "part.onnx")
    assert (tmp_path / "part.onnx").stat().st_size < 100_000
    assert (tmp_path / "part.onnx.data").stat().st_size == 2 * 4 * size
    onnx.checker.check_model(tmp_path / "part.onnx")


# -- the command line -------------------------------------------------------------------------------------


@pytest.fixture
def bert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an export with external data, in the folder that the commands run in."""
    folder = exported("bert", "dynamo").result.path.parent
    for path in folder.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


run = partial(support.cli.run, "extract", "model.onnx")


def test_the_command_tells_what_it_wrote(bert: Path) -> None:
    result = run("encoder.layer.1", "-o", "layer.onnx")
    assert result.exit_code == 0
    for text in (
        "encoder.layer.1  /BertModel/BertEncoder/BertLayer.1",
        "shared node",
        "layer.onnx.data",
        "layer_norm_2",
    ):
        assert text in result.stdout


def test_the_command_writes_json(bert: Path) -> None:
    found = json.loads(run("encoder.layer.1", "-o", "layer.onnx", "--json").stdout)
    assert found["model"] == "layer.onnx"
    assert (found["module"], found["call"], found["undeclared_inputs"]) == ("encoder.layer.1", 0, [])
    assert found["shared_nodes"][0]["origins"] == [
        {"module": f"encoder.layer.{n}.attention.self", "call": 0} for n in (0, 1)
    ]
    assert [Path(file["path"]).name for file in found["files"]] == [
        "layer.onnx",
        "layer.onnx.data",
        "layer_hierarchy.json",
    ]
    every = json.loads(run("encoder.layer.*", "--all", "parts", "--json").stdout)
    assert [part["module"] for part in every["extracted"]] == ["encoder.layer.0", "encoder.layer.1"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("tree", "layer.onnx"), "BertSelfAttention"),
        (("analyze", "layer.onnx"), "BertLayer"),
        (("analyze", "layer.onnx", "--tensors"), "attention.self"),
        (("validate", "layer.onnx", "--strict"), ""),
        (("compare", "layer.onnx", "layer.onnx"), ""),
        (("extract", "layer.onnx", "attention.self", "-o", "self.onnx"), "/BertLayer/BertAttention/BertSelfAttention"),
    ],
    ids=lambda found: "-".join(found[::2]).replace(".onnx", "") if isinstance(found, tuple) else "",
)
def test_other_commands_work_on_a_part(bert: Path, args: tuple[str, ...], text: str) -> None:
    assert run("encoder.layer.1", "-o", "layer.onnx").exit_code == 0
    result = support.cli.run(*args)
    assert result.exit_code == 0, result.output
    assert text in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("encoder.layer.9", "-o", "x.onnx"), "no module call 'encoder.layer.9'; did you mean 'encoder.layer.1'"),
        (("/BertModel/BertPoler", "-o", "x.onnx"), "did you mean '/BertModel/BertPooler'"),
        (("%%%", "-o", "x.onnx"), "'hieronnx tree --all' lists all calls"),
        (("encoder.layer", "-o", "x.onnx"), "never called itself; 'encoder.layer.*' matches the calls below it"),
        (("embeddings.dropout", "-o", "x.onnx"), "(Dropout) has no nodes in the file: it passes its input through"),
        (("embeddings.position_embeddings", "-o", "x.onnx"), "its work was folded into initializer 'embedding_2'"),
        (("*dropout", "--all", "parts"), "none of the 5 calls that '*dropout' matches has nodes"),
        (("pooler", "-o", "model.onnx"), "would overwrite 'model.onnx', which belongs to the model itself"),
        (("pooler", "-o", "model.onnx.data"), "would overwrite 'model.onnx.data', which belongs to the model itself"),
        (("pooler", "-o", "model.pb"), "would overwrite 'model_hierarchy.json', which belongs to the model itself"),
        (("pooler", "-o", "."), "'.' is a folder"),
        (("pooler", "-o", "none/x.onnx"), "no folder 'none'"),
        (("pooler",), "give one of -o FILE and --all FOLDER"),
        (("pooler", "-o", "x.onnx", "--all", "parts"), "give one of -o FILE and --all FOLDER"),
    ],
)
def test_mistakes_are_told_in_one_line(bert: Path, args: tuple[str, ...], message: str) -> None:
    before = {path.name: path.read_bytes() for path in bert.iterdir()}
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in bert.iterdir()} == before


def test_missing_data_is_named(bert: Path) -> None:
    (bert / "model.onnx.data").unlink()
    result = run("pooler", "-o", "x.onnx")
    assert result.exit_code == 2
    assert "should be in 'model.onnx.data'; put the file there" in result.stderr
    assert not (bert / "x.onnx").exists()
    assert run("encoder.layer.0.intermediate.intermediate_act_fn", "-o", "x.onnx").exit_code == 0  # needs none of it


def test_data_that_ends_too_soon_is_named(bert: Path) -> None:
    data = bert / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:1000])
    result = run("pooler", "-o", "x.onnx")
    assert result.exit_code == 2
    assert "'model.onnx.data' is too short: it has 1000 bytes" in result.stderr


def test_data_outside_the_models_folder_is_refused(bert: Path) -> None:
    model = onnx.load("model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../model.onnx.data"
    onnx.save(model, "model.onnx")
    result = run("pooler", "-o", "x.onnx")
    assert result.exit_code == 2
    assert "which is not in the model's folder" in result.stderr


def test_a_file_without_hierarchy_says_how_to_get_one(bert: Path) -> None:
    onnx.save(bodies(), "model.onnx")
    result = run("pooler", "-o", "x.onnx")
    assert result.exit_code == 2
    assert "has no hierarchy" in result.stderr
    assert "hieronnx export" in result.stderr
