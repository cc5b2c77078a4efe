"""validate --fix writes one form of a hierarchy from the other, guesses nothing, and leaves the graph alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

import hieronnx
import support.cli
from hieronnx.files.opening import load, sidecar_path
from support.baseline import assert_same_as_baseline
from support.exports import exported
from support.layered import (
    at,
    drop,
    set_entry,
    spoil,
    spoil_metadata,
    write_layered,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_layered(tmp_path / "model.onnx")


run = partial(support.cli.run, "validate")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The model without a hierarchy, to compare graphs with."""
    return write_layered(tmp_path / "plain.onnx", embed=False, sidecar=False)


def test_a_missing_sidecar_is_written_from_the_metadata(model: Path) -> None:
    before, content = load(model), model.read_bytes()
    sidecar_path(model).unlink()
    result = run(model, "--fix", "--strict")
    assert (result.exit_code, result.output.splitlines()[0]) == (
        0,
        "fixed: wrote model_hierarchy.json from the metadata inside the model; parameters stay unknown",
    )
    after = load(model)
    assert (after.calls, after.nodes) == (before.calls, before.nodes)
    assert {module.parameter_count for module in after.modules.values()} == {None}
    assert model.read_bytes() == content


@pytest.mark.parametrize("stale", [None, "[]"])
def test_missing_or_broken_metadata_is_written_from_the_sidecar(model: Path, plain: Path, stale: str | None) -> None:
    whole = model.read_bytes()
    spoil_metadata(model, lambda m: set_entry(m, "hieronnx.calls", stale))
    model.chmod(0o640)
    result = run(model, "--fix", "--strict")
    assert (result.exit_code, result.output.splitlines()[0]) == (
        0,
        "fixed: wrote the metadata in model.onnx from the sidecar; the graph is as it was",
    )
    assert model.read_bytes() == whole
    assert model.stat().st_mode & 0o777 == 0o640
    assert_same_as_baseline(model, plain)
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "model_hierarchy.json", "plain.onnx"]


def test_an_export_without_metadata_gets_that_of_one_with_it(tmp_path: Path) -> None:
    result = exported("conv_batch_norm", "dynamo").result
    bare = exported("conv_batch_norm", "dynamo", embed=False).result
    for path in bare.path.parent.iterdir():
        shutil.copy(path, tmp_path / path.name)
    assert run(tmp_path / "model.onnx", "--fix").exit_code == 0
    assert_same_as_baseline(tmp_path / "model.onnx", bare.path)
    assert hieronnx.validate(tmp_path / "model.onnx", baseline=bare.path, strict=True).findings == ()
    assert load(tmp_path / "model.onnx").nodes == result.hierarchy.nodes


def test_what_a_sidecar_repeats_is_written_anew(model: Path) -> None:
    whole = sidecar_path(model).read_bytes()
    spoil(model, at("summary", "nodes", to=8))
    result = run(model, "--fix", "--strict")
    assert result.exit_code == 0
    assert "fixed: wrote model_hierarchy.json from its own nodes" in result.output
    assert sidecar_path(model).read_bytes() == whole


def test_where_both_disagree_the_user_says_whom_to_trust(model: Path, plain: Path) -> None:
    spoil(model, at("nodes", 4, "evidence", to="name"))
    before = sidecar_path(model).read_bytes(), model.read_bytes()
    refused = run(model, "--fix")
    assert refused.exit_code == 2
    assert "--fix-from sidecar or --fix-from embedded" in refused.stderr
    assert (sidecar_path(model).read_bytes(), model.read_bytes()) == before
    other = model.with_name("other.onnx")
    shutil.copy(model, other)
    shutil.copy(sidecar_path(model), sidecar_path(other))
    for path, trust, evidence in ((model, "sidecar", "name"), (other, "embedded", "captured")):
        assert run(path, "--fix-from", trust, "--strict").exit_code == 0
        assert load(path).nodes[4].evidence == evidence
        assert_same_as_baseline(path, plain)


def test_a_form_that_is_not_whole_is_not_written_from(model: Path) -> None:
    spoil(model, at("nodes", 4, "module", to="nowhere"))
    spoil_metadata(model, lambda m: set_entry(m, "hieronnx.calls", "[]"))
    before = sidecar_path(model).read_bytes(), model.read_bytes()
    assert run(model, "--fix").exit_code == 1
    assert "missing or not whole" in run(model, "--fix-from", "sidecar").stderr
    assert (sidecar_path(model).read_bytes(), model.read_bytes()) == before


def test_a_sidecar_of_a_later_version_is_left_alone(model: Path) -> None:
    spoil(model, at("format_version", to="9.0"))
    before = sidecar_path(model).read_bytes()
    assert run(model, "--fix").exit_code == 1
    assert sidecar_path(model).read_bytes() == before


def test_a_sidecar_that_cannot_be_carried_over_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    other = write_layered(tmp_path / "other.onnx", layers=5, width=2)
    for content in (sidecar_path(other).read_bytes(), b"{", b'{"format_version": "1.0"}'):
        sidecar_path(model).write_bytes(content)
        for option in ("--fix", "--fix-from=embedded"):
            refused = run(model, option)
            assert refused.exit_code == 2
            assert "move it away" in refused.stderr
        assert sidecar_path(model).read_bytes() == content
    sidecar_path(model).unlink()
    assert run(model, "--fix", "--strict").exit_code == 0


@pytest.mark.parametrize(
    "change",
    [
        at("nodes", 4, "tag", to="/Wrong"),
        at("nodes", 4, "name", to="other"),
        at("nodes", 4, "op_type", to="Mul"),
        at("nodes", 4, "module", to="nowhere"),
        at("nodes", 4, "evidence", to="hearsay"),
        at("calls", 2, "tag", to="/Net/Block.1"),
        at("calls", 2, "parent", to=7),
        at("calls", to=[]),
    ],
)
def test_a_nearly_whole_sidecar_keeps_all_that_only_it_tells(model: Path, change: Callable[[Any], None]) -> None:
    before = load(model)
    spoil(model, change)
    assert run(model, "--fix").exit_code == 0
    after = load(model)
    assert after == before


def test_a_module_that_the_sidecar_lost_is_back_without_what_nobody_knows(model: Path) -> None:
    before = load(model)
    spoil(model, drop("modules", "layers.1"))
    result = run(model, "--fix")
    assert result.exit_code == 1
    assert "it has a parameter 'layers.1.weight', but no module does" in result.output
    after = load(model)
    assert after.modules["layers.1"].parameter_count is None
    assert {**after.modules, "layers.1": before.modules["layers.1"]} == before.modules


@pytest.mark.parametrize("options", [["--fix"], ["--fix-from", "embedded"]])
def test_no_byte_of_an_exports_sidecar_is_lost_with_one_wrong_node(tmp_path: Path, options: list[str]) -> None:
    for path in exported("bert", "torchscript").result.path.parent.iterdir():
        shutil.copy(path, tmp_path / path.name)
    model = tmp_path / "model.onnx"
    whole = sidecar_path(model).read_bytes()
    wrong = {"tag": "/Wrong"} if options == ["--fix"] else {"evidence": "name"}
    spoil(model, lambda document: document["nodes"][5].update(wrong))
    assert run(model, *options, "--strict").output.splitlines()[-1] == "nothing wrong"
    assert sidecar_path(model).read_bytes() == whole


def test_the_rule_of_a_node_is_kept_where_the_metadata_is_trusted(model: Path) -> None:
    spoil(model, at("nodes", 3, "rule", to="between"))
    spoil(model, at("nodes", 4, "evidence", to="name"))
    assert run(model, "--fix-from", "embedded").exit_code == 0
    assert load(model).nodes[3].rule == "between"


def test_a_fix_that_would_lose_a_fact_is_refused(model: Path) -> None:
    spoil(model, at("initializers", "layers.0.weight", "origins", to=[{"module": "layers.9", "call": 0}]))
    before = sidecar_path(model).read_bytes()
    refused = run(model, "--fix")
    assert refused.exit_code == 2
    assert "initializer 'layers.0.weight' refers to call 'layers.9'" in refused.stderr
    assert sidecar_path(model).read_bytes() == before


def test_a_sidecar_that_is_not_whole_is_not_overruled_where_it_knows_what_it_says(model: Path) -> None:
    spoil(model, at("nodes", 3, "evidence", to="hearsay"))
    spoil(model, at("nodes", 4, "evidence", to="name"))
    before = sidecar_path(model).read_bytes()
    refused = run(model, "--fix")
    assert (refused.exit_code, sidecar_path(model).read_bytes()) == (2, before)
    assert "name the one to trust with --fix-from embedded" in refused.stderr


@pytest.mark.parametrize("change", [at("new", to=1), at("nodes", 0, "new", to=1)])
def test_keys_of_a_newer_version_are_not_dropped(model: Path, change: Callable[[Any], None]) -> None:
    spoil(model, change)
    assert run(model, "--fix").exit_code == 0  # nothing is stale
    spoil(model, at("summary", "nodes", to=8))
    before = sidecar_path(model).read_bytes()
    for options in (["--fix"], ["--fix-from", "sidecar"]):
        refused = run(model, *options)
        assert refused.exit_code == 2
        assert ".new" in refused.stderr
    assert sidecar_path(model).read_bytes() == before


@pytest.mark.parametrize("owner", [lambda m: m, lambda m: m.graph.node[2]])
def test_keys_of_a_newer_version_inside_are_not_dropped(model: Path, owner: Callable[[Any], Any]) -> None:
    spoil_metadata(model, lambda m: set_entry(owner(m), "hieronnx.new", "1"))
    findings = hieronnx.validate(model)
    assert [(item.severity, item.check, item.place) for item in findings] == [
        ("warning", "metadata-keys", "metadata: hieronnx.new")
    ]
    spoil_metadata(model, lambda m: set_entry(m.graph.node[4], "hieronnx.tag", "/Net"))
    spoil(model, at("summary", "nodes", to=8))
    before = sidecar_path(model).read_bytes(), model.read_bytes()
    refused = run(model, "--fix")
    assert refused.exit_code == 2
    assert "hieronnx.new" in refused.stderr
    assert (sidecar_path(model).read_bytes(), model.read_bytes()) == before


def test_a_tag_inside_that_is_not_its_calls_is_written_anew(model: Path, plain: Path) -> None:
    whole = model.read_bytes()
    for sidecar in (True, False):
        spoil_metadata(model, lambda m: set_entry(m.graph.node[4], "hieronnx.tag", "/Net"))
        if not sidecar:
            sidecar_path(model).unlink()
        assert run(model, "--fix", "--strict").exit_code == 0
        assert model.read_bytes() == whole
    assert_same_as_baseline(model, plain)


def test_scopes_that_a_tool_dropped_are_written_from_a_sidecar_of_this_file_alone(model: Path) -> None:
    whole = model.read_bytes()

    def change(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            del node.metadata_props[:]

    spoil_metadata(model, change)
    assert run(model, "--fix", "--strict").exit_code == 0
    assert model.read_bytes() == whole
    spoil_metadata(model, change)
    sidecar_path(model).unlink()
    result = run(model, "--fix")
    assert result.exit_code == 1
    assert "fixed" not in result.output
    assert not sidecar_path(model).exists()


def test_nothing_is_written_where_nothing_is_wrong(model: Path) -> None:
    before = sidecar_path(model).stat().st_mtime_ns, model.stat().st_mtime_ns
    assert run(model, "--fix").output.splitlines()[-1] == "nothing wrong"
    assert (sidecar_path(model).stat().st_mtime_ns, model.stat().st_mtime_ns) == before


def test_python_fixes_as_the_command_does(model: Path) -> None:
    sidecar_path(model).unlink()
    result = hieronnx.validate(model, fix=True, strict=True)
    assert result.passed
    assert result.fixed == ("wrote model_hierarchy.json from the metadata inside the model; parameters stay unknown",)
    assert hieronnx.validate(model, fix=True).fixed == ()
    spoil(model, at("nodes", 4, "evidence", to="name"))
    assert hieronnx.validate(model, fix_from="embedded").passed
    with pytest.raises(hieronnx.HieronnxError, match="only a file can be fixed"):
        hieronnx.validate(onnx.load(model), fix=True)
    with pytest.raises(hieronnx.HieronnxError, match="no form of a hierarchy 'memory'; choose one of"):
        hieronnx.validate(model, fix_from="memory")
