"""What validate finds in a graph: scopes that its dataflow forbids, and what is no good ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, Call, CallId, Initializer, Module, Node
from support.layered import (
    at,
    make_hierarchy,
    make_model,
    rescope,
    spoil,
    spoil_metadata,
    write,
    write_layered,
)
from support.onnxdata import BODIES, FUNCTIONS, walk, weights_elsewhere


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_layered(tmp_path / "model.onnx")


def found(model: Path, **options: Any) -> list[tuple[str, str]]:
    """Return severity and check of what is found."""
    return [(item.severity, item.check) for item in hieronnx.validate(model, **options)]


# -- scopes and dataflow ------------------------------------------------------------------------------------------


LAYER = [CallId(f"layers.{number}", 0) for number in range(3)]


def test_nodes_of_two_layers_that_are_swapped_are_found(tmp_path: Path) -> None:
    wrong = rescope(make_hierarchy(), {"t0_1": LAYER[2], "t2_1": LAYER[0]})
    findings = hieronnx.validate(write(tmp_path / "model.onnx", make_model(), wrong))
    (layers,) = [item for item in findings if item.check == "layers"]
    assert (layers.severity, layers.place) == ("error", "root call")
    assert "Add 'add0_1' of 'layers.2' feeds Add 'add0_2' of 'layers.0'" in layers.message


def test_a_call_that_is_left_and_entered_again_is_found(tmp_path: Path) -> None:
    wrong = rescope(make_hierarchy(), {"t1_1": ROOT})
    findings = hieronnx.validate(write(tmp_path / "model.onnx", make_model(), wrong))
    assert [item.check for item in findings] == ["layers"]
    assert "'layers.1'" in findings.findings[0].message


@pytest.mark.parametrize("changes", [{"origins": (LAYER[0], LAYER[1])}, {"evidence": "root"}])
def test_nodes_that_claim_no_single_call_break_no_layer(tmp_path: Path, changes: dict[str, Any]) -> None:
    hierarchy = rescope(make_hierarchy(), {"t0_1": ROOT}, **changes)
    thresholds = {"mathematical": 50.0}
    assert found(write(tmp_path / "model.onnx", make_model(), hierarchy), thresholds=thresholds) == []


def test_a_node_at_the_border_may_be_of_either_layer(tmp_path: Path) -> None:
    model = make_model()
    model.graph.node[3].input[1] = "layers.0.weight"
    hierarchy = rescope(make_hierarchy(), {"t1_0": LAYER[0]})
    assert found(write(tmp_path / "model.onnx", model, hierarchy)) == []


def test_a_parameter_that_another_module_reads_is_found(tmp_path: Path) -> None:
    wrong = rescope(make_hierarchy(), {"t1_0": LAYER[0]})
    (finding,) = hieronnx.validate(write(tmp_path / "model.onnx", make_model(), wrong))
    assert (finding.severity, finding.check, finding.place) == ("warning", "parameters", "node 'add1_0'")
    assert "runs in 'layers.0' and reads parameter 'layers.1.weight'" in finding.message
    assert "argument" in finding.remedy


def test_a_parameter_may_be_read_above_its_module_and_below(tmp_path: Path) -> None:
    modules = {
        "": Module("", "Net", "nets.Net", (), {}, ("a.w",), (), 1, ("a",), 0),
        "a": Module("a", "Outer", "nets.Outer", (), {}, ("w",), ("w",), 1, ("b",), 1),
        "a.b": Module("a.b", "Inner", "nets.Inner", (), {}, (), (), 0, (), 2),
    }
    scopes = [ROOT, CallId("a", 0), CallId("a.b", 0)]
    calls = [Call(s, p, s.module, t, True) for s, p, t in zip(scopes, [None, *scopes], TAGS, strict=False)]
    graph = onnx.parser.parse_graph(
        "main (float[1] x) => (float[1] z) <float[1] w = {1.0}> { y = Add(x, w) z = Mul(y, w) v = Sub(z, w) }"
    )
    order = [("y", "Add", scopes[1]), ("z", "Mul", scopes[2]), ("v", "Sub", ROOT)]
    nodes = [Node("", "", op, "", output, scope, (scope,), "captured") for output, op, scope in order]
    hierarchy = Hierarchy(modules, tuple(calls), tuple(nodes), (Initializer("w", "a.w", ()),))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert found(write(tmp_path / "model.onnx", model, hierarchy)) == []


TAGS = ("/Net", "/Net/Outer", "/Net/Outer/Inner")


@pytest.mark.parametrize(
    ("kind", "held", "checks"),
    [("Gate", ("a.m",), []), ("Gate", ("a.m", "b.m"), ["parameters"]), ("Other", ("a.m",), ["parameters"])],
    ids=["merged", "of its own", "of another class"],
)
def test_an_equal_buffer_may_be_that_of_another_module_of_the_class(
    kind: str, held: tuple[str, ...], checks: list[str], tmp_path: Path
) -> None:
    modules = {
        "": Module("", "Net", "nets.Net", (), {}, (), (), 0, ("a", "b"), 0),
        "a": Module("a", "Gate", "nets.Gate", (), {}, (), (), 0, (), 1),
        "b": Module("b", kind, f"nets.{kind}", (), {}, (), (), 0, (), 1),
    }
    scopes = [CallId("a", 0), CallId("b", 0)]
    calls = [Call(ROOT, None, "", "/Net", True)]
    calls += [Call(scope, ROOT, scope.module, f"/Net/Gate.{scope.module}", True) for scope in scopes]
    graph = onnx.parser.parse_graph(
        "main (float[1] x) => (float[1] z) <float[1] am = {1.0}, float[1] bm = {2.0}>"
        "{ w = Add(x, am) y = Add(w, am) z = Mul(y, bm) }"
    )
    order = [("w", "Add", scopes[0]), ("y", "Add", scopes[1]), ("z", "Mul", scopes[1])]
    nodes = [Node("", "", op, "", output, scope, (scope,), "captured") for output, op, scope in order]
    initializers = [Initializer(path.replace(".", ""), path, ()) for path in held]
    hierarchy = Hierarchy(modules, tuple(calls), tuple(nodes), tuple(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    findings = hieronnx.validate(write(tmp_path / "model.onnx", model, hierarchy))
    assert [item.check for item in findings if item.check == "parameters"] == checks


def branching(text: str, scopes: dict[tuple[str, str], str]) -> tuple[onnx.ModelProto, Hierarchy]:
    """Return a model with bodies or functions; the nodes named are in the calls `a` and `b`, the others at the root."""
    model = onnx.parser.parse_model(text)
    calls = [Call(ROOT, None, "", "/Net", True)]
    calls += [Call(CallId(path, 0), ROOT, path, f"/Net/{path.upper()}", True) for path in "ab"]
    modules = {p: Module(p, p.upper(), f"nets.{p.upper()}", (), {}, (), (), 0, (), 1) for p in "ab"}
    modules = {"": Module("", "Net", "nets.Net", (), {}, (), (), 0, ("a", "b"), 0), **modules}
    nodes = []
    for key, node in walk(model):
        scope = CallId(scopes.get((key, node.output[0]), ""), 0)
        nodes.append(Node(key, node.name, node.op_type, node.domain, node.output[0], scope, (scope,), "captured"))
    return model, Hierarchy(modules, tuple(calls), tuple(nodes))


def test_a_body_runs_within_the_call_of_its_node(tmp_path: Path) -> None:
    inside = {("", "z"): "a", ("z.body", "co"): "a", ("z.body", "so"): "b"}
    findings = hieronnx.validate(write(tmp_path / "model.onnx", *branching(BODIES, inside)))
    (finding,) = [item for item in findings if item.check == "enclosing-scope"]
    assert finding.place == "node 'so' in 'z.body'"
    assert "scope 'b' is not within 'a'" in finding.message


def test_a_function_runs_within_the_lowest_call_above_its_uses(tmp_path: Path) -> None:
    inside = {("", "h"): "a", ("local::twice", "y"): "b"}
    findings = hieronnx.validate(write(tmp_path / "model.onnx", *branching(FUNCTIONS, inside)))
    assert [item.place for item in findings if item.check == "enclosing-scope"] == ["node 'y' in 'local::twice'"]
    outside = {("local::twice", "y"): "b"}
    assert found(write(tmp_path / "fine.onnx", *branching(FUNCTIONS, outside))) == []


def test_data_that_a_loop_hands_in_and_out_keeps_its_order(tmp_path: Path) -> None:
    inside = {("", "a"): "a", ("z.body", "so"): "a"}
    findings = hieronnx.validate(write(tmp_path / "model.onnx", *branching(BODIES, inside)))
    assert {item.check for item in findings} == {"layers"}  # `so` needs `y` of the root, which needs `a`


# -- the ONNX file ------------------------------------------------------------------------------------------------


def test_a_graph_that_the_checker_refuses_fails(model: Path) -> None:
    spoil_metadata(model, lambda m: m.graph.node[4].input.append("nowhere"))
    finding = hieronnx.validate(model).findings[0]
    assert (finding.severity, finding.check, finding.place) == ("error", "onnx", "graph")
    assert "nowhere" in finding.message
    assert "\n" not in finding.message


def test_a_graph_that_cannot_be_read_is_a_finding(model: Path) -> None:
    def change(proto: onnx.ModelProto) -> None:
        proto.graph.initializer[0].ClearField("float_data")
        proto.graph.initializer[0].uint64_data.append(1)

    spoil_metadata(model, change)
    findings = hieronnx.validate(model)
    assert {(item.severity, item.check) for item in findings} == {("error", "onnx")}
    messages = " ".join(item.message for item in findings)
    assert f"the graph of '{model}' is not a sound model: initializer" in messages


def sparse_constant() -> onnx.ModelProto:
    """Return a model that the checker accepts and onnx-ir does not read."""
    one = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]), helper.make_tensor("i", TensorProto.INT64, [1], [0])
    sparse = helper.make_sparse_tensor(*one, [1])
    nodes = [helper.make_node("Constant", [], ["c"], sparse_value=sparse), helper.make_node("Add", ["x", "c"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_what_the_checker_accepts_need_not_be_mended_because_hieronnx_cannot_read_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(sparse_constant(), path)
    for model in (path, sparse_constant()):
        (finding,) = hieronnx.validate(model)
        assert (finding.severity, finding.check, finding.place) == ("error", "graph", "graph")
        assert finding.message.startswith("hieronnx cannot read the graph of ")
        assert "Sparse tensors are not supported" in finding.message
        assert "mend" not in finding.remedy


def large(size: int, **fields: Any) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size], **fields)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "main", values[:1], values[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(
    ("model", "broken"),
    [
        (large(20_000, raw_data=bytes(80_000)), False),
        (large(20_000, raw_data=bytes(79_996)), True),
        (large(20_000, float_data=[0.0] * 20_000), False),
        (large(20_000, float_data=[0.0] * 19_999), True),
        (large(20_000, raw_data=bytes(80_000), float_data=[0.0]), True),
        (large(20_000, int64_data=[0] * 20_000), True),
        (large(-1, raw_data=bytes(80_000)), True),
        (large(0, raw_data=bytes(80_000)), True),
    ],
)
def test_large_weights_are_judged_without_being_read(tmp_path: Path, model: onnx.ModelProto, broken: bool) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert (("error", "onnx") in found(path)) == broken
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError:
        assert broken
    else:
        assert not broken


def test_a_file_of_three_gigabytes_is_read_in_no_time(tmp_path: Path) -> None:
    """The weights are a hole in the file."""
    size = 750_000_000
    graph = large(size).graph
    weight = graph.initializer[0].SerializeToString() + b"\x4a" + varint(4 * size)  # raw_data
    del graph.initializer[:]
    head = graph.SerializeToString() + b"\x2a" + varint(len(weight) + 4 * size) + weight
    model = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 20)]).SerializeToString()
    path = tmp_path / "model.onnx"
    with open(path, "wb") as file:
        file.write(model + b"\x3a" + varint(len(head) + 4 * size) + head)
        file.truncate(file.tell() + 4 * size)
    assert found(path) == [("warning", "hierarchy")]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize(
    ("content", "entries", "expected"),
    [
        (None, {}, [("warning", "external-data")]),
        (bytes(8), {}, []),
        (bytes(16), {"offset": "8", "length": "8"}, []),
        (bytes(7), {}, [("error", "external-data")]),
        (bytes(16), {"offset": "12", "length": "8"}, [("error", "external-data")]),
        (bytes(16), {"length": "4"}, [("error", "external-data")]),
        (bytes(16), {"offset": "-8"}, [("error", "external-data"), ("error", "onnx")]),
        (bytes(16), {"offset": "much"}, [("error", "external-data"), ("error", "onnx")]),
        (bytes(16), {"location": "../weights.data"}, [("error", "external-data")]),
        (bytes(16), {"location": "/weights.data"}, [("error", "external-data")]),
        (bytes(16), {"location": "C:\\weights.data"}, [("error", "external-data")]),
        (bytes(16), {"location": "wei\x00ghts"}, [("warning", "external-data")]),
        (bytes(16), {"location": ""}, [("error", "onnx")] * 2),
    ],
)
def test_the_files_of_weights_are_looked_at_and_not_opened(
    tmp_path: Path, content: bytes | None, entries: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    model = weights_elsewhere()
    tensor = model.graph.initializer[0]
    for key, value in entries.items():
        kept = [entry for entry in tensor.external_data if entry.key != key]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if content is not None:
        (tmp_path / "weights.data").write_bytes(content)
        (tmp_path / "weights.data").chmod(0)
    assert [item for item in found(path) if item[1] != "hierarchy"] == expected


def test_weights_elsewhere_in_attributes_and_sparse_tensors_do_not_disturb_the_checker(tmp_path: Path) -> None:
    model = weights_elsewhere()
    outside = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["outside"], value=outside))
    values, indices = TensorProto(), TensorProto()
    values.CopyFrom(outside)
    indices.CopyFrom(outside)
    values.name, indices.data_type = "sparse", TensorProto.INT64
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [9]))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert found(path) == [("warning", "external-data"), ("warning", "hierarchy")]


def test_what_the_checker_would_print_is_a_finding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    model.graph.node[4].op_type = "ScaledTanh"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert found(path) == [("warning", "hierarchy"), ("warning", "onnx")]
    assert capfd.readouterr().out == ""


def test_an_operator_of_onnx_runtime_without_a_domain_is_a_warning_in_its_files_alone(tmp_path: Path) -> None:
    model = make_model()
    model.graph.node[4].op_type = "FusedSomehow"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert ("error", "onnx") in found(path)
    model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, path)
    assert found(path) == [("warning", "hierarchy"), ("warning", "onnx")]


def test_the_graph_is_compared_with_a_baseline(model: Path, tmp_path: Path) -> None:
    plain = write_layered(tmp_path / "plain.onnx", embed=False, sidecar=False)
    other = write_layered(tmp_path / "other.onnx", layers=4)
    assert found(model, baseline=plain) == []
    assert found(model, baseline=other) == [("error", "baseline")]
    spoil(model, at("calls", to=[]))
    assert ("error", "baseline") not in found(model, baseline=plain)
    with pytest.raises(HieronnxError, match="no ONNX file at"):
        hieronnx.validate(model, baseline=tmp_path / "none.onnx")
