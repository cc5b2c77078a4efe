"""A mask's number in a calibrated range: the advice that is given makes the file good again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn

import hieronnx
from support.exports import quiet


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.full((6, 6), torch.finfo(x.dtype).min).triu(1)
        return torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2) + hidden, -1) @ x


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attends, self.head = Attends(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attends(x))


def measure(path: Path, other: Path, x: np.ndarray) -> float:
    """Return by how many decibels the error of a file is below what another gives."""
    got, expected = (ort.InferenceSession(p).run(None, {"x": x})[0].astype(float) for p in (other, path))
    return float(10 * np.log10((expected**2).sum() / ((got - expected) ** 2).sum()))


def test_what_a_mask_does_to_a_range_is_told_with_what_mends_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 16)
    path, ruined, mended = (tmp_path / f"{name}.onnx" for name in ("float", "ruined", "mended"))
    with quiet():
        hieronnx.export(Masked().eval(), (x,), path, exporter="torchscript")
    (note,) = hieronnx.quantize(path, output=ruined, tool="static", calibration=[{"x": x.numpy()}]).notes
    assert "a mask's number" in note
    assert "it is read in 'attends'" in note
    advice = re.search("--exclude '(.*)'", note)
    assert advice is not None
    result = hieronnx.quantize(path, output=mended, tool="static", calibration=[{"x": x.numpy()}], exclude=advice[1])
    assert not result.notes
    assert measure(path, mended, x.numpy()) > measure(path, ruined, x.numpy()) + 10
