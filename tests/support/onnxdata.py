"""ONNX models to read: those that ship with the onnx package, and small ones for what none of those has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data"
SHIPPED = sorted(FOLDER.rglob("*.onnx"))
"""The files that the onnx package brings; none has a body or a function."""

BODIES = """
    <ir_version: 10, opset_import: ["" : 21]>
    main (float[2] x, bool c, int64 n) => (float[2] y, float[2] z)
    <float[2] w = {1.0, 2.0}>
    {
        a = Add (x, w)
        y = If (c) <
            then_branch = then_graph () => (float[2] t) {
                t1 = Mul (a, w)
                t = If (c) <
                    then_branch = inner_then () => (float[2] p) { p = Relu (t1) },
                    else_branch = inner_else () => (float[2] q) { q = Sub (t1, x) }
                >
            },
            else_branch = else_graph () => (float[2] e) { e = Neg (a) }
        >
        z = Loop (n, c, a) <
            body = loop_body (int64 i, bool ci, float[2] s) => (bool co, float[2] so) {
                co = Identity (ci)
                so = Add (s, y)
            }
        >
    }
"""

FUNCTIONS = """
    <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    main (float[2] x, bool c) => (float[2] y)
    {
        h = local.twice (x)
        y = local.choose (c, h)
    }
    <domain: "local", opset_import: ["" : 21]>
    twice (x) => (y) { y = Add (x, x) }
    <domain: "local", opset_import: ["" : 21]>
    choose (c, x) => (y)
    {
        y = If (c) <
            then_branch = then_graph () => (float[2] t) { t = Relu (x) },
            else_branch = else_graph () => (float[2] e) { e = Neg (x) }
        >
    }
"""


@cache
def made(name: str) -> bytes:
    """Return one of the models made here, serialized."""
    return MADE[name]().SerializeToString()


def bodies() -> onnx.ModelProto:
    """Return a model with If in If, and Loop; bodies capture tensors of one and of two levels above."""
    return parser.parse_model(BODIES)


def functions() -> onnx.ModelProto:
    """Return a model with two functions, one of which has bodies; one also in an overload."""
    model = parser.parse_model(FUNCTIONS)
    overload = model.functions.add()
    overload.CopyFrom(model.functions[0])
    overload.overload = "second"
    return model


def graph_lists() -> onnx.ModelProto:
    """Return a model with an operator of its own that has a list of graphs, and a sparse tensor."""
    graphs = [
        helper.make_graph(
            [helper.make_node("Add", ["x", "x"], [f"r{n}"], name=f"in_{n}")],
            f"body_{n}",
            [],
            [helper.make_tensor_value_info(f"r{n}", TensorProto.FLOAT, [2])],
        )
        for n in range(3)
    ]
    switch = helper.make_node("Switch", ["x"], ["y"], domain="odd", branches=graphs, scale=0.5)
    graph = helper.make_graph(
        [switch],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("odd", 1)])


def every_storage() -> onnx.ModelProto:
    """Return a model with an initializer in each field that holds elements, and with unused inputs and outputs."""
    kinds = [
        (TensorProto.FLOAT, [0.5, 1.5]),
        (TensorProto.INT32, [1, 2]),
        (TensorProto.STRING, [b"a", b"bc"]),
        (TensorProto.INT64, [1, 2]),
        (TensorProto.DOUBLE, [0.5, 1.5]),
        (TensorProto.UINT64, [1, 2]),
        (TensorProto.BFLOAT16, [0.5, 1.5]),
    ]
    initializers = [helper.make_tensor(f"w{kind}", kind, [2], values) for kind, values in kinds]
    initializers.append(numpy_helper.from_array(np.arange(300, dtype=np.float32), "raw"))
    graph = helper.make_graph(
        [
            helper.make_node("MaxPool", ["x"], ["", "indices"], kernel_shape=[1]),
            helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", TensorProto.FLOAT, [1], [3.0])),
            helper.make_node("Clip", ["x", "", "k"], ["y"]),
        ],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], doc_string="Straße")
    helper.set_model_props(model, {"author": "someone"})
    return model


def weights_elsewhere(size: int = 2) -> onnx.ModelProto:
    """Return a model with its weight in another file, which does not exist."""
    outside = TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[size])
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="weights.data")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "outside"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [outside],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


MADE = {
    "bodies": bodies,
    "functions": functions,
    "graph_lists": graph_lists,
    "every_storage": every_storage,
}


def all_models() -> Iterator[tuple[str, bytes]]:
    """Yield every model, serialized, with its name."""
    for path in SHIPPED:
        yield str(path.relative_to(FOLDER)), path.read_bytes()
    for name in MADE:
        yield name, made(name)


def walk(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Yield every node with its graph's key, as docs/format.md defines it; bodies right after their node."""
    yield from _walk(model.graph.node, "")
    for function in model.functions:
        overload = f":{function.overload}" if function.overload else ""
        yield from _walk(function.node, f"{function.domain}::{function.name}{overload}")


def _walk(nodes: list[onnx.NodeProto], key: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    for node in nodes:
        yield key, node
        above = f"{key}/{first_output(node)}" if key else first_output(node)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _walk(attribute.g.node, f"{above}.{attribute.name}")
            for number, body in enumerate(attribute.graphs):
                yield from _walk(body.node, f"{above}.{attribute.name}.{number}")


def first_output(node: onnx.NodeProto) -> str:
    """Return the node's first output that has a name."""
    return next((name for name in node.output if name), "")
