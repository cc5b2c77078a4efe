"""Extract: every module call of every zoo model against PyTorch and against the whole file; names, files, errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper, parser

import hieronnx
from callrecords import PartCheck, open_session
from exports import exported, quiet
from hieronnx._embedded import embed_in_nodes, embedded_model_metadata
from hieronnx._extract import Extractor, extract_all
from hieronnx.cli import cli
from hieronnx.graph import view_model
from hieronnx.hierarchy import ROOT, Call, CallId, Hierarchy, Module, Node
from hieronnx.wire import write_annotated
from onnxdata import bodies, functions
from zoo import CASES

EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]
# Of branches that are not taken, and inside vmap, eager PyTorch shows no tensors: these parts run beside their modules.
UNSEEN = {"cond", "nested_cond", "vectorized_map"}
every_export = pytest.mark.parametrize(("name", "exporter"), EXPORTS, ids=["-".join(pair) for pair in EXPORTS])


@cache
def check(name: str, exporter: str) -> PartCheck:
    case, found = CASES[name], exported(name, exporter)
    return PartCheck(found.result.path, found.model, case.args(), case.kwargs(), case.tolerance)


# -- every call of every model ----------------------------------------------------------------------------


@every_export
def test_every_part_gives_what_its_call_returned(
    name: str, exporter: str, record_property: Callable[[str, object], None]
) -> None:
    verdicts = check(name, exporter).check_all()
    for call, fate in verdicts.empty.items():
        record_property(f"no nodes: {call}", fate)
    record_property("equal", len(verdicts.equal))
    assert not verdicts.wrong
    assert not verdicts.unseen or name in UNSEEN
    assert len(verdicts.equal) + len(verdicts.empty) + len(verdicts.unseen) == len(
        exported(name, exporter).hierarchy.calls
    )


@every_export
def test_every_part_gives_what_its_siblings_read(name: str, exporter: str) -> None:
    assert check(name, exporter).find_misfits() == []


@every_export
def test_the_parts_of_a_call_compose_to_it(name: str, exporter: str) -> None:
    checked = check(name, exporter)
    for call in checked.composable():
        checked.compose(call)


@every_export
def test_a_call_without_nodes_is_told_truly(name: str, exporter: str) -> None:
    checked = check(name, exporter)
    for call in checked.extractor.hierarchy.calls:
        if checked.extractor.find(call.id) is None and "passes its input" in checked.extractor.describe_fate(call.id):
            record = checked.eager.calls[call.id]
            assert all(any(np.array_equal(a, b) for b in record.received) for a in record.returned), call.id


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_few_zoo_parts_differ_from_their_modules(exporter: str) -> None:
    """The exceptions that the check allows stay what they are: fused neighbours, and insides that others read."""
    names = ("bert", "t5", "llama_with_past", "resnet", "modernbert")
    bert, t5, past, resnet, split = (check(name, exporter).check_all() for name in names)
    assert not bert.fused
    assert not split.fused  # a Split of the parent's is no work of the child that reads it
    assert not bert.extra
    assert not past.fused
    assert all("norm" in call for call in t5.extra)  # a Cast that changes nothing, read behind by the residual
    assert all(call.endswith(("convolution", "normalization")) for call in resnet.fused)


# -- dynamic sizes ----------------------------------------------------------------------------------------


def export_dynamic(name: str, exporter: str, path: Path) -> None:
    case = CASES[name]
    kwargs = case.kwargs()
    axes = {argument: {0: "batch", 1: "sequence"} for argument in kwargs}
    options: dict[str, Any] = {"dynamic_axes": axes, "input_names": list(kwargs)}
    if exporter == "dynamo":
        options = {
            "dynamic_shapes": {key: dict.fromkeys(value, torch.export.Dim.DYNAMIC) for key, value in axes.items()}
        }
    with quiet():
        hieronnx.export(case.build(), (), kwargs, output=path, exporter=exporter, **options)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with one more row and one more column."""
    taller = torch.cat([tensor, tensor[:1]])
    return torch.cat([taller, taller[:, :1]], 1)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_parts_run_at_other_sizes_than_at_export(name: str, exporter: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export_dynamic(name, exporter, path)
    case = CASES[name]
    kwargs = {key: widen(value) for key, value in case.kwargs().items()}
    checked = PartCheck(path, case.build(), (), kwargs, case.tolerance)
    verdicts = checked.check_all()
    assert not verdicts.wrong
    assert checked.find_misfits() == []
    assert not verdicts.hoisted  # every size is that of an axis of an input


def test_a_size_of_the_parts_own_input_comes_along() -> None:
    model = annotated(
        """
        main (float[n, 4] x) => (float[n, 4] y)
        {
            s = Shape (x)
            h = Relu (x)
            k = Shape (h)
            z = ConstantOfShape (k)
            t = ConstantOfShape (s)
            a = Add (h, z)
            y = Add (a, t)
        }
        """,
        ["", "", "", "block", "block", "block", "block"],
    )
    part = hieronnx.extract(model, "block")
    assert part.external_inputs == ("h", "s")
    assert [item.name for item in part.hoisted] == ["s"]
    assert [node.output for node in part.brought_operations] == ["k"]


def test_a_size_is_taken_of_the_axis_of_the_same_name() -> None:
    model = annotated(
        """
        main (float[batch, 4] x, float[sequence] z) => (float[other, batch] y, float[other] w)
        <float[other, batch] h>
        {
            s = Shape <start: int = 0, end: int = 1> (x)
            r = Shape <start: int = -1> (z)
            h = Transpose (x)
            t = Expand (h, s)
            y = Relu (t)
            w = Expand (h, r)
        }
        """,
        ["", "", "", "block", "block", "other"],
    )
    part = hieronnx.extract(model, "block")
    assert (part.external_inputs, part.hoisted) == (("h",), ())
    size = part.model.graph.node[0]
    assert (size.op_type, list(size.input), list(size.output)) == ("Shape", ["h"], ["s"])
    assert {attribute.name: attribute.i for attribute in size.attribute} == {"start": 1, "end": 2}
    other = hieronnx.extract(model, "other")
    assert other.external_inputs == ("h", "r")
    assert [(item.name, item.producer and item.producer.op_type) for item in other.hoisted] == [("r", "Shape")]


# -- regions ----------------------------------------------------------------------------------------------


def annotated(text: str | onnx.ModelProto, scopes: list[str | tuple[str, ...]]) -> onnx.ModelProto:
    """Return a model with a hierarchy inside: a module path for each node, or several where it stands for several."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}') if isinstance(text, str) else text
    view = view_model(ir.serde.deserialize_model(model))
    calls = [tuple(CallId(path, 0) for path in ((found,) if isinstance(found, str) else found)) for found in scopes]
    nodes = []
    for index, origins in zip(view.file_order(), calls, strict=True):
        graph, output = view.node_key(index)
        nodes.append(
            Node(graph, view.nodes[index].name, view.nodes[index].op, "", output, origins[0], origins, "captured")
        )
    hierarchy = make_hierarchy({origin.module for origins in calls for origin in origins}, nodes)
    return embed(model, hierarchy)


def make_hierarchy(paths: set[str], nodes: list[Node]) -> Hierarchy:
    every = sorted({"", *paths, *(path.rpartition(".")[0] for path in paths)})
    modules = {
        path: Module(path, "Net", "nets.Net", (), {}, (), (), 0, (), path.count(".") + bool(path)) for path in every
    }
    calls = [Call(ROOT, None, "", "/Net", True)]
    for path in every[1:]:
        parent = CallId(path.rpartition(".")[0], 0)
        calls.append(Call(CallId(path, 0), parent, path, f"/Net/{path.replace('.', '/')}", True))
    return Hierarchy(modules, tuple(calls), tuple(nodes))


def embed(model: onnx.ModelProto, hierarchy: Hierarchy) -> onnx.ModelProto:
    from io import BytesIO

    stream = BytesIO()
    write_annotated(stream, model.SerializeToString(), embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
    return onnx.ModelProto.FromString(stream.getvalue())


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.output for node in nodes]


MASKED = annotated(
    """
    main (float[2] x, float[2] mask) => (float[2] y)
    {
        m = Neg (mask)
        a = Add (x, m)
        y = Mul (a, m)
    }
    """,
    [("first", "second"), "first", "second"],
)


def test_a_node_that_two_calls_share_comes_with_both() -> None:
    first, second = hieronnx.extract(MASKED, "first"), hieronnx.extract(MASKED, "second")
    assert names(first.operations) == ["m", "a"]
    assert names(second.operations) == ["m", "y"]
    assert (first.external_inputs, first.outputs) == (("mask", "x"), ("a",))
    assert (second.external_inputs, second.outputs) == (("mask", "a"), ("y",))
    assert names(second.shared_operations) == ["m"]
    assert second.hierarchy.nodes[0].origins == (ROOT,)


def test_constants_come_along_and_are_no_outputs() -> None:
    model = annotated(
        """
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            c = Constant <value = float[2] {1.0, 2.0}> ()
            d = Sqrt (c)
            a = Add (x, d)
            b = Mul (a, w)
            y = Add (b, c)
        }
        """,
        ["first", "first", "first", "second", "second"],
    )
    first, second = hieronnx.extract(model, "first"), hieronnx.extract(model, "second")
    assert (first.external_inputs, first.outputs) == (("x",), ("a",))
    assert (second.external_inputs, second.outputs) == (("a",), ("y",))
    assert names(second.brought_operations) == ["c"]
    assert second.initializers == ("w",)
    assert second.hierarchy.nodes[0].evidence == "dataflow"


def test_what_ran_between_a_calls_nodes_belongs_to_it() -> None:
    model = annotated(
        "main (float[2] x) => (float[2] y) { a = Relu (x)  b = Neg (a)  y = Exp (b) }", ["block", "", "block"]
    )
    part = hieronnx.extract(model, "block")
    assert (part.external_inputs, part.outputs) == (("x",), ("y",))
    assert part.internal_tensors == ("a", "b")
    assert names(part.boundary_operations) == ["a", "y"]


def test_random_numbers_are_drawn_outside() -> None:
    text = "main (float[2] x) => (float[2] y) { r = RandomNormal <shape = [2]> ()  y = Add (x, r) }"
    assert hieronnx.extract(annotated(text, ["", "block"]), "block").external_inputs == ("x", "r")


def body_model() -> onnx.ModelProto:
    """Return the model with If in If, and Loop; what the bodies do is done by other calls than what has them."""
    model = bodies()
    view = view_model(ir.serde.deserialize_model(model))
    keys = [view.node_key(index) for index in view.file_order()]
    scope = {
        "": "",
        "y.then_branch": "outer",
        "y.then_branch/t.then_branch": "outer.inner",
        "y.then_branch/t.else_branch": "outer.other",
        "y.else_branch": "last",
        "z.body": "step",
    }
    return annotated(model, [scope[graph] for graph, _ in keys])


@pytest.mark.parametrize(
    ("target", "inputs", "outputs", "operations"),
    [
        ("outer", ("a", "c", "x"), ("t",), ["t1", "t"]),
        ("outer.inner", ("t1",), ("p",), ["p"]),
        ("outer.other", ("t1", "x"), ("q",), ["q"]),
        ("last", ("a",), ("e",), ["e"]),
        ("step", ("ci", "s", "y"), ("co", "so"), ["co", "so"]),
    ],
)
def test_a_call_in_a_body_can_be_extracted(
    target: str, inputs: tuple[str, ...], outputs: tuple[str, ...], operations: list[str]
) -> None:
    part = hieronnx.extract(body_model(), target)
    assert (part.external_inputs, part.outputs) == (inputs, outputs)
    assert [node.output for node in part.operations if node.output in operations] == operations
    open_session(part.model)


def test_bodies_come_with_what_they_capture() -> None:
    part = hieronnx.extract(body_model(), "outer")
    assert part.initializers == ("w",)
    rng = np.random.default_rng(0)
    a, x = (rng.standard_normal(2).astype(np.float32) for _ in range(2))
    (given,) = open_session(part.model).run(None, {"a": a, "x": x, "c": np.array(False)})
    np.testing.assert_array_equal(given, a * np.array([1, 2], np.float32) - x)
    assert {node.graph for node in part.hierarchy.nodes} == {"", "t.then_branch", "t.else_branch"}


def test_functions_come_with_those_who_call_them() -> None:
    model = functions()
    view = view_model(ir.serde.deserialize_model(model))
    keys = [view.node_key(index) for index in view.file_order()]
    part = hieronnx.extract(annotated(model, ["twice" if key == ("", "h") else "" for key in keys]), "twice")
    assert [function.name for function in part.model.functions] == ["twice"]
    (given,) = open_session(part.model).run(None, {"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(given, [2, 4])
    assert [(node.graph, node.output) for node in part.hierarchy.nodes] == [("", "h"), ("local::twice", "y")]


def test_a_long_chain_is_cut_in_no_time() -> None:
    size = 10_000
    nodes = [helper.make_node("Relu", [f"t{n}"], [f"t{n + 1}"], name=f"n{n}") for n in range(size)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t0", f"t{size}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    for number in range(size):
        graph.value_info.append(helper.make_tensor_value_info(f"t{number + 1}", TensorProto.FLOAT, [2]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    extractor = Extractor(annotated(model, [f"layers.{n // 10}" for n in range(size)]))
    for number in (0, 500, 999):
        part = extractor.extract(extractor.hierarchy.call_by_id[CallId(f"layers.{number}", 0)])
        assert (part.external_inputs, part.outputs) == ((f"t{number * 10}",), (f"t{number * 10 + 10}",))


# -- the hierarchy of a part ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "exporter"), [("bert", "dynamo"), ("t5", "torchscript"), ("cond", "dynamo")])
def test_a_part_of_a_part_is_a_part_of_the_whole(name: str, exporter: str, tmp_path: Path) -> None:
    whole = Extractor(exported(name, exporter).result.path)
    for call in whole.hierarchy.calls:
        if call.parent != ROOT or whole.find(call.id) is None or call.id.number:
            continue
        outer = whole.extract(call, tmp_path / "outer.onnx")
        again = Extractor(tmp_path / "outer.onnx")
        assert again.hierarchy.nodes == outer.hierarchy.nodes
        for below in outer.hierarchy.calls:
            path = f"{call.id.module}.{below.id.module}" if below.id.module else call.id.module
            original = whole.hierarchy.call_by_id.get(CallId(path, below.id.number))
            if original is None or again.find(below.id) is None:
                continue
            first, second = whole.extract(original), again.extract(below)
            assert names(first.operations) == names(second.operations)
            assert set(first.external_inputs) == set(second.external_inputs)
            assert set(first.outputs) >= set(second.outputs)


def test_the_hierarchy_of_a_part_is_rooted_at_its_module(tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    part = hieronnx.extract(exported("bert", "dynamo").result.path, "encoder.layer.1", output=path)
    assert part.model == path
    found = hieronnx.load(path)
    assert found.calls == part.hierarchy.calls
    assert found.calls[0] == Call(ROOT, None, "", "/BertLayer", True)
    assert found.tags["/BertLayer/BertAttention/BertSelfAttention"] == "attention.self"
    assert found.modules[""].class_name == "BertLayer"
    assert found.model["class"] == "BertLayer"
    assert found.model["file"] == "layer.onnx"
    assert {held.parameter for held in found.initializers} >= {"attention.self.query.bias", "output.LayerNorm.weight"}
    (tmp_path / "layer_hierarchy.json").unlink()
    assert hieronnx.load(path).nodes == found.nodes


def test_a_module_from_elsewhere_keeps_its_name_in_a_part() -> None:
    path = exported("sibling_borrowed", "dynamo").result.path
    part = hieronnx.extract(path, "borrower")
    assert [str(call.id) for call in part.hierarchy.calls] == ["", "linear", "lender.block", "lender.block.linear"]
    shared = hieronnx.extract(exported("shared_under_two_parents", "dynamo").result.path, "right")
    assert [str(call.id) for call in shared.hierarchy.calls] == ["", "block", "block.linear"]
    assert [call.via for call in shared.hierarchy.calls] == ["", "block", "block.linear"]


def test_a_module_that_calls_itself_is_numbered_from_the_part_on() -> None:
    path = exported("recursive_child", "dynamo").result.path
    whole = hieronnx.load(path)
    inner = [
        call for call in whole.calls if call.id.number == 1 and call.parent and call.parent.module == call.id.module
    ]
    part = hieronnx.extract(path, str(inner[0].id))
    recursive = [call for call in part.hierarchy.calls if not call.id.module]
    assert [call.id.number for call in recursive] == list(range(len(recursive)))
    assert {call.via for call in recursive} == {""}
    assert len(recursive) == sum(call.id.module == inner[0].id.module for call in whole.calls) - 1


def test_later_calls_are_numbered_anew() -> None:
    path = exported("called_in_loop", "dynamo").result.path
    part = hieronnx.extract(path, "cell@2")
    assert (part.module, part.call, part.calls) == ("cell", 2, 3)
    assert [str(call.id) for call in part.hierarchy.calls] == ["", "linear"]
    assert hieronnx.extract(path, "cell").call == 0


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("bert", "dynamo"),
        ("bert", "torchscript"),
        ("llama", "dynamo"),
        ("cond", "dynamo"),
        ("scripted_loop", "torchscript"),
        ("conv_batch_norm_residual", "dynamo"),
    ],
)
def test_every_part_of_a_model_is_valid(name: str, exporter: str, tmp_path: Path) -> None:
    extractor = Extractor(exported(name, exporter).result.path)
    for call in extractor.hierarchy.calls:
        if extractor.find(call.id) is not None:
            extractor.extract(call, tmp_path / "part.onnx")
            assert list(hieronnx.validate(tmp_path / "part.onnx")) == []


# -- targets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("encoder.layer.1", "encoder.layer.1"),
        ("/BertModel/BertEncoder/BertLayer.1", "encoder.layer.1"),
        ("*/BertLayer.1", "encoder.layer.1"),
        ("*layer.1*", "encoder.layer.1"),
        ("*.1.attention.self.que?y", "encoder.layer.1.attention.self.query"),
        ("", ""),
        ("/BertModel", ""),
    ],
)
def test_a_target_is_a_path_a_tag_or_a_glob(target: str, found: str) -> None:
    assert hieronnx.extract(exported("bert", "dynamo").result.path, target).module == found


def test_all_matches_are_written_as_files_of_their_names(tmp_path: Path) -> None:
    path = exported("bert", "dynamo").result.path
    skipped: list[str] = []
    found = list(extract_all(path, "*.[01].output.*", tmp_path / "parts", skipped=skipped.append))
    assert [str(part.model.name) for part in found if isinstance(part.model, Path)] == [
        f"encoder.layer.{layer}.output.{name}.onnx" for layer in (0, 1) for name in ("dense", "LayerNorm")
    ]
    assert len(skipped) == 2
    assert "dropout" in skipped[0]


# -- weights and files ------------------------------------------------------------------------------------


def run_part(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return open_session(path).run(None, feeds)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_written_part_has_the_weights_that_it_needs_and_no_others(exporter: str, tmp_path: Path) -> None:
    whole = exported("bert", exporter).result.path
    path = tmp_path / "part.onnx"
    part = hieronnx.extract(whole, "pooler", output=path)
    held = hieronnx.extract(whole, "pooler")
    feeds = {
        name: np.random.default_rng(0).standard_normal((2, 8, 32)).astype(np.float32) for name in part.external_inputs
    }
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
        assert part.external_inputs == parts[0].external_inputs
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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.onnx", "part.onnx.data", "part_hierarchy.json"]


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


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["extract", "model.onnx", *args])


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
    assert (found["module"], found["call"], found["hoisted"]) == ("encoder.layer.1", 0, [])
    assert found["shared_operations"][0]["calls"] == [
        {"module": f"encoder.layer.{n}.attention.self", "call": 0} for n in (0, 1)
    ]
    assert [Path(file["path"]).name for file in found["files"]] == [
        "layer.onnx",
        "layer.onnx.data",
        "layer_hierarchy.json",
    ]
    every = json.loads(run("encoder.layer.*", "--all", "parts", "--json").stdout)
    assert [part["module"] for part in every["extracted"]] == ["encoder.layer.0", "encoder.layer.1"]


def test_other_commands_work_on_a_part(bert: Path) -> None:
    run("encoder.layer.1", "-o", "layer.onnx")
    result = CliRunner().invoke(cli, ["tree", "layer.onnx"])
    assert result.exit_code == 0
    assert "BertSelfAttention" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("encoder.layer.9", "-o", "x.onnx"), "no module call 'encoder.layer.9'; did you mean 'encoder.layer.1'"),
        (("/BertModel/BertPoler", "-o", "x.onnx"), "did you mean '/BertModel/BertPooler'"),
        (("%%%", "-o", "x.onnx"), "'hieronnx tree --all' lists all calls"),
        (("*.query", "-o", "x.onnx"), "matches 2 calls: encoder.layer.0.attention.self.query, encoder.layer.1"),
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
    assert "should be in 'model.onnx.data': No such file or directory" in result.stderr
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
    assert "outside the model's folder" in result.stderr


def test_a_file_without_hierarchy_says_how_to_get_one(bert: Path) -> None:
    onnx.save(bodies(), "model.onnx")
    result = run("pooler", "-o", "x.onnx")
    assert result.exit_code == 2
    assert "has no hierarchy" in result.stderr
    assert "hieronnx export" in result.stderr


def test_an_input_of_unknown_type_is_named() -> None:
    model = annotated("main (float[2] x) => (float[2] y) { h = Relu (x)  y = Neg (h) }", ["", "block"])
    model.opset_import.add(domain="odd", version=1)
    model.graph.node[0].domain = "odd"
    with pytest.raises(hieronnx.HieronnxError, match="the type of 'h', an input of the part"):
        hieronnx.extract(model, "block")
