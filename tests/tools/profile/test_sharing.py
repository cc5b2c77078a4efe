"""Whose a kernel is that does the work of several calls: of the one that multiplies, as far as that is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hieronnx
from support.nets import FoldedNorm
from support.profiles import check_sums

EXPORTERS = ("dynamo", "torchscript")


def profile_net(net: nn.Module, path: Path, exporter: str, level: str) -> hieronnx.ProfileResult:
    torch.manual_seed(0)
    channels = next(net.parameters()).shape[1]
    hieronnx.export(net.eval(), (torch.randn(1, channels, 32, 32),), path, exporter=exporter)
    result = hieronnx.profile(path, runs=2, optimization=level, roofline=False)
    check_sums(result)
    return result


@pytest.mark.parametrize("level", ["none", "extended", "all"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_was_folded_into_a_weight_has_no_part_in_multiplying_by_it(
    exporter: str, level: str, tmp_path: Path
) -> None:
    net = nn.Sequential(FoldedNorm(3, 8, 3), nn.Conv2d(8, 8, 1))
    result = profile_net(net, tmp_path / "net.onnx", exporter, level)
    calls = {call.module: call for call in result.calls}
    assert {name: call.own_multiply_adds for name, call in calls.items() if call.own_multiply_adds} == {
        "0.0": 3 * 3 * 3 * 8 * 32 * 32,
        "1": 8 * 8 * 32 * 32,
    }
    assert calls["0.1"].own_us == 0
    kernel = next(kernel for kernel in result.kernels if "Conv" in kernel.op_type)
    assert {share.module: share.part for share in kernel.shares if share.part} == {"0.0": 1}
    assert {origin.module for origin in kernel.origins} >= {"0.0", "0.1"}


def test_where_nothing_tells_who_multiplies_the_call_above_has_it(tmp_path: Path) -> None:
    net = nn.Sequential(FoldedNorm(1, 8, 1), nn.Conv2d(8, 8, 1))  # the norm has more parameters than the weight
    result = profile_net(net, tmp_path / "net.onnx", "torchscript", "none")
    calls = {call.module: call for call in result.calls}
    assert calls["0"].own_multiply_adds == 8 * 32 * 32
    assert calls["0.0"].own_multiply_adds == calls["0.1"].own_multiply_adds == 0
    assert calls["0"].own_us == result.kernels[0].us
    assert calls["0.0"].elsewhere == calls["0.1"].elsewhere == "its node runs in '0'"
    assert calls["0"].elsewhere == ""


@pytest.mark.parametrize("tool", ["ort-extended", "ort-all"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_of_a_file_that_was_optimized_before_an_activation_does_not_multiply(
    exporter: str, tool: str, tmp_path: Path
) -> None:
    path, made = tmp_path / "net.onnx", tmp_path / "made.onnx"
    net = nn.Sequential(FoldedNorm(3, 8, 3), nn.Conv2d(8, 8, 1)).eval()
    hieronnx.export(net, (torch.randn(1, 3, 32, 32),), path, exporter=exporter)
    hieronnx.optimize(path, output=made, tool=tool)  # in blocks, a filter has more elements than the parameter
    result = hieronnx.profile(made, runs=1, optimization="none", roofline=False)
    check_sums(result)
    counts = {call.module: call.own_multiply_adds for call in result.calls}
    assert counts["0.1"] == counts["0.2"] == 0
    assert counts["0"] + counts["0.0"] >= 3 * 3 * 3 * 8 * 32 * 32


class Shared(nn.Module):
    """A weight that two modules share: what the one computes, the other does not compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(32, 32, bias=False), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.relu(self.linear(x)) + self.linear(x))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_two_calls_do_at_once_is_half_each(exporter: str, tmp_path: Path) -> None:
    hieronnx.export(Shared().eval(), (torch.randn(8, 32),), tmp_path / "net.onnx", exporter=exporter)
    result = hieronnx.profile(tmp_path / "net.onnx", runs=2, roofline=False)
    check_sums(result)
    counts = {str(call.id): call.own_multiply_adds for call in result.calls if call.own_multiply_adds}
    assert counts["other"] == 8 * 32 * 32
    assert sum(counts.values()) in (2 * 8 * 32 * 32, 3 * 8 * 32 * 32)  # merged, or computed twice
    assert counts["linear"] == counts["linear@1"]
