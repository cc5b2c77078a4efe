"""validate finds what is wrong, says where and what to do, and finds nothing where nothing is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import hieronnx
import support.cli
from hieronnx.errors import InputError
from hieronnx.files.opening import sidecar_path
from hieronnx.hierarchy.records import ROOT
from support.layered import (
    at,
    drop,
    make_hierarchy,
    make_model,
    rescope,
    set_entry,
    spoil,
    spoil_metadata,
    write,
    write_layered,
)
from support.onnxdata import SHIPPED


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_layered(tmp_path / "model.onnx")


def found(model: Path, **options: Any) -> list[tuple[str, str]]:
    """Return severity and check of what is found."""
    return [(item.severity, item.check) for item in hieronnx.validate(model, **options)]


run = partial(support.cli.run, "validate")


# -- nothing wrong ------------------------------------------------------------------------------------------------


def test_a_model_in_memory_is_checked_with_what_it_has_inside(model: Path) -> None:
    assert hieronnx.validate(onnx.load(model)).findings == ()
    assert hieronnx.validate(ir.load(model)).findings == ()


@pytest.mark.parametrize("embed", [True, False])
def test_one_form_alone_is_enough_and_noted(tmp_path: Path, embed: bool) -> None:
    path = write_layered(tmp_path / "model.onnx", embed=embed, sidecar=not embed)
    assert found(path, strict=True) == [("note", "forms")]
    assert hieronnx.validate(path, strict=True).passed


def test_a_model_without_a_hierarchy_is_told_how_to_get_one(tmp_path: Path) -> None:
    path = write_layered(tmp_path / "model.onnx", embed=False, sidecar=False)
    (finding,) = hieronnx.validate(path)
    assert (finding.severity, finding.check) == ("warning", "hierarchy")
    assert "model_hierarchy.json" in finding.message
    assert "hieronnx export" in finding.remedy
    assert hieronnx.validate(path).passed
    assert not hieronnx.validate(path, strict=True).passed


@pytest.mark.parametrize(("layers", "width"), [(1, 1500), (1500, 1)])
def test_chains_of_any_length_are_followed(tmp_path: Path, layers: int, width: int) -> None:
    assert found(write_layered(tmp_path / "model.onnx", layers=layers, width=width)) == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_no_shipped_model_is_called_broken(path: Path) -> None:
    assert found(path) == [("warning", "hierarchy")]


# -- the sidecar and the metadata ---------------------------------------------------------------------------------


ELSEWHERE = {"module": "layers.9", "call": 0}


@pytest.mark.parametrize(
    ("change", "severity", "check", "place"),
    [
        (at("format_version", to="2.0"), "error", "sidecar-version", "model_hierarchy.json"),
        (at("format_version", to=2), "error", "sidecar-schema", "model_hierarchy.json"),
        (drop("nodes"), "error", "sidecar-schema", "model_hierarchy.json"),
        (at("nodes", 3, "call", to="one"), "error", "sidecar-schema", "sidecar: $.nodes[3].call"),
        (at("model", "opset", to=[20]), "error", "sidecar-schema", "sidecar: $.model.opset"),
        (at("new", to=1), "warning", "sidecar-keys", "sidecar: $.new"),
        (at("nodes", 0, "new", to=1), "warning", "sidecar-keys", "sidecar: $.nodes[].new"),
        (at("model", "inputs", "x", "new", to=1), "warning", "sidecar-keys", "sidecar: $.model.inputs[].new"),
        (drop("nodes", 4), "error", "sidecar-nodes", "sidecar: $.nodes"),
        (at("nodes", 4, "output", to="other"), "error", "sidecar-nodes", "sidecar: $.nodes"),
        (at("nodes", 4, "op_type", to="Mul"), "error", "sidecar-nodes", "sidecar: node 'add1_1'"),
        (at("calls", 2, "parent", to=7), "error", "calls", "sidecar: call 'layers.1'"),
        (at("calls", 2, "parent", to=None), "error", "calls", "sidecar: call 'layers.1'"),
        (at("calls", 2, "call", to=-1), "error", "calls", "sidecar: call 'layers.1@-1'"),
        (at("calls", 2, "module", to="layers.0"), "error", "calls", "sidecar: call 'layers.0'"),
        (at("calls", to=[]), "error", "calls", "sidecar: calls"),
        (drop("modules", "layers.1"), "error", "calls", "sidecar: call 'layers.1'"),
        (at("nodes", 4, "module", to="layers.9"), "error", "references", "sidecar: node 'add1_1'"),
        (at("nodes", 4, "origins", to=[ELSEWHERE]), "error", "references", "sidecar: node 'add1_1'"),
        (at("nodes", 4, "evidence", to="hearsay"), "error", "references", "sidecar: node 'add1_1'"),
        (
            at("initializers", "layers.0.weight", "origins", to=[ELSEWHERE]),
            "error",
            "references",
            "sidecar: initializer 'layers.0.weight'",
        ),
        (at("nodes", 4, "tag", to="/Net/Layer.2"), "error", "sidecar-derived", "sidecar: node 'add1_1'"),
        (at("calls", 2, "tag", to="Layer"), "error", "tags", "sidecar: call 'layers.1'"),
        (at("calls", 2, "tag", to="/Net/Layer.0"), "error", "tags", "sidecar: call 'layers.1'"),
        (at("calls", 2, "tag", to="/Other/Layer.1"), "error", "tags", "sidecar: call 'layers.1'"),
        (at("calls", 2, "tag", to="/Net/A/Layer.1"), "error", "tags", "sidecar: call 'layers.1'"),
        (at("calls", 2, "tag", to="/Net/Block.1"), "error", "tags", "sidecar: call 'layers.1'"),
        (at("nodes", 4, "evidence", to="name"), "error", "agreement", "node 'add1_1'"),
        (at("nodes", 4, "origins", to=[]), "error", "agreement", "node 'add1_1'"),
        (at("calls", 2, "via", to="alias"), "error", "agreement", "call 'layers.1'"),
        (at("modules", "layers.1", "qualified_class", to="other.Layer"), "error", "agreement", "call 'layers.1'"),
        (at("summary", "nodes", to=8), "warning", "sidecar-derived", "sidecar: $.summary"),
        (at("hierarchy", "/Net", to="x"), "warning", "sidecar-derived", "sidecar: $.hierarchy"),
        (at("tensors", 0, "producer", to="/Net"), "warning", "sidecar-derived", "sidecar: $.tensors"),
        (at("nodes", 4, "confidence", to="low"), "warning", "sidecar-derived", "sidecar: $.nodes[].confidence"),
        (at("modules", "layers.1", "tag", to=None), "warning", "sidecar-derived", "sidecar: $.modules[].tag"),
        (at("model", "opset", to={"": 9}), "warning", "sidecar-derived", "sidecar: $.model.opset"),
        (at("nodes", 4, "name", to="other"), "warning", "sidecar-derived", "sidecar: $.nodes[].name"),
        (
            at("initializers", "layers.0.weight", "parameter", to="encoder.0.weight"),
            "error",
            "sidecar-modules",
            "sidecar: initializer 'layers.0.weight'",
        ),
        (
            at("initializers", "nowhere", to={"parameter": None, "origins": []}),
            "error",
            "sidecar-modules",
            "sidecar: initializer 'nowhere'",
        ),
        (
            at("modules", "layers.1", "parameters", to=["bias"]),
            "error",
            "sidecar-modules",
            "sidecar: module 'layers.1'",
        ),
        (
            at("modules", "layers.1", "direct_parameters", to=[]),
            "error",
            "sidecar-modules",
            "sidecar: module 'layers.1'",
        ),
        (at("modules", "", "parameters", to=["encoder.weight"]), "error", "sidecar-modules", "sidecar: root module"),
    ],
)
def test_what_is_wrong_with_a_sidecar_is_found_at_its_place(
    model: Path, change: Callable[[dict[str, Any]], None], severity: str, check: str, place: str
) -> None:
    spoil(model, change)
    findings = hieronnx.validate(model)
    assert (severity, check, place) in {(item.severity, item.check, item.place) for item in findings}
    assert all(item.message and item.remedy for item in findings)
    assert findings.passed == (severity == "warning")
    assert not hieronnx.validate(model, strict=True).passed


def test_one_wrong_node_does_not_hide_another(model: Path) -> None:
    spoil(model, at("nodes", 0, "module", to="nowhere"))
    spoil(model, at("nodes", 8, "evidence", to="hearsay"))
    spoil(model, at("calls", 2, "tag", to="no tag"))
    places = {item.place for item in hieronnx.validate(model)}
    assert {"sidecar: node 'add0_0'", "sidecar: node 'add2_2'", "sidecar: call 'layers.1'"} <= places


def test_the_sidecar_of_another_model_is_not_believed(model: Path, tmp_path: Path) -> None:
    other = write_layered(tmp_path / "other.onnx", layers=5, width=2)
    shutil.copy(sidecar_path(other), sidecar_path(model))
    (finding,) = hieronnx.validate(model)  # what is inside is compared with nothing, and right
    assert (finding.severity, finding.check) == ("error", "sidecar-nodes")
    assert "3 of the model's 9 nodes are not in it, 4 of its 10 are not in the model" in finding.message
    assert "not in the sidecar: node 't0_2'" in finding.message
    assert len(finding.details) == 3 + 4
    assert finding.details[-1] == "not in the model: node 't4_1'"


def test_the_nodes_of_another_model_do_not_count_for_coverage(tmp_path: Path) -> None:
    model = write_layered(tmp_path / "model.onnx", embed=False)
    unknown = {f"t{n}_{step}": ROOT for n in range(5) for step in range(2)}
    hierarchy = rescope(make_hierarchy(5, 2), unknown, evidence="root")
    other = write(tmp_path / "other.onnx", make_model(5, 2), hierarchy)
    shutil.copy(sidecar_path(other), sidecar_path(model))
    assert found(model) == [("error", "sidecar-nodes")]


def drop_scopes(model: onnx.ModelProto) -> None:
    """Drop what an optimizer drops: the metadata of every node, but not the model's own."""
    for node in model.graph.node:
        del node.metadata_props[:]


def test_a_file_whose_nodes_lost_their_scopes_is_one_finding(model: Path) -> None:
    sidecar_path(model).unlink()
    spoil_metadata(model, drop_scopes)
    (finding,) = hieronnx.validate(model)
    assert (finding.severity, finding.check) == ("error", "metadata")
    assert finding.message.startswith("its metadata has calls, but no node names its own")
    assert "--fix" not in finding.remedy
    assert "hieronnx carry" in finding.remedy


def test_a_child_that_nothing_else_speaks_of_is_noted(model: Path) -> None:
    spoil(model, at("modules", "layers.1", "children", to=["ghost"]))
    (finding,) = hieronnx.validate(model)  # it may be another name of a shared module
    assert (finding.severity, finding.check) == ("note", "sidecar-modules")
    assert "no module 'layers.1.ghost'" in finding.message


def test_a_module_that_is_no_child_of_the_one_above_it_is_found(model: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["modules"]["layers.1.norm"] = {**document["modules"]["layers.1"], "tag": None}

    spoil(model, change)
    findings = [item for item in hieronnx.validate(model) if item.check == "sidecar-modules"]
    assert [(item.severity, item.place) for item in findings] == [("error", "sidecar: module 'layers.1.norm'")]


@pytest.mark.parametrize(
    ("change", "severity", "check", "place"),
    [
        (lambda m: set_entry(m, "hieronnx.calls", None), "error", "metadata", "metadata"),
        (lambda m: set_entry(m, "hieronnx.calls", "[[1]]"), "error", "metadata", "metadata: hieronnx.calls"),
        (lambda m: set_entry(m, "hieronnx.calls", "[" * 5000), "error", "metadata", "metadata: hieronnx.calls"),
        (lambda m: set_entry(m, "hieronnx.calls", "[]"), "error", "calls", "metadata: calls"),
        (lambda m: set_entry(m, "hieronnx.format_version", "7"), "error", "metadata-version", "metadata"),
        (lambda m: set_entry(m.graph.node[4], "hieronnx.call", "x"), "error", "metadata", "metadata: node 'add1_1'"),
        (lambda m: set_entry(m.graph.node[4], "hieronnx.call", None), "error", "metadata", "metadata: node 'add1_1'"),
        (
            lambda m: set_entry(m.graph.node[4], "hieronnx.origins", "{}"),
            "error",
            "metadata",
            "metadata: node 'add1_1'",
        ),
        (
            lambda m: set_entry(m.graph.node[4], "hieronnx.module", None),
            "warning",
            "metadata",
            "metadata: node 'add1_1'",
        ),
        (
            lambda m: set_entry(m.graph.node[4], "hieronnx.module", "a"),
            "error",
            "references",
            "metadata: node 'add1_1'",
        ),
        (
            lambda m: set_entry(m.graph.node[4], "hieronnx.tag", "/Net"),
            "error",
            "metadata-derived",
            "metadata: node 'add1_1'",
        ),
    ],
)
@pytest.mark.parametrize("sidecar", [True, False])
def test_what_is_wrong_with_the_metadata_is_found_at_its_place(
    model: Path, sidecar: bool, change: Callable[[onnx.ModelProto], object], severity: str, check: str, place: str
) -> None:
    if not sidecar:
        sidecar_path(model).unlink()
    spoil_metadata(model, change)
    assert (severity, check, place) in {(item.severity, item.check, item.place) for item in hieronnx.validate(model)}


# -- coverage -----------------------------------------------------------------------------------------------------


def test_a_category_under_its_threshold_fails_if_it_is_critical(tmp_path: Path) -> None:
    hierarchy = rescope(make_hierarchy(), {"t1_1": ROOT}, evidence="root")
    path = write(tmp_path / "model.onnx", make_model(), hierarchy)
    assert found(path) == [("error", "coverage")]
    assert found(path, thresholds={"mathematical": 80.0}) == []
    assert "8 of 9 nodes attributed (88.9 %), under 95 %" in hieronnx.validate(path).findings[0].message
    with pytest.raises(InputError, match="no category 'maths'"):
        hieronnx.validate(path, thresholds={"maths": 1.0})
    for wrong in (150.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="must be between 0 and 100"):
            hieronnx.validate(path, thresholds={"mathematical": wrong})


def test_other_categories_only_warn(tmp_path: Path) -> None:
    model, hierarchy = make_model(), rescope(make_hierarchy(), {"t1_1": ROOT}, evidence="root", op_type="Identity")
    node = model.graph.node[4]
    node.op_type = "Identity"
    del node.input[1]
    assert found(write(tmp_path / "model.onnx", model, hierarchy)) == [("warning", "coverage")]


# -- the command --------------------------------------------------------------------------------------------------


def test_the_exit_code_says_whether_something_was_found(model: Path) -> None:
    assert (run(model).exit_code, run(model).output) == (0, "nothing wrong\n")
    spoil(model, at("new", to=1))
    assert run(model).exit_code == 0
    assert run(model, "--strict").exit_code == 1
    spoil(model, at("nodes", 4, "evidence", to="name"))
    assert run(model).exit_code == 1
    assert run(model.with_name("none.onnx")).exit_code == 2


def test_the_table_has_place_and_remedy(model: Path) -> None:
    spoil(model, at("nodes", 4, "evidence", to="hearsay"))
    lines = run(model).output.splitlines()
    assert lines[0].startswith("severity  check")
    row = next(line for line in lines if "references" in line)
    assert row.startswith("error")
    assert all(part in row for part in ("sidecar: node 'add1_1'", "hearsay", "export the model again"))
    assert lines[-1] == "2 errors: failed"


def test_many_of_a_kind_are_counted_in_the_table_and_listed_in_json(tmp_path: Path) -> None:
    model = write_layered(tmp_path / "model.onnx", layers=10, width=10)

    def change(document: dict[str, Any]) -> None:
        for node in document["nodes"]:
            node["evidence"] = "hearsay"

    spoil(model, change)
    output = run(model).output
    assert output.count("its evidence 'hearsay' is not one of") == 5
    assert "… and 95 more; --json lists them all" in output
    listed = [item for item in json.loads(run(model, "--json").output)["findings"] if item["check"] == "references"]
    assert len(listed) == 100
    assert list(listed[0]) == ["check", "severity", "place", "message", "remedy", "details"]


def test_all_nodes_of_a_foreign_sidecar_are_in_json(tmp_path: Path) -> None:
    model = write_layered(tmp_path / "model.onnx", layers=10, width=10)
    spoil(model, at("nodes", to=[]))
    output = run(model).output
    assert "100 of the model's 100 nodes are not in it, 0 of its 0 are not in the model" in output
    assert output.count("not in the sidecar: node") == 3
    listed = json.loads(run(model, "--json").output)
    assert (listed["passed"], listed["counts"]["error"], len(listed["findings"])) == (False, 1, 1)
    assert len(listed["findings"][0]["details"]) == 100


def test_findings_are_sorted_and_the_same_every_time(model: Path) -> None:
    spoil(model, at("new", to=1))
    spoil(model, at("nodes", 1, "origins", to=[]))
    spoil(model, at("calls", 2, "via", to="alias"))
    findings = hieronnx.validate(model)
    assert [(item.severity, item.place) for item in findings] == [
        ("error", "call 'layers.1'"),
        ("error", "node 'add0_1'"),
        ("warning", "sidecar: $.new"),
    ]
    assert hieronnx.validate(model) == findings


def test_thresholds_are_options(tmp_path: Path) -> None:
    hierarchy = rescope(make_hierarchy(), {"t1_1": ROOT}, evidence="root")
    model = write(tmp_path / "model.onnx", make_model(), hierarchy)
    assert run(model).exit_code == 1
    assert run(model, "--threshold", "mathematical=80").exit_code == 0
    for wrong in ("mathematical", "mathematical=x", "mathematical=101", "maths=5"):
        refused = run(model, "--threshold", wrong)
        assert refused.exit_code == 2
        assert len(refused.stderr.splitlines()) == 1
        assert wrong in refused.stderr


def test_it_needs_neither_torch_nor_onnxruntime(model: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'onnxruntime', 'onnxscript', 'transformers']))\n"
        f"sys.argv = ['hieronnx', 'validate', {str(model)!r}, '--fix', '--json']\n"
        "from hieronnx.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["passed"]


def test_a_sidecar_of_the_same_model_in_another_size_is_found_out(tmp_path: Path) -> None:
    path = write_layered(tmp_path / "model.onnx")
    spoil(path, at("modules", "layers.1", "parameter_count", to=800))
    assert ("error", "sidecar-modules") in found(path)


def test_what_no_field_holds_must_be_json_too(tmp_path: Path) -> None:
    path = write_layered(tmp_path / "model.onnx")
    beside = sidecar_path(path)
    beside.write_bytes(beside.read_bytes().replace(b"{", b'{"unknown": "\xff", ', 1))
    (finding,) = [item for item in hieronnx.validate(path) if item.check == "sidecar-schema"]
    assert "cannot be read" in finding.message
