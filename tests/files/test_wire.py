"""Metadata goes into a file, and a skeleton comes out of one, without a byte of anything else changing."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hieronnx.errors import HieronnxError
from hieronnx.files.splice import write_annotated
from hieronnx.files.wire import read_skeleton
from support.onnxdata import MADE, SHIPPED, all_models, first_output, made, walk, weights_elsewhere

MODELS = dict(all_models())
DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "raw_data", "double_data", "uint64_data")


def annotate(model: bytes, nodes: Mapping[tuple[str, str], Mapping[str, str]], **about: str) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(annotate_bytes(model, nodes, **about))


def annotate_bytes(model: bytes, nodes: Mapping[tuple[str, str], Mapping[str, str]], **about: str) -> bytes:
    stream = io.BytesIO()
    write_annotated(stream, model, nodes, {f"hieronnx.{key}": value for key, value in about.items()})
    return stream.getvalue()


def metadata_for(model: onnx.ModelProto, word: str = "tag") -> dict[tuple[str, str], dict[str, str]]:
    """Return different metadata for every node, not all of it in ASCII."""
    return {
        (graph, first_output(node)): {"hieronnx.tag": f"/{word}/{number}/ß", "hieronnx.module": graph}
        for number, (graph, node) in enumerate(walk(model))
    }


def found_metadata(model: onnx.ModelProto) -> dict[tuple[str, str], dict[str, str]]:
    return {
        (graph, first_output(node)): {entry.key: entry.value for entry in node.metadata_props}
        for graph, node in walk(model)
    }


def without_ours(model: onnx.ModelProto) -> onnx.ModelProto:
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    for holder in (stripped, *(node for _, node in walk(stripped))):
        kept = [entry for entry in holder.metadata_props if not entry.key.startswith("hieronnx.")]
        del holder.metadata_props[:]
        holder.metadata_props.extend(kept)
    return stripped


def test_there_are_models_with_bodies_functions_and_many_operators() -> None:
    assert len(SHIPPED) > 100
    assert len({node.op_type for model in MODELS.values() for _, node in walk(onnx.ModelProto.FromString(model))}) > 50
    graphs = {graph for name in MADE for graph, _ in walk(MADE[name]())}
    assert {"y.then_branch/t.else_branch", "z.body", "local::choose/y.else_branch", "y.branches.2"} <= graphs
    assert "local::twice:second" in graphs


@pytest.mark.parametrize("name", MODELS)
def test_only_the_metadata_differs_and_every_node_has_its_own(name: str) -> None:
    original = onnx.ModelProto.FromString(MODELS[name])
    metadata = metadata_for(original)
    annotated = annotate(MODELS[name], metadata, calls="[]", format_version="1.0")
    assert found_metadata(annotated) == metadata
    assert without_ours(annotated) == original
    props = {entry.key: entry.value for entry in annotated.metadata_props if entry.key.startswith("hieronnx.")}
    assert props == {"hieronnx.calls": "[]", "hieronnx.format_version": "1.0"}


@pytest.mark.parametrize("name", MODELS)
def test_without_metadata_the_meaning_of_every_byte_stays(name: str) -> None:
    assert annotate(MODELS[name], {}) == onnx.ModelProto.FromString(MODELS[name])


@pytest.mark.parametrize("name", MADE)
def test_annotating_twice_replaces_what_was_there(name: str) -> None:
    original = onnx.ModelProto.FromString(made(name))
    once = annotate_bytes(made(name), metadata_for(original, "first"), calls="[1]", gone="x")
    twice = annotate(once, metadata_for(original, "second"), calls="[2]")
    assert twice == annotate(made(name), metadata_for(original, "second"), calls="[2]")


def test_annotating_anew_with_less_leaves_nothing_of_the_old() -> None:
    once = annotate_bytes(made("bodies"), metadata_for(MADE["bodies"]()), calls="[1]")
    assert annotate(once, {}) == MADE["bodies"]()


def test_other_keys_are_kept_and_not_set_twice() -> None:
    model = MADE["bodies"]()
    model.graph.node[0].metadata_props.add(key="namespace", value="torch's own")
    model.graph.node[0].metadata_props.add(key="hieronnxlike", value="not ours")
    ours = {"hieronnx.tag": "/Net", "namespace": "ours"}
    annotated = annotate(model.SerializeToString(), {("", "a"): ours, ("", "y"): ours})
    found = found_metadata(annotated)
    assert found["", "a"] == {"namespace": "torch's own", "hieronnxlike": "not ours", "hieronnx.tag": "/Net"}
    assert [entry.key for entry in annotated.graph.node[0].metadata_props].count("namespace") == 1
    assert found["", "y"] == ours


def test_the_models_own_metadata_is_kept() -> None:
    annotated = annotate(annotate_bytes(made("every_storage"), {}, calls="[1]"), {}, calls="[2]")
    assert [(entry.key, entry.value) for entry in annotated.metadata_props] == [
        ("author", "someone"),
        ("hieronnx.calls", "[2]"),
    ]


def test_a_node_is_found_by_its_first_output_that_has_a_name() -> None:
    annotated = annotate(made("every_storage"), {("", "indices"): {"hieronnx.tag": "/Net"}})
    assert [bool(node.metadata_props) for node in annotated.graph.node] == [True, False, False]


def test_a_body_is_told_from_another_with_the_same_names() -> None:
    model = MADE["graph_lists"]()
    branches = next(attribute for attribute in model.graph.node[0].attribute if attribute.graphs)
    for body in branches.graphs:
        body.node[0].output[0] = body.output[0].name = "same"
    annotated = annotate(model.SerializeToString(), {("y.branches.1", "same"): {"hieronnx.tag": "/Net"}})
    assert {graph for graph, node in walk(annotated) if node.metadata_props} == {"y.branches.1"}


def test_a_mapped_file_is_annotated_like_bytes(tmp_path: Path) -> None:
    import mmap

    path = tmp_path / "model.onnx"
    path.write_bytes(made("bodies"))
    stream, metadata = io.BytesIO(), metadata_for(MADE["bodies"]())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        write_annotated(stream, mapped, metadata, {})
    assert stream.getvalue() == annotate_bytes(made("bodies"), metadata)


# -- skeletons --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_skeleton_is_the_model_without_the_contents_of_its_large_initializers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name])
    expected = onnx.ModelProto.FromString(MODELS[name])
    clear_large(expected)
    assert read_skeleton(path) == expected


def clear_large(model: onnx.ModelProto) -> None:
    for initializer in model.graph.initializer:
        if initializer.ByteSize() > 11_000:
            for field in DATA_FIELDS:
                initializer.ClearField(field)


@pytest.mark.parametrize("size", [1, 256, 100_000])
def test_a_skeleton_keeps_the_small_and_drops_the_large_in_whatever_field_they_are(size: int, tmp_path: Path) -> None:
    kinds = [onnx.TensorProto.FLOAT, onnx.TensorProto.INT8, onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE]
    tensors = [onnx.helper.make_tensor(f"w{kind}", kind, [size], [-1] * size) for kind in kinds]
    tensors.append(onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [size], [b"text"] * size))
    tensors.append(onnx.numpy_helper.from_array(np.ones(size, np.float32), "raw"))
    model = onnx.helper.make_model(onnx.helper.make_graph([], "main", [], [], tensors))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    found = read_skeleton(path)
    if size > 256:
        clear_large(model)
        assert path.stat().st_size > 100 * found.ByteSize()
    assert found == model


def test_a_skeleton_keeps_constants_in_nodes_and_where_external_data_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(made("every_storage"))
    assert read_skeleton(path).graph.node[1].attribute[0].t.float_data[:] == [3.0]
    onnx.save(weights_elsewhere(), path)
    assert read_skeleton(path) == weights_elsewhere()


def check_error(error: HieronnxError, *words: str) -> None:
    text = str(error)
    assert "\n" not in text
    assert all(word in text for word in words)


BAD = {
    "empty": b"",
    "text": b"This is not a model.\n" * 20,
    "html": b"<!DOCTYPE html><html></html>",
    "json": b'{"ir_version": 8}',
    "zip": b"PK\x03\x04\x14\x00\x00\x00\x08\x00",
    "zeros": bytes(64),
    "high bytes": b"\xff" * 64,
    "no graph": onnx.ModelProto(ir_version=8, producer_name="pytorch").SerializeToString(),
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_file_that_is_no_model_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(HieronnxError) as caught:
        read_skeleton(path)
    check_error(caught.value, str(path), "cannot be read as an ONNX model")
    path.unlink()  # nothing holds it


@pytest.mark.parametrize("name", MADE)
def test_a_truncated_file_is_refused_wherever_it_ends(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "cut.onnx", made(name)
    ends = top_level_ends(whole)
    for length in range(0, len(whole), max(1, len(whole) // 97)):
        path.write_bytes(whole[:length])
        if length in ends:
            continue  # a whole message, for all that protobuf can tell
        with pytest.raises(HieronnxError) as caught:
            read_skeleton(path)
        check_error(caught.value, str(path))
        with pytest.raises(HieronnxError) as caught:
            write_annotated(io.BytesIO(), whole[:length], {}, {})
        check_error(caught.value)


def top_level_ends(model: bytes) -> set[int]:
    """Return the lengths at which a model that is cut off ends with a whole field: only there a cut cannot be seen."""
    ends = set()
    for length in range(len(model)):
        try:
            onnx.ModelProto.FromString(model[:length])
        except Exception:
            continue
        ends.add(length)
    return ends


@given(st.binary(max_size=200))
def test_any_bytes_are_annotated_or_refused_never_worse(content: bytes) -> None:
    stream = io.BytesIO()
    try:
        write_annotated(stream, content, {}, {})
    except HieronnxError as error:
        check_error(error)


@given(st.sampled_from(sorted(MADE)), st.data())
def test_a_damaged_model_is_read_or_refused_never_worse(name: str, data: st.DataObject) -> None:
    damaged = bytearray(made(name))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        annotate_bytes(bytes(damaged), metadata_for(MADE[name]()))
    except HieronnxError as error:
        check_error(error)
