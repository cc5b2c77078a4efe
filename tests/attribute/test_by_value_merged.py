"""Work that several calls did and a file has once: it is of each of them, also where only one's readers are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hieronnx
from support.exports import quiet
from support.transformations import transform

_PICTURE = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Pools(nn.Module):
    """Two children pool the same tensor; ONNX Runtime fuses what reads one of them with an activation."""

    class Pool(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(self.conv(functional.adaptive_avg_pool2d(x, 1)))

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 8, 3), self.Pool(width)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.silu(self.stem(x))
        return self.pool(x), self.head(x)


class Flattens(nn.Module):
    """Two children flatten the same tensor; ONNX Runtime fuses what reads one of them with an activation."""

    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = self.Flat(), self.Flat()
        self.last, self.head = nn.Linear(3 * 16 * 16, 8), nn.Linear(3 * 16 * 16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.sigmoid(x)
        return functional.leaky_relu(self.last(self.one(x))), self.head(self.other(x))


def annotate_optimized(model: nn.Module, folder: Path) -> hieronnx.Hierarchy:
    """Return the hierarchy that a file without one gets which ONNX Runtime optimized."""
    with quiet():
        torch.onnx.export(model, (_PICTURE,), str(folder / "model.onnx"), dynamo=False)
    transform("ort-extended", folder / "model.onnx", folder / "fused.onnx", {})
    return hieronnx.annotate(folder / "fused.onnx", model, (_PICTURE,)).hierarchy


@pytest.mark.parametrize("width", [4, 64], ids=["that tells nothing", "that tells"])
def test_what_a_fused_node_reads_as_well_is_of_both_calls(width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    hierarchy = annotate_optimized(Pools(width).eval(), tmp_path)
    (pooling,) = (node for node in hierarchy.nodes if node.op_type == "GlobalAveragePool")
    assert [str(origin) for origin in pooling.origins] == ["pool", "head.0"]
    assert (pooling.evidence, pooling.confidence) == ("value", "high")


def test_what_a_fused_node_reads_in_another_shape_is_of_both_calls(tmp_path: Path) -> None:
    torch.manual_seed(0)
    hierarchy = annotate_optimized(Flattens().eval(), tmp_path)
    (flat,) = (node for node in hierarchy.nodes if node.op_type in ("Flatten", "Reshape"))
    assert [str(origin) for origin in flat.origins] == ["one", "other"]
