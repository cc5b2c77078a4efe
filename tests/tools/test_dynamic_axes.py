"""Axes that were to be dynamic are, as a run of the file at other sizes shows; where they are not, that is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.dynamic import list_dynamic_axes, resize
from hieronnx.errors import InputError
from hieronnx.tools import example as example_module
from support.exports import quiet


class Masked(nn.Module):
    """Two inputs that share their first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.linear(tokens) * mask.unsqueeze(-1)


class Baked(nn.Module):
    """Reads a size as a number, which a trace takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.shape[0])


class Halves(nn.Module):
    """Runs at even sizes up to six only."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 6:
            raise ValueError("too long")
        return x.reshape(-1, 2, x.shape[1]).sum(1)


INPUTS = {"tokens": torch.randn(3, 5, 4), "mask": torch.ones(3, 5)}
TOKENS = {"tokens": {0: "batch"}, "mask": None}
TOGETHER = {"tokens": {0: "batch"}, "mask": {0: "batch"}}


def export(model: nn.Module, folder: Path, kwargs: dict[str, Any], **options: Any) -> hieronnx.ExportResult:
    with quiet():
        return hieronnx.export(model.eval(), (), folder / "m.onnx", kwargs, **options)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_axes_that_are_dynamic_pass(exporter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = export(Masked(), tmp_path, INPUTS, exporter=exporter, dynamic_shapes=TOGETHER)
    assert result.axes == hieronnx.AxesCheck({"batch": 6})
    assert result.axes.passed
    assert result.to_dict()["axes"]["passed"] is True
    assert result.fixed_axes == {"tokens": {"1": 5, "2": 4}, "mask": {"1": 5}}
    assert "hieronnx" not in {record.name for record in caplog.records}


@pytest.mark.parametrize("exporter", ["auto", "dynamo"])
def test_inputs_left_fixed_at_the_same_size_are_named_with_what_to_do(exporter: str, tmp_path: Path) -> None:
    with pytest.raises(hieronnx.HieronnxError) as caught:
        export(Masked(), tmp_path, INPUTS, exporter=exporter, dynamic_shapes=TOKENS)
    assert "mask is left fixed at the same size" in str(caught.value)
    assert "--dynamic '*:0=batch'" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_torchscript_writes_is_written_and_said_to_be_fixed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = export(Masked(), tmp_path, INPUTS, exporter="torchscript", dynamic_shapes=TOKENS)
    assert result.path.is_file()
    assert result.axes is not None
    assert result.axes.passed is False
    assert "at batch 6 the model itself runs only if mask changes, too" in str(result.axes.problem)
    assert "--dynamic '*:0=batch'" in caplog.text


def test_a_size_that_the_trace_took_for_a_constant_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"exporter": "torchscript", "dynamic_axes": {"x": {0: "rows"}}, "input_names": ["x"]}
    result = export(Baked(), tmp_path, {"x": torch.randn(3, 2)}, **options)
    assert result.axes is not None
    assert result.axes.problem == "at rows 6 output 'output' is 50% of its largest number off PyTorch's"
    assert "the file is not dynamic as asked" in caplog.text


def test_sizes_are_those_at_which_the_model_runs(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(4, 3)}
    result = export(Halves(), tmp_path, inputs, exporter="torchscript", dynamic_shapes={"x": {0: "rows"}})
    assert result.axes is not None
    assert "does not run at rows 3" in str(result.axes.not_checked)
    assert result.axes.passed is None


def test_the_check_can_be_turned_off_and_is_for_small_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"exporter": "torchscript", "dynamic_shapes": TOGETHER}
    result = export(Masked(), tmp_path, INPUTS, check=False, **options)
    assert result.axes is not None
    assert result.axes.passed is None
    assert "hieronnx" not in {record.name for record in caplog.records}
    monkeypatch.setattr(example_module, "LARGEST", 10)
    assert "GB of weights" in str(export(Masked(), tmp_path, INPUTS, **options).axes.not_checked)  # type: ignore[union-attr]
    assert "was not checked" in caplog.text
    assert export(Masked(), tmp_path, INPUTS, check=True, **options).axes.passed  # type: ignore[union-attr]


def test_without_onnx_runtime_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    result = export(Masked(), tmp_path, INPUTS, exporter="torchscript", dynamic_shapes=TOGETHER)
    assert result.axes is not None
    assert result.axes.passed is None
    assert "onnxruntime is not installed" in caplog.text
    with pytest.raises(InputError, match="mask is left fixed at the same size"):
        export(Masked(), tmp_path, INPUTS, dynamic_shapes=TOKENS)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x) * 100


def test_of_what_is_drawn_at_random_the_shapes_alone_are_compared(tmp_path: Path) -> None:
    options: dict[str, Any] = {"exporter": "torchscript", "dynamic_shapes": {"x": {0: "rows"}}}
    result = export(Noisy(), tmp_path, {"x": torch.randn(3, 2)}, **options)
    assert result.axes == hieronnx.AxesCheck({"rows": 6})
    result = export(Noisy(), tmp_path, {"x": torch.randn(3, 2)}, export_params=False, **options)
    assert result.axes == hieronnx.AxesCheck(not_checked="the file has no weights")


def test_a_file_that_runs_at_no_size_says_nothing_of_axes(tmp_path: Path) -> None:
    model, inputs = nn.Conv1d(2, 3, 1).double(), {"input": torch.randn(3, 2, 5, dtype=torch.float64)}
    result = export(model, tmp_path, inputs, exporter="torchscript", dynamic_shapes={"input": {0: "rows"}})
    assert result.axes is not None
    assert "at the example's sizes either" in str(result.axes.not_checked)


def test_nothing_is_checked_where_nothing_is_dynamic(tmp_path: Path) -> None:
    assert export(Masked(), tmp_path, INPUTS, exporter="torchscript").axes is None


def test_every_way_to_say_it_is_understood() -> None:
    rows, nested = torch.export.Dim("rows", min=2, max=9), {"pair": (torch.ones(3, 4), torch.ones(6))}
    shapes = {"pair": ({0: rows, 1: torch.export.Dim.AUTO}, (2 * rows,)), "mask": [torch.export.Dim.DYNAMIC, None]}
    request = ExportRequest(
        Nested(), (), {**nested, "mask": torch.ones(5, 5)}, Path(), Path(), {"dynamic_shapes": shapes}
    )
    found = list_dynamic_axes(request)
    assert [(axis.name, axis.axis, axis.label, axis.size) for axis in found] == [
        ("pair_0", 0, "rows", 3),
        ("pair_1", 0, "rows", 3),
        ("mask", 0, "mask_0", 5),
    ]
    assert found[0].bounds == (2, 9)
    _, kwargs = resize(request, found, {"rows": 4, "mask_0": 2})
    assert [list(t.shape) for t in (*kwargs["pair"], kwargs["mask"])] == [[4, 4], [8], [2, 5]]


class Nested(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        return pair[0].sum() + pair[1].sum() + mask.sum()


# --- training mode ---


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear(x))


def op_types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_training_is_meant_or_warned_of(exporter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, x, path = Dropping(), torch.randn(2, 4), tmp_path / "m.onnx"
    with quiet():
        hieronnx.export(model, x, path, exporter=exporter, verify_topology=True)
    # torch's TorchScript exporter exports in eval mode, whatever the mode is.
    assert ("Dropout" in op_types(path)) == (exporter == "dynamo")
    assert ("call model.eval() first, or pass train=True (--train)" in caplog.text) == (exporter == "dynamo")
    assert model.training
    caplog.clear()
    with quiet():
        result = hieronnx.export(model.eval(), x, path, exporter=exporter, train=True, verify_topology=True)
    assert "Dropout" in op_types(path)
    assert result.topology is not None
    assert result.topology.same
    assert "hieronnx" not in {record.name for record in caplog.records}
    assert not model.training


def test_a_part_that_trains_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Dropping().eval()
    model.dropout.train()
    with quiet():
        hieronnx.export(model, torch.randn(2, 4), tmp_path / "m.onnx", exporter="dynamo")
    assert "'dropout' is in training mode" in caplog.text
