"""What goes wrong while torch is observed: whose error it is, and what is left when torch cannot be observed."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.capture import guard, private_torch
from hieronnx.errors import ExportError
from support.exports import quiet
from support.valuecheck import check_values
from support.zoo._case import randomise

DYNAMO = "hieronnx.capture.dynamo"
ROUTE = "hieronnx.capture.torchscript.route"
OBSERVERS = [
    ("auto", f"{DYNAMO}._Watcher.enter"),
    ("auto", f"{DYNAMO}._Watcher.mark"),
    ("dynamo", f"{DYNAMO}._Watcher.keep_raw"),
    ("dynamo", f"{DYNAMO}._FxValues.keep_values"),
    ("torchscript", f"{ROUTE}._Watcher.enter"),
    ("torchscript", f"{ROUTE}._Watcher.returned"),
    ("torchscript", f"{ROUTE}._Watcher.traced"),
    ("torchscript", f"{ROUTE}._Watcher.lowered"),
    ("torchscript", f"{ROUTE}._Watcher.keep_file"),
    ("torchscript", "hieronnx.capture.torchscript.positional.torchscript_options"),
]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * 1.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()
        self.cells = nn.ModuleList([Cell(), Cell()])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cell(self.cell(x)) + 0.25
        for cell in self.cells:
            x = cell(x)
        return self.head(x)


def build() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    return randomise(Net()).eval(), (torch.randn(2, 4),)


@pytest.mark.parametrize(("exporter", "observer"), OBSERVERS)
def test_a_failure_of_an_observer_is_ours_and_no_reason_for_another_exporter(
    exporter: str, observer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("inBlockList() is in the way")  # torch hides some RuntimeErrors

    monkeypatch.setattr(observer.replace("positional.torch", "route.torch"), fail)
    model, inputs = build()
    with quiet(), pytest.raises(ExportError, match="bug of hieronnx, not of torch or of the model") as caught:
        hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter=exporter)
    assert "inBlockList() is in the way" in str(caught.value)
    assert "please report it" in str(caught.value)
    assert torch.__version__ in str(caught.value)
    assert "trying TorchScript" not in caplog.text
    assert not list(tmp_path.iterdir())


def test_an_error_that_torch_hides_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fail_once(*_args: Any) -> None:
        calls.append(1)
        if len(calls) == 1:  # torch.export then tries another way, in which it does not fail
            raise ValueError("only once")

    monkeypatch.setattr(f"{DYNAMO}._Watcher.enter", fail_once)
    model, inputs = build()
    with quiet(), pytest.raises(ExportError, match="bug of hieronnx"):
        hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter="dynamo")


@pytest.mark.parametrize(
    ("exporter", "owner"), [("dynamo", "DYNAMO"), ("dynamo", "TRACER"), ("torchscript", "TORCHSCRIPT")]
)
def test_a_torch_that_moved_what_is_observed_gives_its_own_record_if_it_is_newer_than_tested(
    exporter: str, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(private_torch, owner, "torch.moved_elsewhere")
    model, inputs = build()
    with quiet(), pytest.raises(ExportError, match=r"No module named 'torch.moved_elsewhere'.*please report it"):
        hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter=exporter)

    monkeypatch.setattr(guard, "NEWEST_TESTED", (2, 0))
    with quiet(), caplog.at_level(logging.WARNING, "hieronnx"):
        result = hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter=exporter, verify_topology=True)
    assert "is newer than those that hieronnx was tested with (up to 2.0)" in caplog.text
    assert "hieronnx cannot observe torch" in caplog.text
    assert result.exporter == exporter
    assert result.topology is not None
    assert result.topology.same
    hierarchy = result.hierarchy
    assert {node.evidence for node in hierarchy.nodes} <= {"name", "dataflow", "parameter"}
    assert {call.id.module for call in hierarchy.calls} == {p for p, _ in model.named_modules() if p != "cells"}
    attributed = {
        (node.graph, node.output): frozenset((node.scope.module, number) for number in range(2))
        for node in hierarchy.nodes
    }
    report = check_values(model, inputs, {}, result.path, attributed)
    assert not report.wrong, report.summary()
    assert len(report.right) >= 10


def test_a_torch_that_is_newer_than_tested_and_fits_is_observed_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "NEWEST_TESTED", (2, 0))
    model, inputs = build()
    with quiet(), caplog.at_level(logging.WARNING, "hieronnx"):
        result = hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter="torchscript")
    assert [record.message for record in caplog.records if record.name == "hieronnx"] == [
        f"torch {torch.__version__} is newer than those that hieronnx was tested with (up to 2.0)"
    ]
    assert {node.evidence for node in result.hierarchy.nodes} <= {"captured", "carried"}


def test_a_torch_that_passes_another_way_is_not_taken_for_a_model_without_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_torch, "observe_calls", lambda *_args: nullcontext())
    model, inputs = build()
    with quiet(), pytest.raises(ExportError, match="exported the model another way than hieronnx observes"):
        hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter="torchscript")


def test_a_torch_that_is_older_than_tested_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_torch, "TORCHSCRIPT", "torch.not_there_yet")
    monkeypatch.setattr(guard, "OLDEST_TESTED", (2, 90))
    model, inputs = build()
    with quiet(), pytest.raises(ExportError, match=r"it supports torch 2\.90 to 2\.15: install one of these"):
        hieronnx.export(model, inputs, tmp_path / "m.onnx", exporter="torchscript")


@pytest.mark.parametrize(
    ("version", "newer"),
    [("2.10.0", False), ("2.15.1+cu132", False), ("2.16.0a0+git12", True), ("2.16.0", True), ("3.0.0", True)],
)
def test_versions_are_compared_by_their_first_two_numbers(version: str, newer: bool) -> None:
    assert guard.newer_than_tested(version) is newer
