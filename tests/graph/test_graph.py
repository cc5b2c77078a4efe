"""The view of a graph says what the file says: checked against the protobuf, read without onnx-ir."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import load_ir_model
from hieronnx.graph.building import view_model
from hieronnx.graph.view import NO_TENSOR, TensorType, View
from hieronnx.graph.walks import first_output, walk_nodes
from support.onnxdata import MADE, all_models, weights_elsewhere
from support.onnxdata import first_output as first_output_in_file
from support.onnxdata import walk as walk_file

MODELS = dict(all_models())


def view_of(name: str) -> View:
    return view_model(load_ir_model(onnx.ModelProto.FromString(MODELS[name])))


def names(view: View, tensors: Sequence[int]) -> list[str]:
    return ["" if tensor == NO_TENSOR else view.names[tensor] for tensor in tensors]


def node_of(view: View, output: str) -> int:
    """Return the node that makes the tensor of this name."""
    found = [index for index, node in enumerate(view.nodes) if output in names(view, node.outputs)]
    assert len(found) == 1
    return found[0]


def captures_in_file(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node's bodies use and do not make."""
    found: set[str] = set()
    for body in bodies_in_file(node):
        inside = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            found |= ({name for name in inner.input if name} | captures_in_file(inner)) - inside
            inside |= set(inner.output)
        found |= {value.name for value in body.output} - inside
    return found


def bodies_in_file(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []
        yield from attribute.graphs


@pytest.mark.parametrize("name", MODELS)
def test_the_view_has_the_nodes_of_the_file_in_its_order(name: str) -> None:
    view = view_of(name)
    proto = onnx.ModelProto.FromString(MODELS[name])
    order = view.file_order
    assert sorted(order) == list(range(len(view.nodes)))
    in_file = [
        (key, f"{node.domain}::{node.op_type}" if node.domain else node.op_type, node.name, list(node.output))
        for key, node in walk_file(proto)
    ]
    assert [
        (view.graphs[node.graph].key, node.op, node.name, names(view, node.outputs))
        for node in (view.nodes[index] for index in order)
    ] == in_file
    assert [view.node_key(index) for index in order] == [
        (key, first_output_in_file(node)) for key, node in walk_file(proto)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_a_node_reads_what_the_file_says(name: str) -> None:
    view = view_of(name)
    in_file = [node for _, node in walk_file(onnx.ModelProto.FromString(MODELS[name]))]
    for index, node in zip(view.file_order, in_file, strict=True):
        assert names(view, view.nodes[index].inputs) == list(node.input)


@pytest.mark.parametrize("name", MODELS)
def test_captures_are_what_the_bodies_use_from_outside(name: str) -> None:
    view = view_of(name)
    in_file = [node for _, node in walk_file(onnx.ModelProto.FromString(MODELS[name]))]
    for index, node in zip(view.file_order, in_file, strict=True):
        captures = view.nodes[index].captures
        assert len(set(captures)) == len(captures)
        assert set(names(view, captures)) == captures_in_file(node)
        assert [t for t in view.nodes[index].inputs if t != NO_TENSOR] + list(captures) == list(view.nodes[index].reads)


@pytest.mark.parametrize("name", MODELS)
def test_consumers_and_producers_say_the_same_as_the_nodes(name: str) -> None:
    view = view_of(name)
    readers: dict[int, list[int]] = defaultdict(list)
    makers: dict[int, int] = {}
    for index, node in enumerate(view.nodes):
        for tensor in node.inputs:
            if tensor != NO_TENSOR:
                readers[tensor].append(index)
        for tensor in node.outputs:
            if tensor != NO_TENSOR:
                assert tensor not in makers
                makers[tensor] = index
    assert view.consumers == [readers[tensor] for tensor in range(len(view.names))]
    assert view.producers == [makers.get(tensor) for tensor in range(len(view.names))]


@pytest.mark.parametrize("name", MODELS)
def test_a_node_comes_after_all_that_it_reads(name: str) -> None:
    view = view_of(name)
    for index, node in enumerate(view.nodes):
        assert all((producer := view.producers[t]) is None or producer < index for t in view.nodes[index].reads)
        for body in node.bodies:
            assert view.graphs[body].owner == index
            assert all(inner < index for inner, other in enumerate(view.nodes) if other.graph == body)


@pytest.mark.parametrize("name", MODELS)
def test_initializers_inputs_and_outputs_are_those_of_the_main_graph(name: str) -> None:
    view, graph = view_of(name), onnx.ModelProto.FromString(MODELS[name]).graph
    main = view.graphs[0]
    assert (main.key, main.label, main.owner) == ("", "", None)
    assert names(view, main.inputs) == [value.name for value in graph.input]
    assert names(view, main.outputs) == [value.name for value in graph.output]
    held = [view.names[tensor] for tensor in view.constants if view.tensor_graphs[tensor] == 0]
    assert sorted(held) == sorted(tensor.name for tensor in graph.initializer)


def test_visit_is_called_for_each_node_in_the_order_of_their_numbers() -> None:
    seen: list[tuple[int, str]] = []
    view = view_model(load_ir_model(MADE["bodies"]()), lambda index, node: seen.append((index, first_output(node))))
    assert seen == [(index, view.node_key(index)[1]) for index in range(len(view.nodes))]


def test_the_bodies_of_a_model_as_the_view_has_them() -> None:
    view = view_of("bodies")
    graphs = {graph.key: graph for graph in view.graphs}
    assert list(graphs) == [
        "",
        "y.then_branch",
        "y.then_branch/t.then_branch",
        "y.then_branch/t.else_branch",
        "y.else_branch",
        "z.body",
    ]
    owners = {
        key: None if graph.owner is None else view.names[view.nodes[graph.owner].outputs[0]]
        for key, graph in graphs.items()
    }
    assert list(owners.values()) == [None, "y", "t", "t", "y", "z"]
    assert graphs["y.then_branch/t.else_branch"].label == "else_branch"
    assert names(view, graphs["z.body"].inputs) == ["i", "ci", "s"]
    assert names(view, graphs["z.body"].outputs) == ["co", "so"]
    order = [view.node_key(index)[1] for index in view.file_order]
    assert order == ["a", "y", "t1", "t", "p", "q", "e", "z", "co", "so"]


def test_a_captured_tensor_is_the_same_tensor_inside_and_outside() -> None:
    view = view_of("bodies")
    made = view.nodes[node_of(view, "a")].outputs[0]
    readers = [view.node_key(index)[1] for index in view.consumers[made]]
    assert readers == ["t1", "e", "z"]  # in two bodies, and the Loop that takes it as an input
    assert made in view.nodes[node_of(view, "y")].captures
    assert view.tensor_graphs[made] == 0


def test_tensors_of_the_same_name_in_two_functions_are_two() -> None:
    view = view_of("functions")
    assert [graph.key for graph in view.graphs if graph.owner is None] == [
        "",
        "local::twice",
        "local::choose",
        "local::twice:second",
    ]
    assert view.names.count("x") == 4
    assert {view.tensor_graphs[t] for t, name in enumerate(view.names) if name == "x"} == {
        number for number, graph in enumerate(view.graphs) if graph.owner is None
    }


def test_types_are_those_of_the_file() -> None:
    view = view_of("every_storage")
    types = dict(zip(view.names, view.types, strict=True))
    assert types["x"] == TensorType("FLOAT", (None, 2))
    assert types["raw"] == TensorType("FLOAT", (300,))
    assert types["k"] is None


def test_small_constants_are_equal_by_content_and_large_ones_by_name() -> None:
    def key(value: float, size: int, name: str) -> object:
        tensor = ir.tensor([value] * size, dtype=ir.DataType.FLOAT, name=name)
        initializer = ir.Value(name=name, const_value=tensor)
        view = view_model(ir.Model(ir.Graph([], [], nodes=[], initializers=[initializer]), ir_version=10))
        return next(iter(view.constants.values()))

    assert key(1.0, 4, "a") == key(1.0, 4, "b")
    assert key(1.0, 4, "a") != key(2.0, 4, "a")
    assert key(1.0, 4, "a") != key(1.0, 3, "a")
    assert key(1.0, 400, "a") != key(1.0, 400, "b")


def test_nodes_that_differ_in_an_attribute_have_different_keys() -> None:
    def key(text: str) -> object:
        model = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) {{ y = {text} }}'
        )
        return view_model(load_ir_model(model)).nodes[0].attributes

    assert key("Softmax <axis = 0> (x)") == key("Softmax <axis = 0> (x)")
    assert key("Softmax <axis = 0> (x)") != key("Softmax <axis = 1> (x)")
    assert key("Softmax <axis = 0> (x)") != key("Softmax (x)")
    assert key("Constant <value = float[2] {1, 2}> ()") != key("Constant <value = float[2] {1, 3}> ()")


@pytest.mark.parametrize("name", MODELS)
def test_the_walk_has_the_keys_of_the_view(name: str) -> None:
    model = load_ir_model(onnx.ModelProto.FromString(MODELS[name]))
    view = view_model(model)
    walked = [(key, first_output(node)) for key, node in walk_nodes(model)]
    assert walked == [view.node_key(index) for index in view.file_order]


# -- loading ----------------------------------------------------------------------------------------------------


def test_a_model_is_taken_as_a_path_a_proto_or_itself(tmp_path: Path) -> None:
    path, proto = tmp_path / "model.onnx", MADE["bodies"]()
    onnx.save(proto, path)
    model = load_ir_model(path)
    assert load_ir_model(model) is model
    for given in (model, load_ir_model(str(path)), load_ir_model(proto)):
        assert ir.serde.serialize_model(given) == ir.serde.serialize_model(model)


@pytest.mark.parametrize("size", [2, 1000])
def test_weights_in_another_file_are_left_there(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(weights_elsewhere(size), path)
    model = load_ir_model(path)
    assert isinstance(model.graph.initializers["outside"].const_value, ir.ExternalTensor)
    assert view_model(model).constants  # the other file does not even exist


def test_a_missing_file_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(HieronnxError, match=r"^no ONNX file at '.*none\.onnx'$"):
        load_ir_model(tmp_path / "none.onnx")
    with pytest.raises(HieronnxError, match=r"^no ONNX file at "):
        load_ir_model(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xff\xff not a model", b"This is not a model.\n" * 9, MODELS["bodies"][:-50]],
    ids=["garbage", "text", "truncated"],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(HieronnxError) as caught:
        load_ir_model(path)
    assert str(caught.value).startswith(f"'{path}' cannot be read as an ONNX model: ")
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    with pytest.raises(HieronnxError, match="cannot be read as an ONNX model"):
        load_ir_model(path)


def test_what_is_no_model_is_told_so() -> None:
    with pytest.raises(HieronnxError, match="the model is a int; give a path"):
        load_ir_model(3)  # type: ignore[arg-type]
