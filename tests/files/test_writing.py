"""Writing a model as it is, with another hierarchy: what changes, what does not, and what is refused."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from hieronnx import Hierarchy, HieronnxError, load
from hieronnx.files.opening import open_model, sidecar_path
from hieronnx.files.writing import write
from support.annotated import annotated
from support.onnxdata import bodies

LINEAR = """<ir_version: 10, opset_import: ["" : 21]>
    net (float[2,300] x) => (float[2,4] y) { h = MatMul(x, w)  y = Add(h, b) }"""


def linear() -> onnx.ModelProto:
    """Return a model with a large and a small weight, and metadata of another tool."""
    bare, rng = parser.parse_model(LINEAR), np.random.default_rng(0)
    for name, shape in (("w", (300, 4)), ("b", (4,))):
        held = numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        bare.graph.initializer.append(held)
    model = annotated(bare, ["a", "b"])
    model.graph.node[0].metadata_props.add(key="someone.else", value="stays")
    model.metadata_props.add(key="author", value="stays too")
    return model


def save(folder: Path, *, external: bool = False, per_tensor: bool = False) -> Path:
    path = folder / "in.onnx"
    location = None if per_tensor else "in.weights"
    onnx.save(
        linear(),
        path,
        save_as_external_data=external,
        all_tensors_to_one_file=not per_tensor,
        location=location,
        size_threshold=0,
    )
    return path


def moved_to(path: Path | onnx.ModelProto, module: str) -> Hierarchy:
    """Return the model's hierarchy with every node in one module."""
    found = open_model(path).hierarchy
    assert found is not None
    scope = next(call.id for call in found.calls if call.id.module == module)
    return replace(found, nodes=tuple(replace(node, scope=scope, origins=(scope,)) for node in found.nodes))


def without_ours(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    for holder in (model, *model.graph.node):
        kept = [entry for entry in holder.metadata_props if not entry.key.startswith("hieronnx.")]
        del holder.metadata_props[:]
        holder.metadata_props.extend(kept)
    return model


@pytest.mark.parametrize("external", [False, True])
def test_all_but_our_metadata_is_as_it_was(tmp_path: Path, external: bool) -> None:
    source, output = save(tmp_path, external=external), tmp_path / "out.onnx"
    write(source, moved_to(source, "b"), output)
    assert [node.scope.module for node in load(output).nodes] == ["b", "b"]
    assert without_ours(output) == without_ours(source)


def test_the_sidecar_tells_of_the_new_file(tmp_path: Path) -> None:
    source, output = save(tmp_path), tmp_path / "out.onnx"
    written = write(source, moved_to(source, "b"), output, exporter="somewhere")
    assert written.model["file"] == "out.onnx"
    assert written.model["exporter"] == "somewhere"
    assert load(output) == written


def test_external_data_is_copied_under_the_new_name(tmp_path: Path) -> None:
    source, output = save(tmp_path, external=True), tmp_path / "out.onnx"
    write(source, moved_to(source, "b"), output)
    assert (tmp_path / "out.onnx.data").read_bytes() == (tmp_path / "in.weights").read_bytes()
    (tmp_path / "in.weights").unlink()
    assert len(onnx.load(output).graph.initializer[0].raw_data) == 4800


def test_every_file_of_data_is_copied(tmp_path: Path) -> None:
    source, output = save(tmp_path, external=True, per_tensor=True), tmp_path / "out.onnx"
    write(source, moved_to(source, "b"), output)
    assert sorted(path.name for path in tmp_path.glob("out.onnx.data*")) == ["out.onnx.data", "out.onnx.data.1"]
    assert without_ours(output) == without_ours(source)


def test_data_inside_bodies_and_attributes_is_found(tmp_path: Path) -> None:
    model = annotated(bodies(), ["a"] * 10)
    then = next(a.g for a in model.graph.node[1].attribute if a.name == "then_branch")
    then.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "inner"))
    then.node[0].input[1] = "inner"
    outer = model.graph.initializer[0]
    outer.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    (tmp_path / "d").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    for position, tensor in enumerate((outer, then.initializer[0])):
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "d"), ("offset", str(8 * position)), ("length", "8")):
            tensor.external_data.add(key=key, value=value)
    source, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    source.write_bytes(model.SerializeToString())
    write(source, moved_to(source, "a"), output)
    (tmp_path / "d").unlink()
    read = ir.load(output)
    held = [read.graph.initializers["w"], read.graph.node(1).attributes["then_branch"].as_graph().initializers["inner"]]
    assert [list(value.const_value.numpy()) for value in held] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("external", [False, True])
def test_a_file_is_rewritten_in_place(tmp_path: Path, external: bool) -> None:
    source = save(tmp_path, external=external)
    before, mode = without_ours(source), source.stat().st_mode
    os.chmod(source, 0o640)
    write(source, moved_to(source, "b"), source)
    assert without_ours(source) == before
    assert source.stat().st_mode & 0o777 == 0o640 != mode & 0o777
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["in.onnx", "in_hierarchy.json", *(["in.weights"] if external else [])]
    )


def test_a_link_stays_one(tmp_path: Path) -> None:
    source, link = save(tmp_path), tmp_path / "link.onnx"
    link.symlink_to(source)
    write(source, moved_to(source, "b"), link)
    assert link.is_symlink()
    assert {node.scope.module for node in load(link).nodes} == {"b"}


def test_either_form_can_be_left_out(tmp_path: Path) -> None:
    source, output = save(tmp_path), tmp_path / "out.onnx"
    write(source, moved_to(source, "b"), output, sidecar=False)
    assert not sidecar_path(output).exists()
    assert load(output).nodes[0].scope.module == "b"
    write(source, moved_to(source, "b"), output, embed=False)
    assert b"hieronnx" not in output.read_bytes()
    assert load(output).nodes[0].scope.module == "b"


@pytest.mark.parametrize("form", ["proto", "ir"])
def test_a_model_in_memory_is_written(tmp_path: Path, form: str) -> None:
    model, output = linear(), tmp_path / "out.onnx"
    given = model if form == "proto" else ir.serde.deserialize_model(model)
    write(given, moved_to(model, "b"), output)
    assert {node.scope.module for node in load(output).nodes} == {"b"}


def test_a_temporary_model_gives_its_data_away(tmp_path: Path) -> None:
    source, output = save(tmp_path, external=True), tmp_path / "out.onnx"
    write(source, moved_to(source, "b"), output, temporary=True)
    assert (tmp_path / "out.onnx.data").is_file()
    assert not (tmp_path / "in.weights").exists()


def test_data_of_an_earlier_output_goes(tmp_path: Path) -> None:
    source, output = save(tmp_path, external=True, per_tensor=True), tmp_path / "out.onnx"
    write(source, moved_to(source, "b"), output)
    write(linear(), moved_to(source, "b"), output)
    assert list(tmp_path.glob("out.onnx.data*")) == []


@pytest.mark.parametrize("name", ["in.weights", "in.other"])
def test_what_the_model_is_made_of_is_not_overwritten(tmp_path: Path, name: str) -> None:
    source = save(tmp_path, external=True)
    sidecar_path(source).write_text("{}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        HieronnxError, match=r"would overwrite .*, which belongs to the model itself; give another name"
    ):
        write(source, moved_to(linear(), "b"), tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_data_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    source = save(tmp_path, external=True)
    (tmp_path / "out.onnx.data").write_text("mine")
    write(source, moved_to(source, "b"), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_text() == "mine"
    assert without_ours(tmp_path / "out.onnx").graph.initializer == without_ours(source).graph.initializer
    assert len(list(tmp_path.glob("out.*.onnx.data"))) == 1


def test_new_data_has_the_expected_name_wherever_that_is_free(tmp_path: Path) -> None:
    source, output = save(tmp_path, external=True), tmp_path / "out.onnx"
    names = []
    for _ in range(3):
        write(source, moved_to(source, "b"), output)
        (data,) = tmp_path.glob("out*.data")
        names.append(data.name)
    assert names[0] == names[2] == "out.onnx.data"
    assert names[1] != "out.onnx.data"


def test_data_that_another_model_has_stays(tmp_path: Path) -> None:
    source, output, copy = save(tmp_path, external=True), tmp_path / "out.onnx", tmp_path / "copy.onnx"
    write(source, moved_to(source, "b"), output)
    shutil.copy(output, copy)
    write(source, moved_to(source, "a"), output)
    assert onnx.load(copy).graph.initializer == onnx.load(output).graph.initializer


def test_a_sidecar_of_somebody_else_is_neither_overwritten_nor_deleted(tmp_path: Path) -> None:
    source, output = save(tmp_path), tmp_path / "out.onnx"
    sidecar_path(output).write_text('{"mine": true}')
    with pytest.raises(HieronnxError, match="is no hierarchy of hieronnx; move it"):
        write(source, moved_to(source, "b"), output, sidecar=False)
    assert sidecar_path(output).read_text() == '{"mine": true}'
    assert not output.exists()


def test_an_overwritten_file_keeps_its_mode(tmp_path: Path) -> None:
    source, output = save(tmp_path), tmp_path / "out.onnx"
    for path in (output, sidecar_path(output)):
        write(source, moved_to(source, "b"), output)
        path.chmod(0o640)
        write(source, moved_to(source, "b"), output)
        assert path.stat().st_mode & 0o777 == 0o640


def test_missing_data_is_named(tmp_path: Path) -> None:
    source = save(tmp_path, external=True)
    hierarchy = moved_to(source, "b")
    (tmp_path / "in.weights").unlink()
    with pytest.raises(HieronnxError, match=r"should be in '.*in.weights'; put the file there"):
        write(source, hierarchy, tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_data_of_a_model_in_memory_cannot_be_found(tmp_path: Path) -> None:
    source = save(tmp_path, external=True)
    model = onnx.load(source, load_external_data=False)
    with pytest.raises(HieronnxError, match="save it, and give the path instead"):
        write(model, moved_to(source, "b"), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_weights_have_a_name_that_onnx_takes(tmp_path: Path) -> None:
    save(tmp_path, external=True)
    path = tmp_path / "part.a..part.b.onnx"
    write(tmp_path / "in.onnx", open_model(tmp_path / "in.onnx").hierarchy, path)
    assert (tmp_path / "part.a.part.b.onnx.data").is_file()
    onnx.checker.check_model(path)
    write(path, open_model(path).hierarchy, path)
    onnx.checker.check_model(path)
