"""Extract at its edges: what is in the way, what was fused or borrowed, odd names, data and messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, parser

import hieronnx
import support.cli
from hieronnx.files.document import describe_file, encode_sidecar
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.records import ROOT, CallId, Initializer, Node
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.extract.find import explain_no_nodes
from support.annotated import annotated, make_hierarchy
from support.callrecords import open_session
from support.exports import exported

CHAIN = "main (float[2] x) => (float[2] y) { h = Relu (x)  y = Neg (h) }"


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of two nodes, in the folder that the commands run in."""
    monkeypatch.chdir(tmp_path)
    onnx.save(annotated(CHAIN, ["", "block"]), "model.onnx")
    return tmp_path


run = partial(support.cli.run, "extract", "model.onnx")


def refusal(*args: str) -> str:
    """Return the one line that a command ends with."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


# -- what is in the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["part.onnx", "part_hierarchy.json"])
def test_what_is_no_regular_file_is_not_replaced(chain: Path, name: str) -> None:
    os.mkfifo(chain / "pipe")
    (chain / name).symlink_to(chain / "pipe")
    before = sorted(chain.iterdir())
    assert f"'{name}' is in the way: it is a pipe, not a regular file" in refusal("block", "-o", "part.onnx")
    assert (chain / name).is_fifo()
    assert sorted(chain.iterdir()) == before


def test_a_folder_beside_the_output_is_told(chain: Path) -> None:
    (chain / "part_hierarchy.json").mkdir()
    assert "'part_hierarchy.json' is in the way: it is a folder" in refusal("block", "-o", "part.onnx")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_has_the_name_of_data_is_left_alone(make: Callable[[Path], None], tmp_path: Path) -> None:
    data = tmp_path / "part.onnx.data"
    make(data)
    hieronnx.extract(exported("bert", "dynamo").result.path, "pooler", output=tmp_path / "part.onnx")
    assert not data.is_file()
    open_session(tmp_path / "part.onnx")


def test_an_export_replaces_regular_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(hieronnx.HieronnxError, match="is a pipe, not a regular file"):
        hieronnx.export(torch.nn.ReLU(), (torch.ones(2),), output=tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").is_fifo()
    assert len(list(tmp_path.iterdir())) == 1


def test_names_that_no_file_can_have_are_told_in_one_line(chain: Path) -> None:
    assert "File name too long" in refusal("block", "-o", "z" * 300 + ".onnx")
    with pytest.raises(hieronnx.HieronnxError, match="has a NUL in it"):
        hieronnx.extract("model.onnx", "block", output="a\0b.onnx")
    assert [path.name for path in chain.iterdir()] == ["model.onnx"]


# -- nodes, inputs and outputs ----------------------------------------------------------------------------


def test_what_ran_in_another_branch_never_joins_a_part() -> None:
    model = annotated(
        """
        main (float[2] x) => (float[2] y)
        {
            a = Relu (x)
            b = Neg (a)
            c = Exp (b)
            d = Abs (a)
            y = Add (c, d)
        }
        """,
        ["one", "two", "", "", "one"],
    )
    part = hieronnx.extract(model, "one")
    assert [node.output for node in part.nodes] == ["a", "d", "y"]
    assert (part.input_names, part.output_names) == (("x", "c"), ("a", "y"))


def test_sizes_are_no_outputs_but_of_the_graph() -> None:
    text = """
        main (float[n, 2] x) => (float[n, 2] y, int64[2] k)
        {
            h = Relu (x)
            s = Shape (h)
            k = Shape (x)
            y = Reshape (h, s)
        }
        """
    part = hieronnx.extract(annotated(text, ["block", "block", "block", ""]), "block")
    assert part.output_names == ("h", "k")


def test_parts_compose_where_a_node_of_both_is_fused() -> None:
    model = annotated(
        """
        main (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y)
        <float[1, 1, 1, 1] w = {2.0}>
        {
            r = Relu (x)
            f = Conv (r, w)
            y = Relu (f)
        }
        """,
        ["a.relu", ("", "a.conv", "b.norm"), "b.relu"],
    )
    first, second = hieronnx.extract(model, "a"), hieronnx.extract(model, "b")
    assert (first.input_names, first.output_names) == (("x",), ("r", "f"))
    assert (second.input_names, second.output_names) == (("r",), ("y",))


def test_random_numbers_of_a_function_are_drawn_outside() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "l" : 1]>
        main (float[2] x) => (float[2] y) <float[2] r> { r = l.outer ()  y = Add (x, r) }
        <domain: "l", opset_import: ["" : 21, "l" : 1]> outer () => (b) { b = l.inner () }
        <domain: "l", opset_import: ["" : 21]> inner () => (a) { a = RandomNormal <shape = [2]> () }
        """)
    assert hieronnx.extract(annotated(model, ["", "block", "", ""]), "block").input_names == ("x", "r")


def test_the_whole_keeps_outputs_that_no_node_makes() -> None:
    text = """
        main (float[2] x, float[2] u) => (float[2] y, float[2] u, float[2] w)
        <float[2] w = {1.0, 2.0}> { y = Neg (x) }
        """
    part = hieronnx.extract(annotated(text, [""]), "")
    assert (part.input_names, part.output_names) == (("x", "u"), ("y", "u", "w"))
    assert part.initializers == ("w",)
    one = np.ones(2, np.float32)
    given = open_session(part.model).run(None, {"x": one, "u": one})
    np.testing.assert_array_equal(given, [-one, one, [1, 2]])


# -- names ------------------------------------------------------------------------------------------------


def test_relative_names_are_none_that_bodies_have() -> None:
    text = """
        main (float[2] x, bool c) => (float[2] y)
        <float[2] p = {1.0, 2.0}, float[2] q = {3.0, 4.0}>
        {
            h = Add (x, p)
            y = If (c) <then_branch = yes () => (float[2] z) { weight = Neg (h)  z = Add (weight, q) },
                        else_branch = no () => (float[2] o) { o = Neg (h) }>
        }
        """
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    for tensor, name in zip(model.graph.initializer, ("block.weight", "block.bias"), strict=True):
        tensor.name = name
    model.graph.node[0].input[1] = "block.weight"
    model.graph.node[1].attribute[0].g.node[1].input[1] = "block.bias"
    part = hieronnx.extract(annotated(model, ["block"] * 5), "block", relative_names=True)
    assert part.initializers == ("block.weight", "bias")
    one = np.ones(2, np.float32)
    (given,) = open_session(part.model).run(None, {"x": one, "c": np.array(True)})
    np.testing.assert_array_equal(given, [1, 1])


def test_only_parameters_get_relative_names(tmp_path: Path) -> None:
    text = """
        main (float[2] x) => (float[2] y)
        <float[2] p = {1.0, 2.0}, float[2] q = {3.0, 4.0}> { h = Add (x, p)  y = Add (h, q) }
        """
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    for node, tensor, name in zip(model.graph.node, model.graph.initializer, ("block.w", "block.made"), strict=True):
        tensor.name = node.input[1] = name
    block = CallId("block", 0)
    nodes = [Node("", "", "Add", "", output, block, (block,), "captured") for output in "hy"]
    held = (Initializer("block.w", "block.w", ()), Initializer("block.made", "block.w", (block,)))
    hierarchy = replace(make_hierarchy({"block"}, nodes), initializers=held)
    onnx.save(model, tmp_path / "model.onnx")
    described = replace(hierarchy, model=describe_file(tmp_path / "model.onnx", "Net", "dynamo"))
    view = view_model(ir.serde.deserialize_model(model))
    (tmp_path / "model_hierarchy.json").write_bytes(encode_sidecar(described, view))
    part = hieronnx.extract(tmp_path / "model.onnx", "block", relative_names=True)
    assert part.initializers == ("w", "block.made")


# -- data in other files ----------------------------------------------------------------------------------


def external(name: str, array: np.ndarray, **entries: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_data_inside_bodies_is_copied(tmp_path: Path) -> None:
    w = np.arange(4, dtype=np.float32)
    text = """
        main (float[4] x, bool c) => (float[4] y)
        {
            h = Relu (x)
            y = If (c) <then_branch = yes () => (float[4] p) { p = Add (h, v) },
                        else_branch = no () => (float[4] q) { q = Neg (h) }>
        }
        """
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    model.graph.node[1].attribute[0].g.initializer.append(external("v", w, location="v.data", offset=8, length=16))
    model = annotated(model, ["", "block", "block", "block"])
    (tmp_path / "v.data").write_bytes(bytes(8) + w.tobytes())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    other = tmp_path / "other"
    other.mkdir()
    written = hieronnx.extract(tmp_path / "model.onnx", "block", output=other / "part.onnx")
    held = hieronnx.extract(ir.load(tmp_path / "model.onnx"), "block")
    for part in (written.model, held.model):
        (given,) = open_session(part).run(None, {"h": np.ones(4, np.float32), "c": np.array(True)})
        np.testing.assert_array_equal(given, w + 1)
    assert list(hieronnx.validate(other / "part.onnx")) == []
    with pytest.raises(hieronnx.HieronnxError, match=r"v.data', which belongs to the model itself"):
        hieronnx.extract(tmp_path / "model.onnx", "block", output=tmp_path / "v.data")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "w.data", "length": 8}, "has 8 bytes of data where its type and shape need 16"),
        ({"location": "w.data", "length": 20}, "has 20 bytes of data where its type and shape need 16"),
        ({"location": "w.data", "offset": 16}, "'w.data' is too short: it has 24 bytes"),
        ({"location": "w.data", "offset": "abc"}, "its offset in 'w.data' is 'abc'"),
        ({"location": "w.data", "offset": -4}, "its offset in 'w.data' is '-4'"),
        ({"location": "folder"}, "of 'model.onnx' should be in 'folder', which is no regular file"),
        ({"location": ""}, "it is said to be in a file, and in none"),
        ({"location": "none.data"}, "of 'model.onnx' should be in 'none.data'; put the file there"),
    ],
)
def test_data_that_is_not_there_is_blamed_itself(chain: Path, entries: dict[str, object], message: str) -> None:
    w = np.arange(4, dtype=np.float32)
    (chain / "w.data").write_bytes(w.tobytes() + bytes(8))
    (chain / "folder").mkdir()
    text = "main (float[4] x) => (float[4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}> { h = Relu (x)  y = Add (h, w) }"
    model = annotated(text, ["", "block"])
    model.graph.initializer[0].CopyFrom(external("w", w, **entries))
    (chain / "model.onnx").write_bytes(model.SerializeToString())
    assert message in refusal("block", "-o", "part.onnx")


# -- the hierarchy of a part ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sibling_borrowed", "shared_under_two_parents", "recursive_child"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_part_with_modules_from_elsewhere_is_valid(name: str, exporter: str, tmp_path: Path) -> None:
    extractor = Extractor(exported(name, exporter).result.path)
    with_nodes = [call for call in extractor.hierarchy.calls if extractor.find(call.id) is not None]
    assert len(with_nodes) > 1
    for call in with_nodes:
        extractor.extract([call], tmp_path / "part.onnx")
        assert list(hieronnx.validate(tmp_path / "part.onnx")) == []


def test_a_borrowed_module_comes_with_what_it_lies_in() -> None:
    part = hieronnx.extract(exported("sibling_borrowed", "dynamo").result.path, "borrower")
    modules = part.hierarchy.modules
    assert modules[""].children == ("linear", "lender")
    assert (modules["lender"].children, modules["lender"].parameter_count) == (("block",), None)
    assert {held.parameter for held in part.hierarchy.initializers} == {
        f"{path}.{name}" for path in ("linear", "lender.block.linear") for name in ("weight", "bias")
    }


def without_nodes(evidence: str, count: int | None) -> str:
    """Return what is said of a call that no node belongs to."""
    node = Node("", "", "Neg", "", "y", ROOT, (ROOT,), evidence)
    hierarchy = make_hierarchy({"block"}, [node])
    modules = {path: replace(module, parameter_count=count) for path, module in hierarchy.modules.items()}
    return explain_no_nodes(replace(hierarchy, modules=modules), CallId("block", 0))


def test_of_a_call_without_nodes_nothing_is_said_that_is_not_known() -> None:
    assert "(Net) has no nodes in the file: it passes its input through, or" in without_nodes("captured", 0)
    assert "folded into a constant, or cancelled against a neighbour" in without_nodes("captured", 8)
    assert "whether it has parameters is not known" in without_nodes("captured", None)
    assert "passes its input" not in without_nodes("captured", None)
    assert "nothing was attributed" in without_nodes("root", 0)


# -- targets and messages ---------------------------------------------------------------------------------


def test_a_first_call_has_a_number_too(chain: Path) -> None:
    assert hieronnx.extract("model.onnx", "block@0").module == "block"
    assert "no call 'block@1': 'block' has one call" in refusal("block@1", "-o", "part.onnx")
    path = exported("called_in_loop", "dynamo").result.path
    with pytest.raises(hieronnx.HieronnxError, match="'cell' has 3 calls, the last is 'cell@2'"):
        hieronnx.extract(path, "cell@3")


def test_odd_names_reach_neither_the_terminal_nor_the_folder(chain: Path) -> None:
    onnx.save(annotated(CHAIN, ["", "b/l\nk\\\x1b[31m"]), "model.onnx")
    result = run("b*", "-o", "part.onnx")
    assert result.exit_code == 0
    assert "b/l\\nk\\\\x1b[31m" in result.stdout
    assert "\x1b" not in result.stdout
    assert run("b*", "--all", "parts").exit_code == 0
    assert sorted(path.name for path in (chain / "parts").iterdir()) == [
        "b~1l~xa~k~x5c~~x1b~[31m.onnx",
        "b~1l~xa~k~x5c~~x1b~[31m_hierarchy.json",
    ]


def test_the_root_among_all_has_a_name(chain: Path) -> None:
    assert "(root)" in run("/Net", "--all", "parts").stdout


def test_all_outputs_are_checked_before_the_first_is_written(chain: Path) -> None:
    onnx.save(annotated(CHAIN, ["aa", "model"]), "model.onnx")
    before = (chain / "model.onnx").read_bytes()
    assert "would overwrite 'model.onnx'" in refusal("[am]*", "--all", ".")
    assert [path.name for path in chain.iterdir()] == ["model.onnx"]
    assert (chain / "model.onnx").read_bytes() == before


def test_names_too_long_for_a_file_are_told_before_anything_is_written(chain: Path) -> None:
    onnx.save(annotated(CHAIN, ["a", "b" * 300]), "model.onnx")
    assert "File name too long" in refusal("[ab]*", "--all", "parts")
    assert not (chain / "parts").exists()


def test_an_unknown_exporter_is_left_out_of_the_heading(chain: Path) -> None:
    lines = run("block", "-o", "part.onnx").stdout.splitlines()
    assert any(line.strip().startswith("opset 21") for line in lines)


# -- files of earlier parts -------------------------------------------------------------------------------


def test_data_of_an_earlier_part_goes_with_it(tmp_path: Path) -> None:
    output = tmp_path / "part.onnx"
    hieronnx.extract(exported("bert", "dynamo").result.path, "pooler", output=output)
    assert (tmp_path / "part.onnx.data").exists()
    hieronnx.extract(exported("bert", "torchscript").result.path, "pooler", output=output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.onnx", "part_hierarchy.json"]


@pytest.mark.parametrize("there", [None, b"no model", b""])
def test_data_of_others_is_not_overwritten(tmp_path: Path, there: bytes | None) -> None:
    output, data = tmp_path / "part.onnx", tmp_path / "part.onnx.data"
    data.write_bytes(b"precious")
    if there is not None:
        output.write_bytes(there)
    for exporter in ("dynamo", "torchscript"):  # with a file of data, and without
        hieronnx.extract(exported("bert", exporter).result.path, "pooler", output=output)
        open_session(output)
    assert data.read_bytes() == b"precious"


def test_a_part_that_reads_a_sparse_initializer_is_refused_and_others_are_not() -> None:
    model = annotated("net (float[4] x) => (float[4] y) { p = Neg(x)  y = Add(p, s) }", ["a", "b"])
    values = onnx.numpy_helper.from_array(np.array([5], np.float32), "s")
    model.graph.sparse_initializer.append(
        onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array([1])), [4])
    )
    assert hieronnx.extract(model, "a").input_names == ("x",)
    with pytest.raises(hieronnx.HieronnxError, match=r"'s'.* is a sparse initializer.*make it dense"):
        hieronnx.extract(model, "b")
