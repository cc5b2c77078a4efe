"""Large models of random weights, made in a moment: a stack of transformer layers."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

# Layers, width, and words: BERT-base has 110 million parameters; the other is over 2 GB, so its weights are external.
SIZES = {"BERT-base-sized, 0.4 GB": (12, 768, 30_522), "external data, 2.7 GB": (24, 1536, 2_000)}


def prepare_files(path: str, layers: str, width: str, words: str) -> Callable[[], object]:
    """Return the making of a model with its hierarchy."""
    return lambda: make_stack(Path(path), int(layers), int(width), int(words))


def make_stack(path: Path, layers: int, width: int, words: int) -> None:
    """Write a stack of transformer layers with its hierarchy; layer n reads `h<n>` and makes `h<n+1>`."""
    from onnx import TensorProto, helper

    from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
    from hieronnx.files.splice import write_annotated

    weights = _Weights(path, external=12 * layers * width**2 * 4 > 2**31)
    nodes = [helper.make_node("Gather", [weights.add("words", words, width), "ids"], ["h0"], name="embed")]
    for layer in range(layers):
        nodes += _make_layer(f"layers.{layer}", f"h{layer}", f"h{layer + 1}", width, weights)
    ends = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info(f"h{layers}", TensorProto.FLOAT, ["batch", "sequence", width]),
    ]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], weights.tensors)
    for layer in range(layers):
        shape = ["batch", "sequence", width]
        graph.value_info.append(helper.make_tensor_value_info(f"h{layer}", TensorProto.FLOAT, shape))
    weights.close()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hierarchy = _make_hierarchy(model, layers)
    stream = BytesIO()
    write_annotated(stream, model.SerializeToString(), embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
    path.write_bytes(stream.getbuffer())


def _make_layer(name: str, x: str, y: str, width: int, weights: _Weights) -> list[onnx.NodeProto]:
    from onnx import helper

    def linear(source: str, target: str, rows: int, columns: int) -> list[onnx.NodeProto]:
        weight, bias = weights.add(f"{target}.weight", rows, columns), weights.add(f"{target}.bias", columns)
        product = helper.make_node("MatMul", [source, weight], [f"{target}.product"], name=f"{target}.MatMul")
        return [product, helper.make_node("Add", [f"{target}.product", bias], [target], name=f"{target}.Add")]

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=f"{output}.{op}", **attributes)

    query, key, value, mixed, inner, outer = (f"{name}.{part}" for part in ("q", "k", "v", "o", "up", "down"))
    return [
        *(n for target in (query, key, value) for n in linear(x, target, width, width)),
        node("Transpose", [key], f"{name}.kt", perm=[0, 2, 1]),
        node("MatMul", [query, f"{name}.kt"], f"{name}.scores"),
        node("Softmax", [f"{name}.scores"], f"{name}.shares"),
        node("MatMul", [f"{name}.shares", value], f"{name}.context"),
        *linear(f"{name}.context", mixed, width, width),
        node("Add", [x, mixed], f"{name}.middle"),
        *linear(f"{name}.middle", inner, width, 4 * width),
        node("Relu", [inner], f"{name}.relu"),
        *linear(f"{name}.relu", outer, 4 * width, width),
        node("Add", [f"{name}.middle", outer], y),
    ]


class _Weights:
    """Makes weights of random numbers, in memory or beside the model."""

    def __init__(self, path: Path, *, external: bool) -> None:
        import numpy as np

        self.tensors: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)
        self._file = path.with_name(f"{path.name}.data").open("wb") if external else None
        self._location = f"{path.name}.data"

    def add(self, name: str, *shape: int) -> str:
        import numpy as np
        import onnx

        array = self._random.random(shape, np.float32)
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
        if self._file is None:
            tensor.raw_data = array.tobytes()
        else:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            where = {"location": self._location, "offset": self._file.tell(), "length": array.nbytes}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            self._file.write(array)
        self.tensors.append(tensor)
        return name

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _make_hierarchy(model: onnx.ModelProto, layers: int) -> object:
    from hieronnx.hierarchy.hierarchy import Hierarchy
    from hieronnx.hierarchy.records import ROOT, Call, CallId, Module, Node

    paths = ["", *(f"layers.{layer}" for layer in range(layers))]
    modules = {path: Module(path, "Net", "nets.Net", (), {}, (), (), 0, (), path.count(".") + 1) for path in paths}
    calls = [Call(ROOT, None, "", "/Net", True)]
    calls += [Call(CallId(path, 0), ROOT, path, f"/Net/Net.{path[7:]}", True) for path in paths[1:]]
    nodes, layer = [], -1
    for node in model.graph.node:
        scope = CallId(f"layers.{max(layer, 0)}", 0) if layer >= 0 else ROOT
        nodes.append(Node("", node.name, node.op_type, "", node.output[0], scope, (scope,), "captured"))
        layer += node.output[0] == f"h{layer + 1}"
    return Hierarchy(modules, tuple(calls), tuple(nodes))
