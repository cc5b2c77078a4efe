"""Multiply-adds are the model's own, at every level: ONNX Runtime's blocks of channels are not filled up with work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hieronnx

LEVELS = ("none", "basic", "extended", "layout", "all")


class Odd(nn.Module):
    """Convolutions of odd channels, of all kinds, and a scale by channel, which runs as a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.wide = nn.Conv2d(5, 24, 3, stride=2, bias=False)
        self.scale = nn.Parameter(torch.rand(24, 1, 1) + 0.5)
        self.depthwise = nn.Conv2d(24, 24, 3, groups=24)
        self.grouped = nn.Conv2d(24, 12, 1, groups=3)
        self.up = nn.ConvTranspose2d(12, 5, 2)
        self.skip = nn.Conv2d(5, 5, 3, padding=1)
        self.head = nn.Linear(5, 7)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(image)))
        x = self.grouped(torch.relu(self.depthwise(self.wide(x) * self.scale)))
        x = self.up(x)
        return self.head((x + self.skip(x)).mean((2, 3)))


@pytest.fixture(scope="module", params=["dynamo", "torchscript"])
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "odd.onnx"
    by_argument = {"image": {0: "batch"}}
    dynamic = {"dynamo": {"dynamic_shapes": by_argument}, "torchscript": {"dynamic_axes": by_argument}}[request.param]
    options = {"exporter": request.param, "input_names": ["image"], **dynamic}
    hieronnx.export(Odd().eval(), (torch.randn(2, 3, 17, 17),), path, **options)
    return path


@pytest.mark.parametrize("level", LEVELS)
def test_a_call_has_the_multiply_adds_of_the_model_at_every_level(odd: Path, level: str) -> None:
    result = hieronnx.profile(odd, runs=1, optimization=level, roofline=False, dims={"batch": 3})
    counted = hieronnx.analyze(odd, dims={"batch": 3})
    assert result.calls[0].multiply_adds == counted.total.multiply_adds
    assert all(kernel.multiply_adds is not None for kernel in result.kernels)
    by_name = {node.attribution.origins[0].module: node.multiply_adds for node in counted.nodes if node.multiply_adds}
    assert {call.module: call.own_multiply_adds for call in result.calls if call.own_multiply_adds} == by_name


class Picked(nn.Module):
    """A convolution of as many images as the values of a mask tell."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(image[image.sum((1, 2, 3)) > 0]))


def test_what_is_not_known_is_told_and_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "picked.onnx"
    hieronnx.export(Picked().eval(), (torch.ones(4, 3, 9, 9),), path, exporter="torchscript")
    given = {"image": torch.ones(4, 3, 9, 9).numpy()}
    usual = hieronnx.profile(path, runs=1, inputs=given, optimization="none", roofline=False)
    assert usual.calls[0].multiply_adds == 4 * 5 * 7 * 7 * 3 * 3 * 3
    blocked = hieronnx.profile(path, runs=1, inputs=given, optimization="all", roofline=False)
    (kernel,) = (kernel for kernel in blocked.kernels if kernel.operator == "com.microsoft.nchwc::Conv")
    assert kernel.multiply_adds is None
    assert any("multiply-adds of 1 kernel are not known (com.microsoft.nchwc::Conv)" in n for n in blocked.notes)
