"""Tensors that are equal on the inputs that a file is annotated with, and nowhere else: none is taken for another."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import hieronnx
from support.exports import quiet


class Pyramid(nn.Module):
    """Pools three times by one module: where the picture is smaller than what is pooled, that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.pool, self.after = nn.Conv2d(3, 8, 1), nn.MaxPool2d(5, 1, 2), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.before(x)
        second = self.pool(first)
        third = self.pool(second)
        return self.after(torch.cat((first, second, third, self.pool(third)), 1))


def test_a_pool_that_changes_nothing_here_is_no_copy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Pyramid().eval(), tmp_path / "plain.onnx"
    axes = {"x": {2: "height", 3: "width"}}
    with quiet():
        torch.onnx.export(model, (torch.randn(1, 3, 16, 16),), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    annotated = tmp_path / "annotated.onnx"
    hieronnx.annotate(path, model, torch.randn(1, 3, 3, 3), output=annotated)
    calls = {str(call.id): call for call in hieronnx.load(annotated).calls}
    pools = ["/pool/MaxPool_output_0", "/pool_1/MaxPool_output_0", "/pool_2/MaxPool_output_0"]
    for number, (made, call) in enumerate(zip(pools, ("pool", "pool@1", "pool@2"), strict=True)):
        ((_, given),) = ((item.name, item.tensor) for item in calls[call].received or ())
        ((_, returned),) = ((item.name, item.tensor) for item in calls[call].returned or ())
        assert given in (["/before/Conv_output_0", *pools][number], None)
        assert returned in (made, None)
    assert calls["before"].returned is not None
    assert calls["before"].returned[0].tensor == "/before/Conv_output_0"
    assert hieronnx.verify(annotated, model, torch.randn(1, 3, 16, 16)).passed
