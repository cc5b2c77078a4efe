"""The sidecar and the embedded metadata: one hierarchy in two forms, both readable by others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.files.document import FORMAT_VERSION, Document
from hieronnx.files.opening import load, load_ir_model, open_model, sidecar_path
from hieronnx.files.wire import read_wiring
from hieronnx.graph.wiring import Wiring, read_ir_wiring, read_proto_wiring
from hieronnx.hierarchy.records import CONFIDENCE, CallId
from support import layered
from support.exports import export_ours, exported, quiet
from support.layered import drop, write_layered
from support.onnxdata import BODIES, FUNCTIONS, SHIPPED, first_output, walk

SCHEMA = msgspec.json.schema(Document)
BOTH = ["dynamo", "torchscript"]
EXPORTS = [
    ("shared_under_two_names", "dynamo"),
    ("nested_repeated_calls", "torchscript"),
    ("odd_module_dict_keys", "torchscript"),
    ("conv_batch_norm", "dynamo"),
    ("cond", "dynamo"),
    ("scripted_loop", "torchscript"),
    ("bert", "torchscript"),
]
"""Repeated calls, names with odd characters, merged and folded nodes, bodies of both exporters."""


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(
        self, x: Tensor, times: int = 1, limit: float = float("inf"), shape: tuple[int, ...] = (1, 2)
    ) -> Tensor:
        return x * self.weight


class Pair(nn.Module):
    """Multiplies, takes the sine between, and multiplies by the same weight again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(torch.sin(self.scale(x)))


@pytest.fixture(params=BOTH, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> hieronnx.ExportResult:
    return export_pair(tmp_path_factory.mktemp("pair") / "pair.onnx", exporter=request.param)


def export_pair(path: Path, **options: Any) -> hieronnx.ExportResult:
    with quiet():
        return hieronnx.export(Pair(), (torch.ones(2),), output=path, **options)


def read(path: Path | None) -> dict[str, Any]:
    assert path is not None
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def copy_of(result: hieronnx.ExportResult, folder: Path, *, sidecar: bool) -> Path:
    """Copy an exported model, with its sidecar or without."""
    assert result.sidecar is not None
    for file in (result.path, *([result.sidecar] if sidecar else [])):
        shutil.copy(file, folder / file.name)
    return folder / result.path.name


# -- the schema ---------------------------------------------------------------------------------------------------


def test_the_schema_that_ships_is_the_one_of_the_code() -> None:
    shipped = resources.files("hieronnx") / "files" / "hierarchy.schema.json"
    expected = json.dumps(SCHEMA, indent=1) + "\n"
    assert shipped.read_text("utf-8") == expected, "write hierarchy.schema.json anew from msgspec.json.schema(Document)"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_sidecars_are_valid_by_the_schema(name: str, exporter: str) -> None:
    jsonschema.validate(read(exported(name, exporter).result.sidecar), SCHEMA)


def test_the_schema_refuses_what_is_not_a_hierarchy(pair: hieronnx.ExportResult) -> None:
    document = read(pair.sidecar)
    jsonschema.validate(document, SCHEMA)
    for spoil in (
        lambda d: d.pop("calls"),
        lambda d: d["nodes"][0].pop("tag"),
        lambda d: d["nodes"][0].update(call="0"),
        lambda d: d["calls"][0].update(parent="root"),
        lambda d: d["modules"][""].pop("class"),
        lambda d: d.update(hierarchy=[]),
    ):
        spoiled = read(pair.sidecar)
        spoil(spoiled)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoiled, SCHEMA)


# -- what the sidecar says ----------------------------------------------------------------------------------------


def test_the_sidecar_has_the_fields_of_the_design_and_no_others(pair: hieronnx.ExportResult) -> None:
    document = read(pair.sidecar)
    assert list(document) == [
        "format_version",
        "generator",
        "model",
        "modules",
        "calls",
        "hierarchy",
        "nodes",
        "tensors",
        "initializers",
        "summary",
    ]
    assert document["format_version"] == FORMAT_VERSION
    assert document["generator"] == {"name": "hieronnx", "version": hieronnx.__version__}
    node = {"graph", "name", "op_type", "domain", "output", "module", "call", "tag", "tags", "origins"}
    node |= {"evidence", "confidence", "consumers"}
    assert all(node <= set(entry) <= node | {"rule"} for entry in document["nodes"])


def test_calls_hierarchy_and_modules_of_a_small_model(pair: hieronnx.ExportResult) -> None:
    document = read(pair.sidecar)
    assert [{key: entry[key] for key in ("module", "call", "parent", "via", "tag")} for entry in document["calls"]] == [
        {"module": "", "call": 0, "parent": None, "via": "", "tag": "/Pair"},
        {"module": "scale", "call": 0, "parent": 0, "via": "scale", "tag": "/Pair/Scale"},
        {"module": "scale", "call": 1, "parent": 0, "via": "scale", "tag": "/Pair/Scale@1"},
    ]
    assert document["hierarchy"] == {"/Pair": "", "/Pair/Scale": "scale", "/Pair/Scale@1": "scale"}
    assert {path: entry["tag"] for path, entry in document["modules"].items()} == {
        "": "/Pair",
        "scale": "/Pair/Scale",
        "unused": None,  # never called
    }
    assert document["modules"]["scale"] == {
        "class": "Scale",
        "qualified_class": f"{Scale.__module__}.Scale",
        "forward_args": ["x", "times", "limit", "shape"],
        "forward_defaults": {"times": 1, "limit": "inf", "shape": [1, 2]},
        "parameters": ["weight"],
        "direct_parameters": ["weight"],
        "parameter_count": 2,
        "children": [],
        "depth": 1,
        "tag": "/Pair/Scale",
        "child_classes": {},
        "expected_tag": "/Pair/Scale",
    }
    root = document["modules"][""]
    assert root["child_classes"] == {"scale": f"{Scale.__module__}.Scale", "unused": "torch.nn.modules.linear.Linear"}
    assert document["modules"]["unused"]["expected_tag"] == "/Pair"  # the policy gives it no tag of its own


def test_calls_of_a_small_model_have_what_they_received_and_returned(pair: hieronnx.ExportResult) -> None:
    root, first, second = read(pair.sidecar)["calls"]
    made, sine, scaled = (node["output"] for node in read(pair.sidecar)["nodes"])
    (given,) = read(pair.sidecar)["model"]["inputs"]
    assert root["inputs"] == [{"name": "x", "graph": "", "tensor": given}] == first["inputs"]
    assert first["outputs"] == [{"name": "", "graph": "", "tensor": made}]
    assert second["inputs"] == [{"name": "x", "graph": "", "tensor": sine}]
    assert second["outputs"] == [{"name": "", "graph": "", "tensor": scaled}] == root["outputs"]


def test_both_forms_have_what_calls_received_and_returned(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    inside = shutil.copy(pair.path, tmp_path / "inside.onnx")
    assert hieronnx.load(inside).calls == hieronnx.load(pair.path).calls


def test_files_of_version_1_0_are_read(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    document = read(pair.sidecar) | {"format_version": "1.0"}
    for call in document["calls"]:
        del call["inputs"], call["outputs"]
    model = onnx.load(pair.path)
    kept = [entry for entry in model.metadata_props if entry.key != "hieronnx.passed"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, tmp_path / "old.onnx")
    inside = hieronnx.load(tmp_path / "old.onnx")
    (tmp_path / "old_hierarchy.json").write_text(json.dumps(document))
    beside = hieronnx.load(tmp_path / "old.onnx")
    assert {(call.received, call.returned) for call in (*inside.calls, *beside.calls)} == {(None, None)}
    assert [call.tag for call in inside.calls] == [call.tag for call in beside.calls]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"tensors":[],"calls":[]}', "hieronnx.passed is of 0 calls, and there are 3"),
        ('{"tensors":[],"calls":[[[["x",0]],[]],[null,null],[null,null]]}', "a tensor that it does not name"),
        ("[]", "Expected `object`"),
    ],
)
def test_embedded_passed_tensors_that_are_none_are_refused(
    pair: hieronnx.ExportResult, tmp_path: Path, text: str, reason: str
) -> None:
    model = onnx.load(pair.path)
    next(entry for entry in model.metadata_props if entry.key == "hieronnx.passed").value = text
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(hieronnx.HieronnxError, match=reason):
        hieronnx.load(tmp_path / "model.onnx")


def test_nodes_of_a_small_model(pair: hieronnx.ExportResult) -> None:
    first, sine, second = read(pair.sidecar)["nodes"]
    assert [(n["op_type"], n["module"], n["call"], n["tag"]) for n in (first, sine, second)] == [
        ("Mul", "scale", 0, "/Pair/Scale"),
        ("Sin", "", 0, "/Pair"),
        ("Mul", "scale", 1, "/Pair/Scale@1"),
    ]
    assert first["origins"] == [{"module": "scale", "call": 0}]
    assert first["tags"] == ["/Pair/Scale", "/Pair"]  # its own, and that of who reads it
    assert sine["tags"] == ["/Pair", "/Pair/Scale@1"]
    assert second["tags"] == ["/Pair/Scale@1"]


def test_tensors_have_the_tags_of_who_makes_and_who_reads_them(pair: hieronnx.ExportResult) -> None:
    document, graph = read(pair.sidecar), onnx.load(pair.path).graph
    tensors = {tensor["name"]: (tensor["producer"], tensor["consumers"]) for tensor in document["tensors"]}
    scaled, sine, output = (node["output"] for node in document["nodes"])
    assert tensors == {
        graph.input[0].name: (None, ["/Pair/Scale"]),
        graph.initializer[0].name: (None, ["/Pair/Scale", "/Pair/Scale@1"]),
        scaled: ("/Pair/Scale", ["/Pair"]),
        sine: ("/Pair", ["/Pair/Scale@1"]),
        output: ("/Pair/Scale@1", []),
    }
    assert {tensor["graph"] for tensor in document["tensors"]} == {""}


def test_initializers_say_which_parameter_they_hold(pair: hieronnx.ExportResult) -> None:
    name = onnx.load(pair.path).graph.initializer[0].name
    assert read(pair.sidecar)["initializers"] == {name: {"parameter": "scale.weight", "origins": []}}


def test_the_file_is_described_with_shapes_and_dynamic_axes(tmp_path: Path) -> None:
    with quiet():
        result = hieronnx.export(
            Pair(), (torch.ones(3, 2),), output=tmp_path / "m.onnx", exporter="dynamo", dynamic_shapes=({0: "batch"},)
        )
    about = read(result.sidecar)["model"]
    assert (about["class"], about["file"], about["exporter"]) == ("Pair", "m.onnx", "dynamo")
    assert about["inputs"] == {"x": {"dtype": "FLOAT", "shape": ["batch", 2]}}
    (name,) = about["outputs"]
    assert about["outputs"][name]["shape"] == ["batch", 2]
    assert about["dynamic_axes"] == {"x": {"0": "batch"}, name: {"0": "batch"}}
    proto = onnx.load(result.path)
    assert about["opset"] == {opset.domain: opset.version for opset in proto.opset_import}


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_the_summary_counts_what_is_there(name: str, exporter: str) -> None:
    document = read(exported(name, exporter).result.sidecar)
    nodes, summary = document["nodes"], document["summary"]
    assert (summary["nodes"], summary["modules"], summary["calls"]) == (
        len(nodes),
        len(document["modules"]),
        len(document["calls"]),
    )
    assert sum(summary["by_evidence"].values()) == sum(summary["by_confidence"].values()) == len(nodes)
    assert sum(entry["total"] for entry in summary["category_statistics"].values()) == len(nodes)
    covered = sum(node["evidence"] != "root" for node in nodes)
    assert summary["coverage"] == round(100 * covered / len(nodes), 2)
    assert all(node["confidence"] == CONFIDENCE[node["evidence"]] for node in nodes)


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_nodes_and_tensors_are_those_of_the_file(name: str, exporter: str) -> None:
    result = exported(name, exporter).result
    document, proto = read(result.sidecar), onnx.load(result.path, load_external_data=False)
    in_file = [(graph, node.name, node.op_type, node.domain, first_output(node)) for graph, node in walk(proto)]
    assert [(n["graph"], n["name"], n["op_type"], n["domain"], n["output"]) for n in document["nodes"]] == in_file
    made = {(graph, name) for graph, node in walk(proto) for name in node.output if name}
    produced = {(t["graph"], t["name"]) for t in document["tensors"] if t["producer"] is not None}
    assert produced == made
    assert set(document["initializers"]) >= {tensor.name for tensor in proto.graph.initializer}


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_there_are_names_and_numbers_only(name: str, exporter: str) -> None:
    found = exported(name, exporter)
    values = {round(v, 5) for p in found.model.parameters() for v in p.detach().flatten()[:50].tolist()}
    numbers = {round(value, 5) for value in numbers_in(read(found.result.sidecar)) if not float(value).is_integer()}
    assert not numbers & values
    assert "tensor(" not in found.result.sidecar.read_text("utf-8")  # type: ignore[union-attr]


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(item)


@pytest.mark.parametrize("exporter", BOTH)
def test_two_exports_give_the_same_bytes(exporter: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (export_pair(tmp_path / folder / "m.onnx", exporter=exporter) for folder in "ab")
    assert one.sidecar is not None
    assert other.sidecar is not None
    assert one.sidecar.read_bytes() == other.sidecar.read_bytes()
    assert one.path.read_bytes() == other.path.read_bytes()


# -- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_sidecar_and_embedded_form_agree(name: str, exporter: str, tmp_path: Path) -> None:
    result = exported(name, exporter).result
    from_sidecar, embedded = load(result.path), load(copy_of(result, tmp_path, sidecar=False))
    assert embedded.calls == from_sidecar.calls
    assert embedded.nodes == tuple(replace(node, rule="") for node in from_sidecar.nodes)
    assert embedded.tags == from_sidecar.tags
    assert {p: m.qualified_class for p, m in embedded.modules.items()} == {
        call.id.module: from_sidecar.modules[call.id.module].qualified_class for call in from_sidecar.calls
    }


def test_what_is_read_is_what_was_exported(pair: hieronnx.ExportResult) -> None:
    assert load(pair.path) == load(str(pair.path)) == pair.hierarchy
    assert [call.tagged for call in pair.hierarchy.calls] == [True, True, True]
    assert pair.hierarchy.initializers[0].parameter == "scale.weight"


def test_a_call_that_shares_the_tag_of_one_above_is_not_tagged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with quiet():
        result = hieronnx.export(model, (torch.ones(1, 2),), output=tmp_path / "m.onnx", exporter="torchscript")
    assert {str(call.id): call.tagged for call in load(result.path).calls} == {"": True, "0": False, "1": False}
    assert load(result.path).tags == {"/Sequential": ""}


def test_without_embedding_the_sidecar_alone_has_it(tmp_path: Path) -> None:
    result = export_pair(tmp_path / "m.onnx", exporter="torchscript", embed=False)
    assert len(result.hierarchy.nodes) == 3
    assert not any("hieronnx." in entry.key for entry in onnx.load(result.path).metadata_props)
    sidecar_path(result.path).unlink()
    with pytest.raises(
        HieronnxError, match=r"m\.onnx' has no hierarchy: no m_hierarchy\.json beside it and no metadata"
    ):
        load(result.path)


def test_an_export_without_a_sidecar_is_not_read_from_that_of_an_older_one(tmp_path: Path) -> None:
    export_pair(tmp_path / "m.onnx", exporter="torchscript")
    with quiet():
        result = hieronnx.export(
            nn.Sigmoid(), (torch.ones(1),), output=tmp_path / "m.onnx", exporter="torchscript", sidecar=False
        )
    assert [node.op_type for node in result.hierarchy.nodes] == ["Sigmoid"]
    assert [node.op_type for node in load(result.path).nodes] == ["Sigmoid"]


def test_a_node_that_lost_its_metadata_is_at_the_root_without_evidence(
    pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    proto = onnx.load(path)
    del proto.graph.node[0].metadata_props[:]
    onnx.save(proto, path)
    node = load(path).nodes[0]
    assert (node.scope, node.origins, node.evidence) == (CallId("", 0), (CallId("", 0),), "root")
    assert load(path).coverage() == pytest.approx(2 / 3)


def test_a_file_whose_nodes_all_lost_their_metadata_has_no_hierarchy(
    pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    proto = onnx.load(path)
    for node in proto.graph.node:
        del node.metadata_props[:]
    onnx.save(proto, path)
    expect_error(path, "pair_hierarchy.json beside it", "no node names its own", "with 'hieronnx carry'")
    assert (open_model(path).hierarchy, open_model(proto).hierarchy) == (None, None)
    with pytest.raises(HieronnxError, match="the model has no hierarchy: its metadata has calls, but no node"):
        hieronnx.extract(proto, "scale")


def test_changes_of_a_file_that_lost_its_scopes_are_placed_by_the_other_file(
    pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    proto = onnx.load(path)
    for node in proto.graph.node:
        del node.metadata_props[:]
    proto.graph.node[-1].op_type = "Add"
    onnx.save(proto, path)
    groups = hieronnx.compare(pair.path, path).groups
    assert {group.scope for group in groups} == {CallId("scale", 1)}


# -- what cannot be read ------------------------------------------------------------------------------------------


def expect_error(path: Path, *words: str) -> None:
    with pytest.raises(HieronnxError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    expect_error(tmp_path / "none.onnx", "no ONNX file at", "none.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model at all, just text\n" * 4])
def test_a_file_that_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    expect_error(path, "broken.onnx", "cannot be read as an ONNX model")


def duplicate_output(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[-1])


def drop_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 0


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (duplicate_output, "which another node makes, too"),
        (drop_type, "ONNX has no data type 0"),
    ],
)
def test_a_model_that_is_not_sound_is_refused_with_the_place(
    change: Callable[[onnx.ModelProto], None], cause: str, pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    proto = onnx.load(path)
    change(proto)
    path.write_bytes(proto.SerializeToString())
    expect_error(path, f"'{path}' is not a sound model: ", cause, "fix it with what made it")
    for read in (load_ir_model, open_model):
        with pytest.raises(HieronnxError, match=f"the model is not a sound model: .*{cause}"):
            read(proto)
    with pytest.raises(HieronnxError, match=f"'.*' is not a sound model: .*{cause}"):
        load_ir_model(path)


def map_input(model: onnx.ModelProto) -> str:
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(1, []))
    model.graph.input.append(onnx.helper.make_value_info("map", kind))
    return "Map types are not supported"


@pytest.mark.parametrize("change", [map_input])
def test_what_onnx_ir_cannot_read_is_told_with_its_innermost_cause(
    change: Callable[[onnx.ModelProto], str], pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    proto = onnx.load(path)
    cause = change(proto)
    onnx.save(proto, path)
    expect_error(path, f"hieronnx cannot read '{path}': ", cause)
    for read in (load_ir_model, open_model):
        with pytest.raises(HieronnxError, match=f"hieronnx cannot read the model: .*{cause}"):
            read(proto)
    with pytest.raises(HieronnxError, match=f"hieronnx cannot read '.*': .*{cause}"):
        load_ir_model(path)


SPOILED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a field is missing": (lambda d: d.pop("calls"), "calls"),
    "a field has another type": (lambda d: d["nodes"][0].update(call="zero"), "nodes"),
    "a parent is not there": (lambda d: d["calls"][1].update(parent=99), "no caller"),
    "a parent is counted from the end": (lambda d: d["calls"][1].update(parent=-1), "no caller"),
    "a call is its own parent": (lambda d: d["calls"][1].update(parent=1), "no caller"),
    "there are two roots": (lambda d: d["calls"][1].update(parent=None), "no caller"),
    "a call is there twice": (lambda d: d["calls"].append(d["calls"][1]), "twice"),
    "a call has a negative number": (lambda d: d["calls"][1].update(call=-1), "call -1"),
    "a node's call is not there": (lambda d: d["nodes"][0].update(call=7), "scale@7"),
    "an origin is not there": (lambda d: d["nodes"][0].update(origins=[{"module": "gone", "call": 0}]), "gone"),
    "a call's module is not there": (lambda d: d["modules"].pop("scale"), "scale"),
    "an evidence is unknown": (lambda d: d["nodes"][0].update(evidence="guessed"), "guessed"),
}


@pytest.mark.parametrize(("spoil", "word"), SPOILED.values(), ids=SPOILED)
def test_a_sidecar_that_does_not_hold_together_is_refused(
    spoil: Callable[[dict[str, Any]], object], word: str, pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=True)
    document = read(pair.sidecar)
    spoil(document)
    sidecar_path(path).write_text(json.dumps(document))
    expect_error(path, "pair_hierarchy.json", "is not a hierarchy that this version reads", word)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b"{}"])
def test_a_corrupt_sidecar_is_refused(content: bytes, pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    path = copy_of(pair, tmp_path, sidecar=True)
    sidecar_path(path).write_bytes(content)
    expect_error(path, "pair_hierarchy.json", "is not a hierarchy that this version reads")


def test_a_truncated_sidecar_is_refused(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    path = copy_of(pair, tmp_path, sidecar=True)
    content = sidecar_path(path).read_bytes()
    for length in range(0, len(content) - 2, 501):
        sidecar_path(path).write_bytes(content[:length])
        expect_error(path, "pair_hierarchy.json")


def test_another_major_version_is_named_whatever_its_fields(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    path = copy_of(pair, tmp_path, sidecar=True)
    sidecar_path(path).write_text(json.dumps(read(pair.sidecar) | {"format_version": "2.0"}))
    expect_error(path, "format version 2.0", f"reads {FORMAT_VERSION}")
    sidecar_path(path).write_text('{"format_version": "2.0", "everything": "is new"}')
    expect_error(path, "format version 2.0", f"reads {FORMAT_VERSION}")


def test_a_later_minor_version_is_read(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    path = copy_of(pair, tmp_path, sidecar=True)
    sidecar_path(path).write_text(json.dumps(read(pair.sidecar) | {"format_version": "1.9", "new_field": [1]}))
    assert load(path).nodes == pair.hierarchy.nodes


def spoil_embedded(path: Path, key: str, value: str, *, on_node: bool) -> None:
    proto = onnx.load(path)
    props = proto.graph.node[0].metadata_props if on_node else proto.metadata_props
    next(entry for entry in props if entry.key == f"hieronnx.{key}").value = value
    onnx.save(proto, path)


def test_another_major_version_inside_the_file_is_named(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    spoil_embedded(path, "format_version", "2.0", on_node=False)
    expect_error(path, "format version 2.0", f"reads {FORMAT_VERSION}")


@pytest.mark.parametrize(
    ("key", "value", "on_node"),
    [
        ("calls", "{", False),
        ("calls", "[[]]", False),
        ("calls", '[["", 0]]', False),
        ("calls", '[["", 0, 5, "", "/Pair", "x.Pair"]]', False),
        ("calls", "7", False),
        ("call", "first", True),
        ("call", "9", True),
        ("module", "gone", True),
        ("evidence", "guessed", True),
    ],
)
def test_metadata_that_does_not_hold_together_is_refused(
    key: str, value: str, on_node: bool, pair: hieronnx.ExportResult, tmp_path: Path
) -> None:
    path = copy_of(pair, tmp_path, sidecar=False)
    spoil_embedded(path, key, value, on_node=on_node)
    expect_error(path, "the metadata in", "pair.onnx", "is not a hierarchy that this version reads")


# -- who reads a node ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_both_forms_tell_who_reads_a_node(name: str, exporter: str, tmp_path: Path) -> None:
    result = exported(name, exporter).result
    beside, inside = load(result.path), load(copy_of(result, tmp_path, sidecar=False))
    document = read(result.sidecar)
    readers = {(item["graph"], item["name"]): item["consumers"] for item in document["tensors"]}
    tags = {(entry["graph"], entry["output"]): entry["tags"] for entry in document["nodes"]}
    for node, other in zip(beside.nodes, inside.nodes, strict=True):
        assert node.consumers is not None
        assert other.consumers is not None
        assert set(node.consumers) == set(other.consumers)
        assert set(node.consumers) >= set(readers[node.key])
        assert set(tags[node.key]) == {beside.tag_of(node.scope), *node.consumers}


def test_a_small_model_tells_who_reads_its_nodes(pair: hieronnx.ExportResult) -> None:
    first, sine, second = hieronnx.load(pair.path).nodes
    assert (first.consumers, sine.consumers, second.consumers) == (("/Pair",), ("/Pair/Scale@1",), ())


def test_files_before_version_1_3_do_not_say_who_reads(pair: hieronnx.ExportResult, tmp_path: Path) -> None:
    path = copy_of(pair, tmp_path, sidecar=True)
    document = read(pair.sidecar) | {"format_version": "1.2"}
    del document["model"]["strategy"]
    for entry in document["nodes"]:
        del entry["consumers"]
    for entry in document["modules"].values():
        del entry["child_classes"], entry["expected_tag"]
    sidecar_path(path).write_text(json.dumps(document))
    proto = onnx.load(path)
    proto.metadata_props.remove(next(e for e in proto.metadata_props if e.key == "hieronnx.strategy"))
    onnx.save(proto, path)
    hierarchy = load(path)
    assert hierarchy.nodes == load(pair.path).nodes
    assert (hierarchy.strategy, hierarchy.nodes[0].consumers) == (None, None)
    assert hieronnx.validate(path, strict=True).passed
    part = hieronnx.extract(path, "scale", output=tmp_path / "part.onnx")
    assert part.hierarchy.modules[""].expected_tag is None
    assert hieronnx.validate(tmp_path / "part.onnx", strict=True).passed


def test_a_part_has_the_tags_that_its_own_structure_lets_expect(tmp_path: Path) -> None:
    result = exported("bert", "torchscript").result
    part = hieronnx.extract(result.path, "encoder.layer.1.attention", output=tmp_path / "part.onnx")
    assert {path: module.expected_tag for path, module in part.hierarchy.modules.items() if path != "self.dropout"} == {
        "": "/BertAttention",
        "self": "/BertAttention/BertSelfAttention",
        "self.query": "/BertAttention/BertSelfAttention",
        "self.key": "/BertAttention/BertSelfAttention",
        "self.value": "/BertAttention/BertSelfAttention",
        "output": "/BertAttention/BertSelfOutput",
        "output.dense": "/BertAttention/BertSelfOutput",
        "output.LayerNorm": "/BertAttention/BertSelfOutput/LayerNorm",
        "output.dropout": "/BertAttention/BertSelfOutput",
    }
    assert hieronnx.validate(tmp_path / "part.onnx", strict=True).passed


# -- which file it is of ------------------------------------------------------------------------------------------


def describe_wirings(path: Path) -> set[Wiring]:
    model = onnx.load(path, load_external_data=False)
    return {read_wiring(path), read_proto_wiring(model), read_ir_wiring(ir.serde.deserialize_model(model))}


@pytest.mark.parametrize("name", ["bert", "t5", "mamba"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_wiring_is_the_same_however_it_is_read(name: str, exporter: str) -> None:
    (wiring,) = describe_wirings(export_ours(name, exporter))
    assert wiring.digest == hieronnx.load(export_ours(name, exporter)).model["wiring"]


def test_so_it_is_with_bodies_functions_and_optional_inputs(tmp_path: Path) -> None:
    for number, text in enumerate((BODIES, FUNCTIONS)):
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{number}.onnx")
    wirings = [describe_wirings(path) for path in (tmp_path / "0.onnx", tmp_path / "1.onnx", *SHIPPED[::17])]
    assert all(len(found) == 1 for found in wirings)
    assert len({wiring.digest for found in wirings for wiring in found}) > len(wirings) // 2


def test_a_sidecar_of_a_file_that_is_wired_otherwise_is_not_used(tmp_path: Path) -> None:
    path = write_layered(tmp_path / "model.onnx", embed=False)
    assert len(hieronnx.load(path).nodes) == 9
    model = onnx.load(path)
    model.graph.node[5].input[1] = "layers.0.weight"  # as another model of the same names may be
    onnx.save(model, path)
    with pytest.raises(HieronnxError, match="tells of another model: its nodes are others, or wired otherwise"):
        hieronnx.load(path)
    assert [finding.place for finding in hieronnx.validate(path) if finding.severity == "error"] == [
        "sidecar: $.model.wiring"
    ]


def test_a_sidecar_that_does_not_say_how_its_file_is_wired_is_told_by_its_nodes(tmp_path: Path) -> None:
    path = write_layered(tmp_path / "model.onnx", embed=False)
    layered.spoil(path, drop("model", "wiring"))  # as before version 1.4
    assert len(hieronnx.load(path).nodes) == 9
    assert not hieronnx.validate(path).count("error")
