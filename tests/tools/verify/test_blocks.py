"""Who is suspected in a file that ONNX Runtime put into blocks of channels."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import hieronnx
from support.exports import quiet


class Excite(nn.Module):
    """Reads its argument twice: optimized, once in blocks of channels, and once as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.gate(nn.functional.adaptive_avg_pool2d(x, 1)))


class Excited(nn.Module):
    """What the first layer returns is in blocks alone; what the second one does, in both forms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.side = (nn.Conv2d(16, 16, 1) for _ in range(3))
        self.excite = Excite()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        return self.excite(self.down(x)), self.side(x)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize(("altered", "blamed"), [("first", ""), ("down", "down"), ("excite.gate", "excite")])
def test_a_call_that_reads_its_argument_in_blocks_is_not_judged_with_others_work(
    altered: str, blamed: str, exporter: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = Excited().eval(), torch.randn(2, 16, 6, 6)
    with quiet():
        hieronnx.export(model, (x,), tmp_path / "model.onnx", exporter=exporter)
    wrong = onnx.load(tmp_path / "model.onnx")
    (weight,) = (tensor for tensor in wrong.graph.initializer if tensor.name == f"{altered}.weight")
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    hieronnx.optimize(tmp_path / "wrong.onnx", output=tmp_path / "all.onnx", tool="ort-all")
    if "com.microsoft.nchwc" not in {node.domain for node in hieronnx.load(tmp_path / "all.onnx").nodes}:
        pytest.skip("ONNX Runtime uses no blocks on this processor")
    result = hieronnx.verify(tmp_path / "all.onnx", model, (x,))
    assert [culprit.module for culprit in result.culprits] == [blamed]
    verdicts = {call.module: call.verdict for call in result.calls}
    assert verdicts["excite"] == ("wrong" if blamed == "excite" else "right")
