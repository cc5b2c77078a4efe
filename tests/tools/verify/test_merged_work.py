"""Who is blamed where an optimizer made one node of the work of a call and of its caller."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import hieronnx
from support.exports import quiet

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def write(model: nn.Module, x: Tensor, path: Path, exporter: str) -> Path:
    with quiet():
        hieronnx.export(model.eval(), (x,), path, exporter=exporter)
    return path


def blame(path: Path, output: Path, sizes: tuple[int, ...]) -> list[str]:
    """Double the one weight of these sizes, and return the modules that are blamed."""
    model = onnx.load(path)
    (weight,) = (tensor for tensor in model.graph.initializer if tuple(tensor.dims) == sizes)
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(model, output)
    return [culprit.module for culprit in hieronnx.verify(output, path).culprits]


class Recurrent(nn.Module):
    """Turns what a recurrent layer returns; that layer's own Transpose and this one become one."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.conv = nn.LSTM(6, 5, batch_first=True), nn.Conv1d(5, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.rnn(x)[0].transpose(1, 2))


@BOTH
@pytest.mark.parametrize(("altered", "sizes"), [("rnn", (1, 20, 6)), ("conv", (3, 5, 1))])
def test_a_call_is_blamed_if_what_it_was_merged_with_only_moves_elements(
    exporter: str, altered: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path = write(Recurrent(), torch.randn(2, 9, 6), tmp_path / "model.onnx", exporter)
    assert blame(path, tmp_path / "faulty.onnx", sizes) == [altered]


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) @ self.weight


class Biased(nn.Module):
    """Adds its own bias to the product of its child, which makes a Gemm of both."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.bias, self.head = Product(), nn.Parameter(torch.randn(5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.child(x) + self.bias)


@BOTH
def test_a_caller_is_blamed_if_its_work_in_the_merged_node_may_be_wrong(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = write(Biased(), torch.randn(4, 6), tmp_path / "model.onnx", exporter)
    fused = hieronnx.optimize(path, output=tmp_path / "fused.onnx", tool="onnxslim").path
    merged = [node.op_type for node in hieronnx.load(fused).nodes if len(node.origins) > 1]
    assert merged == ["Gemm"]
    assert blame(fused, tmp_path / "faulty.onnx", (5,)) == [""]
