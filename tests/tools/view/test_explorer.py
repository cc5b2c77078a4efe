"""What Model Explorer is given: its own package reads it, and the numbers are those of the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dacite
import onnx
import pytest
from model_explorer import config, graph_builder, node_data_builder

import hieronnx
from support.annotated import annotated
from support.cli import run
from support.exports import exported

NET = "net (float[2] x) => (float[2] y) { h = Relu(x)  i = Neg(h)  y = Tanh(i) }"
TIMES = {
    "total_us": 10.0,
    "calls": [
        {"module": "", "call": 0, "own_us": 0.0, "total_us": 10.0},
        {"module": "a", "call": 0, "own_us": 8.0, "total_us": 8.0},
        {"module": "b", "call": 0, "own_us": 2.0, "total_us": 2.0},
    ],
}
ERROR = {"introduced": {"relative": 0.5}, "accumulated": {"relative": 0.5}, "verdict": "wrong"}
ERRORS = {"calls": [{"module": "b", "call": 0, **ERROR}]}


def load(path: Path) -> graph_builder.GraphCollection:
    """Read the graphs with the records of Model Explorer's package; an unknown key or another type is an error."""
    return dacite.from_dict(graph_builder.GraphCollection, json.loads(path.read_text()), dacite.Config(strict=True))


def load_data(path: Path, *, words: bool = False) -> dict[str, Any]:
    """Read node data; Model Explorer takes words for values, too, though its records say numbers."""
    settings = dacite.Config(strict=True, check_types=not words)
    found = json.loads(path.read_text())
    return {name: dacite.from_dict(node_data_builder.GraphNodeData, data, settings) for name, data in found.items()}


def test_model_explorer_reads_the_graph_and_the_data_of_its_nodes(tmp_path: Path) -> None:
    result = exported("bert", "torchscript").result
    written = hieronnx.view(result.path, model_explorer=tmp_path / "explorer")
    paths = [file.path for file in written.files]
    graph = load(paths[0]).graphs[0]
    nodes = {node.id: node for node in graph.nodes}
    assert len([name for name in nodes if name.startswith("node ")]) == len(result.hierarchy.nodes)
    assert all(edge.sourceNodeId in nodes for node in graph.nodes for edge in node.incomingEdges)
    softmax = next(node for node in graph.nodes if node.label == "Softmax")
    steps = [
        "BertModel",
        "BertEncoder encoder",
        "BertLayer layer.0",
        "BertAttention attention",
        "BertSelfAttention self",
    ]
    assert softmax.namespace == "/".join(steps)
    assert {"BertModel", softmax.namespace} <= set(graph.groupNodeAttributes or {})
    categories = load_data(paths[1], words=True)[graph.id].results
    assert categories[softmax.id].value == "activation"
    assert set(categories) == {name for name in nodes if name.startswith("node ")}
    shown = config().add_model_from_path(str(paths[0])).add_node_data_from_path(str(paths[1]))
    assert [source["url"] for source in shown.model_sources] == [str(paths[0])]


def test_times_of_groups_add_up_to_those_of_calls(tmp_path: Path) -> None:
    model = annotated(NET, ["a", "a", "b"])
    written = hieronnx.view(model, model_explorer=tmp_path, profile=TIMES, verify=ERRORS)
    assert [file.path.name for file in written.files] == [
        "model.json",
        "model.category.json",
        "model.time.json",
        "model.error.json",
    ]
    times = load_data(tmp_path / "model.time.json")["main"].results
    assert {name: result.value for name, result in times.items()} == {"node 0": 4.0, "node 1": 4.0, "node 2": 2.0}
    errors = load_data(tmp_path / "model.error.json")["main"].results
    assert {name: result.value for name, result in errors.items()} == {"node 2": 0.5}
    groups = load(tmp_path / "model.json").graphs[0].groupNodeAttributes
    assert groups is not None
    assert groups["Net/Net a"]["time, µs"] == "8"
    assert groups["Net/Net b"]["verdict"] == "wrong"


def test_bodies_are_graphs_that_their_nodes_lead_to(tmp_path: Path) -> None:
    body = "(bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] u) { u = Relu(x) }, "
    model = annotated(f"net {body}else_branch = e () => (float[2] v) {{ v = Neg(x) }}> }}", ["a", "b", "c"])
    hieronnx.view(model, model_explorer=tmp_path)
    graphs = {graph.id: graph for graph in load(tmp_path / "model.json").graphs}
    branch = next(node for node in graphs["main"].nodes if node.label == "If")
    assert len(graphs) == 3
    assert {node.label for name in branch.subgraphIds for node in graphs[name].nodes} >= {"Relu", "Neg"}


def test_names_stay_in_their_places(tmp_path: Path) -> None:
    hieronnx.view(annotated(NET, ["a/b", "a/b", "<i>~"]), model_explorer=tmp_path)
    graph = load(tmp_path / "model.json").graphs[0]
    assert {node.namespace for node in graph.nodes} == {"", "Net/Net a~1b", "Net/Net <i>~0"}


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    onnx.save(annotated(NET, ["a", "a", "b"]), tmp_path / "net.onnx")
    done = run("view", tmp_path / "net.onnx", "--model-explorer", tmp_path / "made")
    assert done.exit_code == 0, done.output
    assert "net.json net.category.json" in done.output
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["net.category.json", "net.json"]
    assert not (tmp_path / "net.html").exists()
    again = run("view", tmp_path / "net.onnx", "--model-explorer", tmp_path / "made", "-o", tmp_path / "x.html")
    assert again.exit_code == 2


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hieronnx.HieronnxError, match="cannot make the folder"):
        hieronnx.view(annotated(NET, ["a", "a", "b"]), model_explorer=tmp_path / "file" / "inner")
