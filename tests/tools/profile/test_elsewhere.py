"""Where the work of a call is said to be that has no kernel of its own."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime as ort
import pytest
import torch
from torch import nn

import hieronnx
from support.nets import FoldedNorm
from support.profiles import check_sums, make_event


class Branches(nn.Module):
    """Activations that ONNX Runtime has no kernel for, and runs as two others; one is of twice as many elements."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.large_act = nn.Linear(16, 64), nn.Hardswish()
        self.small, self.small_act = nn.Linear(16, 32), nn.Hardswish()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.small_act(self.small(x)), self.large_act(self.large(x))


def export_branches(path: Path, exporter: str) -> Path:
    options = {"exporter": exporter, "opset_version": 18}
    hieronnx.export(Branches().eval(), (torch.randn(8, 16),), path, **options)
    return path


@pytest.mark.parametrize("level", ["none", "all"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_nothing_is_told_of_a_call_whose_work_runs_in_it(exporter: str, level: str, tmp_path: Path) -> None:
    net = nn.Sequential(FoldedNorm(3, 8, 3), nn.Conv2d(8, 8, 1)).eval()
    hieronnx.export(net, (torch.randn(1, 3, 16, 16),), tmp_path / "net.onnx", exporter=exporter)
    result = hieronnx.profile(tmp_path / "net.onnx", runs=1, optimization=level, roofline=False)
    told = {call.module: call.elsewhere for call in result.calls if call.elsewhere}
    within = "its node runs in '0.0'"
    assert told == ({"0.1": within} if level == "none" else {"0.1": within, "0.2": within})


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_kernels_that_run_in_place_of_a_node_are_of_its_call(exporter: str, level: str, tmp_path: Path) -> None:
    path = export_branches(tmp_path / "branches.onnx", exporter)
    result = hieronnx.profile(path, runs=2, optimization=level, roofline=False)
    check_sums(result)
    assert result.by_kind["runtime"] == 0
    calls = {call.module: call for call in result.calls}
    assert not any(call.elsewhere for call in calls.values())
    assert calls["small_act"].own_kernels == calls["large_act"].own_kernels == 2
    # One is read, one is written; two are read, one is written.
    assert calls["small_act"].own_bytes == 5 * 4 * 8 * 32
    assert calls["large_act"].own_bytes == 5 * 4 * 8 * 64


def test_of_kernels_whose_node_is_not_known_it_is_said_that_they_are_there(tmp_path: Path) -> None:
    path = export_branches(tmp_path / "branches.onnx", "dynamo")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, {session.get_inputs()[0].name: torch.randn(8, 16).numpy()})
    result = hieronnx.profile(path, trace_from=session.end_profiling())  # without the graph that ran
    assert result.by_kind["runtime"] > 0
    told = {call.module: call.elsewhere for call in result.calls if call.elsewhere}
    unknown = "its node may run in kernels of no known node, under 'runtime'"
    assert told == {"small_act": unknown, "large_act": unknown}


def test_what_did_not_run_at_all_is_said_not_to_have(tmp_path: Path) -> None:
    path = export_branches(tmp_path / "branches.onnx", "dynamo")
    ran = [node.name for node in hieronnx.load(path).nodes if "act" not in node.scope.module]
    events = [make_event("model_run", 0, 100, "Session"), *(make_event(f"{name}_kernel_time", 1, 9) for name in ran)]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    result = hieronnx.profile(path, trace_from=tmp_path / "trace.json")
    told = {call.module: call.elsewhere for call in result.calls if call.elsewhere}
    assert told == {"small_act": "its node did not run", "large_act": "its node did not run"}
