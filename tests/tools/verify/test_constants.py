"""Numbers that an exporter writes as Constants, in files of another format: their rounding is that of the format."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import hieronnx
from support.exports import quiet


class Turned(nn.Module):
    """Adds the sines of a table of angles, of which half precision has the large ones only roughly."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        rates = 1 / 10000 ** (torch.arange(0, 16.0) / 16)
        angles = torch.arange(48.0, 0.0, -1.0)[:, None] * rates
        return self.scale(x) + torch.sin(angles + x * 0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.turned, self.after = nn.Linear(16, 16), Turned(), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.turned(self.before(x)))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("constants") / "float.onnx"
    torch.manual_seed(0)
    with quiet():
        hieronnx.export(Model().eval(), (torch.randn(48, 16),), path, exporter="torchscript")
    return path


def find_table(model: onnx.ModelProto) -> onnx.TensorProto:
    tables = [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute]
    (table,) = [tensor for tensor in tables if list(tensor.dims) == [48, 16]]
    return table


def test_a_table_in_half_precision_is_no_fault(source: Path, tmp_path: Path) -> None:
    hieronnx.quantize(source, output=tmp_path / "half.onnx", tool="fp16")
    assert find_table(onnx.load(tmp_path / "half.onnx")).data_type == onnx.TensorProto.FLOAT16
    assert hieronnx.verify(tmp_path / "half.onnx", source).passed


def test_a_wrong_table_in_half_precision_is_blamed(source: Path, tmp_path: Path) -> None:
    hieronnx.quantize(source, output=tmp_path / "half.onnx", tool="fp16")
    model = onnx.load(tmp_path / "half.onnx")
    table = find_table(model)
    array = numpy_helper.to_array(table).copy()
    array[10] = array[11]
    table.CopyFrom(numpy_helper.from_array(array))
    onnx.save(model, tmp_path / "wrong.onnx")
    result = hieronnx.verify(tmp_path / "wrong.onnx", source)
    assert [culprit.module for culprit in result.culprits] == ["turned"]
