"""What the view tells of nodes and tensors: what is read, made, passed on; what depends on what is fed."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from hieronnx.graph.building import view_model
from hieronnx.graph.view import NO_TENSOR, View, ViewNode
from hieronnx.graph.walks import walk_attribute_tensors, walk_bodies, walk_protos

HEADER = '<ir_version: 10, opset_import: ["" : 21, "local" : 1, "com.microsoft" : 1]>'


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER} {text}")


def view_of(text: str) -> View:
    return view_model(ir.serde.deserialize_model(parse(text)))


def maker(view: View, name: str, graph: str = "") -> ViewNode:
    """Return the node that makes a tensor."""
    tensor = view.find_tensor(graph, name)
    assert tensor is not None
    index = view.producers[tensor]
    assert index is not None
    return view.nodes[index]


def names(view: View, tensors: tuple[int, ...] | list[int]) -> list[str]:
    return [view.names[tensor] for tensor in tensors]


BRANCH = """main (bool c, float[4] x) => (float[4] y) {
    k = Neg(x)
    y = If (c) <then_branch = yes () => (float[4] t) { t = Add(x, k) },
                else_branch = no () => (float[4] e) { e = Neg(x) }>
    z = Abs(x)
}"""


def test_a_node_reads_its_inputs_and_what_its_bodies_capture() -> None:
    view = view_of(BRANCH)
    assert names(view, maker(view, "y").reads) == ["c", "x", "k"]
    assert names(view, maker(view, "y").makes) == ["y"]


def test_what_is_left_out_is_neither_read_nor_made() -> None:
    view = view_of("""main (float[1,3,4] x, float[1,8,3] w, float[1,8,2] r) => (float[1,1,2] h) {
        , h = GRU <hidden_size = 2> (x, w, r, , , )
    }""")
    node = maker(view, "h")
    assert node.outputs[0] == NO_TENSOR in node.inputs
    assert (names(view, node.reads), names(view, node.makes)) == (["x", "w", "r"], ["h"])


@pytest.mark.parametrize(
    ("node", "passed"),
    [
        ("y = Identity(x)", True),
        ("y = Cast <to = 10> (x)", True),
        ("y = com.microsoft.DequantizeLinear(x, s)", True),
        ("y = Neg(x)", False),
        ("y = Transpose(x)", False),
    ],
)
def test_a_node_passes_on_what_it_changes_only_in_type_or_layout(node: str, passed: bool) -> None:
    view = view_of(f"main (float[4] x, float s) => (y) {{ {node} }}")
    assert maker(view, "y").passes_on == (view.find_tensor("", "x") if passed else None)


def test_attributes_are_read_by_name() -> None:
    view = view_of("""main (float[4,4] x) => (y) {
        a = Transpose <perm = [1, 0]> (x)
        b = Flatten <axis = 0> (a)
        y = LeakyRelu <alpha = 0.5> (b)
    }""")
    assert maker(view, "a").attribute("perm") == (1, 0)
    assert maker(view, "b").attribute("axis") == 0
    assert maker(view, "b").attribute("alpha") is None
    assert maker(view, "y").attribute("alpha") == ("FLOAT", "0.5")


def test_a_tensor_is_found_by_its_graph_and_name() -> None:
    view = view_of(BRANCH)
    inner = view.find_tensor("y.then_branch", "t")
    assert inner is not None
    assert view.tensor_key(inner) == ("y.then_branch", "t")
    assert view.find_tensor("", "t") is view.find_tensor("y.then_branch", "x") is view.find_tensor("", None) is None


def test_file_order_has_bodies_right_after_their_node() -> None:
    view = view_of(BRANCH)
    assert [view.node_key(index)[1] for index in view.file_order] == ["k", "y", "t", "e", "z"]
    assert [names(view, view.nodes[i].makes) for i in view.nodes_in[0]] == [["k"], ["y"], ["z"]]


# -- flow -------------------------------------------------------------------------------------------------


def flow_of(view: View, name: str, graph: str = "") -> str:
    """Return what a tensor depends on, in a word."""
    tensor, flow = view.find_tensor(graph, name), view.flow
    assert tensor is not None
    assert flow.is_data(tensor) == (not flow.literal[tensor] and not flow.size[tensor])
    kind = "literal" if flow.literal[tensor] else "size" if flow.size[tensor] else "data"
    return f"{kind}, constant" if flow.constant[tensor] and kind != "literal" else kind


def test_flow_tells_literals_sizes_and_data_apart() -> None:
    view = view_of("""main (float[n,4] x, int64[1] i) => (y) <float[4] w = {1, 2, 3, 4}> {
        one = Constant <value_int = 1> ()
        twice = Add(w, w)
        shape = Shape(x)
        n = Gather(shape, one)
        more = Mul(n, one)
        range = Range(one, more, one)
        mixed = Add(n, i)
        like = EyeLike(x)
        kept = CastLike(w, x)
        y = Add(x, twice)
    }""")
    expected = {"w": "literal", "one": "literal", "twice": "literal", "x": "data", "y": "data", "mixed": "data"}
    expected |= dict.fromkeys(("shape", "n", "more"), "size, constant")
    expected |= dict.fromkeys(("range", "like", "kept"), "data, constant")
    assert {name: flow_of(view, name) for name in expected} == expected


def test_what_is_random_is_data_also_through_functions_and_bodies() -> None:
    view = view_of("""main (bool c) => (y) {
        r = RandomNormal <shape = [2]> ()
        f = local.outer()
        g = local.plain()
        y = If (c) <then_branch = yes () => (float[2] t) { t = RandomNormal <shape = [2]> () },
                    else_branch = no () => (float[2] e) { e = Constant <value_floats = [1.0, 2.0]> () }>
        yes2 = Constant <value_int = 1> ()
        b = If (yes2) <then_branch = yes () => (float[2] t) { t = local.outer() },
                       else_branch = no () => (float[2] e) { e = local.plain() }>
        p = If (yes2) <then_branch = yes () => (float[2] t) { t = local.plain() },
                       else_branch = no () => (float[2] e) { e = local.plain() }>
    }
    <domain: "local", opset_import: ["" : 21, "local" : 1]> outer () => (o) { o = local.inner() }
    <domain: "local", opset_import: ["" : 21]> inner () => (o) { o = RandomUniform <shape = [2]> () }
    <domain: "local", opset_import: ["" : 21]> plain () => (o) { o = Constant <value_floats = [1.0, 2.0]> () }
    """)
    assert {name: flow_of(view, name) for name in "rfgybp"} == {
        "r": "data",
        "f": "data",
        "g": "literal",
        "y": "data",
        "b": "data",
        "p": "literal",
    }
    assert flow_of(view, "o", "local::outer") == "data"
    assert flow_of(view, "o", "local::plain") == "literal"


# -- walks of protos --------------------------------------------------------------------------------------

NESTED = """main (bool c, float[2] x) => (y) {
    y = If (c) <then_branch = yes () => (float[2] t) {
                    t = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) },
                                else_branch = b () => (float[2] v) { v = Abs(x) }> },
                else_branch = no () => (float[2] e) { e = Constant <value_floats = [1.0, 2.0]> () }>
    z = If (c) <then_branch = yes () => (float[2] t) { t = Neg(x) }, else_branch = no () => (float[2] e) { e = Abs(x) }>
}
<domain: "local", opset_import: ["" : 21]> f (c, x) => (o) {
    o = If (c) <then_branch = yes () => (p) { p = Neg(x) }, else_branch = no () => (q) { q = Abs(x) }>
}
"""


def test_graphs_are_walked_in_the_order_of_the_file_with_the_keys_of_the_view() -> None:
    model = parse(NESTED)
    keys = [key for key, _ in walk_protos(model)]
    assert keys == [
        "",
        "y.then_branch",
        "y.then_branch/t.then_branch",
        "y.then_branch/t.else_branch",
        "y.else_branch",
        "z.then_branch",
        "z.else_branch",
        "local::f",
        "local::f/o.then_branch",
        "local::f/o.else_branch",
    ]
    assert sorted(keys) == sorted(graph.key for graph in view_of(NESTED).graphs)
    assert [key for key, _ in walk_bodies(model.graph)] == keys[:7]


def test_the_walk_yields_the_graphs_themselves() -> None:
    model = parse(NESTED)
    for _, graph in walk_protos(model):
        for node in graph.node:
            node.name = "seen"
    assert model.graph.node[0].attribute[0].g.node[0].attribute[0].g.node[0].name == "seen"
    assert model.functions[0].node[0].attribute[1].g.node[0].name == "seen"


def test_tensors_in_attributes_are_those_of_a_graphs_own_nodes() -> None:
    model = parse("""main (bool c) => (y) {
        a = Constant <value = float[2] {1, 2}> ()
        y = If (c) <then_branch = yes () => (float[3] t) { t = Constant <value = float[3] {1, 2, 3}> () },
                    else_branch = no () => (float[3] e) { e = Constant <value = float[3] {1, 2, 3}> () }>
    }""")
    assert [list(tensor.dims) for tensor in walk_attribute_tensors(model.graph)] == [[2]]
