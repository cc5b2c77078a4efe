"""The check `boundaries` on tensors that tools wrote in another form: in blocks of channels, as matrices."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import hieronnx
from support.exports import exported, quiet


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.project = nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.project(self.pool(x)))


def test_what_is_read_in_blocks_was_returned_in_the_usual_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.SiLU()), Squeeze()).eval()
    with quiet():
        hieronnx.export(model, (torch.randn(1, 16, 16, 16),), tmp_path / "m.onnx", exporter="torchscript")
    hieronnx.optimize(tmp_path / "m.onnx", output=tmp_path / "fast.onnx", tool="ort-all")
    assert list(hieronnx.validate(tmp_path / "fast.onnx", strict=True)) == []


def test_what_is_read_as_a_matrix_was_returned_in_its_shape(tmp_path: Path) -> None:
    hieronnx.optimize(exported("electra", "dynamo").result.path, output=tmp_path / "simple.onnx", tool="onnxsim")
    assert list(hieronnx.validate(tmp_path / "simple.onnx", strict=True)) == []
