"""What stays in float while the rest is quantized: it reads its own weights, whatever tools make of them for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor, nn

import hieronnx
from hieronnx.graph.walks import walk_bodies
from hieronnx.tools.precision import own_weights
from support.annotated import annotated
from support.exports import quiet

TOOLS = ["dynamic", "static", "fp16", "int4"]


def read_weights(model: onnx.ModelProto, module: str) -> list[np.ndarray]:
    """Return the floats of the initializers that the nodes of a module read."""
    held = {tensor.name: tensor for _, graph in walk_bodies(model.graph) for tensor in graph.initializer}
    nodes = [node for _, graph in walk_bodies(model.graph) for node in graph.node]
    inside = [n for n in nodes if any(p.key == "hieronnx.module" and p.value == module for p in n.metadata_props)]
    names = dict.fromkeys(name for node in inside for name in node.input)
    arrays = (numpy_helper.to_array(held[name]) for name in names if name in held)
    return [array for array in arrays if array.size > 1 and array.dtype == np.float32]


@pytest.mark.parametrize("excluded", ["head", "words", "again"])
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_what_is_excluded_reads_its_own_floats(exporter: str, tool: str, excluded: str, tmp_path: Path) -> None:
    """Whatever name the tool gives to what it makes of a weight that others read, too."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.again, self.head = (
                nn.Embedding(400, 64),
                nn.Embedding(400, 64),
                nn.Linear(64, 400, bias=False),
            )
            self.again.weight = self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.relu(self.words(ids)) + self.again(ids + 1))

    model = Tied().eval()
    with quiet():
        hieronnx.export(model, (torch.arange(8)[None],), tmp_path / "tied.onnx", exporter=exporter)
    options: dict[str, Any] = {"random_calibration": 1} if tool == "static" else {}
    if tool == "int4":
        options = {"operators": ["MatMul", "Gather"]}
    result = hieronnx.quantize(
        tmp_path / "tied.onnx", output=tmp_path / "q.onnx", tool=tool, exclude=excluded, **options
    )
    made, weight = onnx.load(tmp_path / "q.onnx"), model.words.weight.detach().numpy()
    (read,) = [array for array in read_weights(made, excluded) if array.size == weight.size]
    assert read.tobytes() in (weight.tobytes(), weight.T.tobytes())
    assert result.precision.quantized
    floats = [t for t in made.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) == 2]
    assert len({tensor.SerializeToString() for tensor in floats}) == len(floats)
    assert {tensor.name for tensor in floats} <= {name for node in made.graph.node for name in node.input}
    onnx.checker.check_model(made)


@pytest.mark.parametrize("tool", ["dynamic", "static", "int4"])
def test_a_body_reads_its_own_floats_of_a_weight_that_is_quantized_outside(tool: str, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,16] x, int64[2] i, bool q)'
    text += " => (float[2,16] y, float[2,16] e) { e = Gather(w, i)  b = MatMul(x, w)"
    text += " y = If(q) <then_branch = t () => (float[2,16] m) { v = Transpose(w)  m = MatMul(b, v) },"
    text += " else_branch = f () => (float[2,16] n) { n = Neg(b) }> }"
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) / 4
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(annotated(model, ["l", "l", "l", "kept", "kept", "r"]), tmp_path / "in.onnx")
    options = {"tool": tool, "random_calibration": 1 if tool == "static" else 0, "exclude": "kept"}
    hieronnx.quantize(tmp_path / "in.onnx", output=tmp_path / "q.onnx", **options)
    (read,) = read_weights(onnx.load(tmp_path / "q.onnx"), "kept")
    assert read.tobytes() == weight.tobytes()


@pytest.mark.parametrize("tool", TOOLS)
def test_a_weight_that_comes_through_another_module_is_not_rounded(tool: str, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,16] x, int64[2] i)'
    text += " => (float[2,16] y, float[2,16] e) {"
    text += " e = Gather(w, i)  t = Transpose(w)  k = Constant <value = float[16] "
    text += (
        f"{{{','.join(str(0.1 + n / 3) for n in range(16))}}}> ()  a = MatMul(x, t)  s = Add(a, k)  y = Mul(s, k) }}"
    )
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(annotated(model, ["words", "other", "other", "kept", "kept", "other"]), tmp_path / "in.onnx")
    options = {"tool": tool, "random_calibration": 1 if tool == "static" else 0, "exclude": "kept"}
    hieronnx.quantize(tmp_path / "in.onnx", output=tmp_path / "q.onnx", **options)
    made = onnx.load(tmp_path / "q.onnx")
    makers = {name: node for node in made.graph.node for name in node.output}
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    product = next(node for node in made.graph.node if node.op_type == "MatMul")
    moved = makers[product.input[1]]
    assert moved.op_type == "Transpose"
    np.testing.assert_array_equal(held[moved.input[0]], weight)
    added = next(node for node in made.graph.node if node.op_type == "Add")
    (attribute,) = makers[added.input[1]].attribute
    assert attribute.t.data_type == TensorProto.FLOAT


def test_names_that_are_taken_are_not_given_again(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,16] x, int64[2] i)'
    text += " => (float[2,16] y, float[2,16] e, float[16,16] f, float[2,16] g) {"
    text += " e = Gather(w, i)  y = MatMul(x, w)  f = Add(w, w)  g = MatMul(x, w) }"
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    other = numpy_helper.from_array(weight[::-1].copy(), "w/float")
    model.graph.initializer.extend([numpy_helper.from_array(weight, "w"), other])
    model.graph.node[2].input[1] = "w/float"
    onnx.save(annotated(model, ["words", "kept", "other", "head"]), tmp_path / "in.onnx")
    hieronnx.quantize(tmp_path / "in.onnx", output=tmp_path / "q.onnx", tool="dynamic", exclude="kept")
    made = onnx.load(tmp_path / "q.onnx")
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    product = next(node for node in made.graph.node if node.op_type == "MatMul")
    np.testing.assert_array_equal(held[product.input[1]], weight)
    np.testing.assert_array_equal(held["w/float"], weight[::-1])
    names = [*held, *(name for node in made.graph.node for name in node.output)]
    assert len(set(names)) == len(names)


def test_a_weight_that_stays_in_float_for_all_is_there_once(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[16,16] x) => (float[16,16] y, float[16,16] z)'
    model = onnx.parser.parse_model(text + " { a = MatMul(x, u)  y = MatMul(a, w)  z = Add(x, w) }")
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(weight, name) for name in "uw")
    onnx.save(annotated(model, ["a", "kept", "b"]), tmp_path / "in.onnx")
    hieronnx.quantize(tmp_path / "in.onnx", output=tmp_path / "q.onnx", tool="dynamic", exclude="kept")
    floats = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if len(t.dims) == 2 and t.data_type == 1]
    assert [tensor.name for tensor in floats] == ["w"]


def test_a_weight_that_may_be_fed_has_no_copy(tmp_path: Path) -> None:
    """What is fed for it would not reach the copy."""
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2,2] x, float[2,2] w) => (float[2,2] y, float[2,2] z)'
    model = onnx.parser.parse_model(text + " { y = MatMul(x, w)  z = Add(x, w) }")
    for is_input in (True, False):
        if not is_input:
            del model.graph.input[1:]
        del model.graph.initializer[:]
        model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float32), "w"))
        onnx.save(model, tmp_path / "in.onnx")
        copies = own_weights.separate_weights(tmp_path / "in.onnx", lambda n: n.op_type == "MatMul", "float")
        assert copies == ({} if is_input else {"w/float": "w"})


def test_a_file_is_read_as_often_for_one_copy_as_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list_read, calls = own_weights._list_read, list[int]()
    monkeypatch.setattr(own_weights, "_list_read", lambda graphs: calls.append(1) or list_read(graphs))
    counts = []
    for number in (1, 20):
        text = '<ir_version: 10, opset_import: ["" : 21]> net (float[2] x, bool c) => (float[2] y0) {'
        for i in range(number):
            yes, no = (f"{at}{i} () => (float[2] {at}_{i}) {{ {at}_{i} = Mul(x, w{i}) }}" for at in ("yes", "no"))
            text += f" y{i} = Add(x, w{i})  z{i} = If (c) <then_branch = {yes}, else_branch = {no}>"
        model = onnx.parser.parse_model(text + "}")
        weights = (numpy_helper.from_array(np.ones(2, np.float32), f"w{i}") for i in range(number))
        model.graph.initializer.extend(weights)
        onnx.save(model, tmp_path / "in.onnx")
        copies = own_weights.separate_weights(tmp_path / "in.onnx", lambda n: n.op_type == "Mul", "float")
        calls.clear()
        own_weights.join_weights(tmp_path / "in.onnx", copies)
        counts.append(len(calls))
        assert len(copies) == len(onnx.load(tmp_path / "in.onnx").graph.initializer) == number
    assert counts[0] == counts[1]
