"""Numbers outside of the ranges that a file was calibrated for: told as the cause, and blamed where they are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import hieronnx
from support.exports import quiet


class Image(nn.Module):
    """Takes numbers from 0 to 1, and has Relus, which the quantizer merges into ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, image: Tensor, strength: Tensor) -> Tensor:
        return self.head(self.second(self.first(image)).mean((2, 3))) * strength


SAMPLES = [
    {"image": rng.random((2, 3, 16, 16), np.float32), "strength": rng.random((2, 1), np.float32)}
    for rng in map(np.random.default_rng, range(4))
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a file and what static quantization makes of it."""
    folder = tmp_path_factory.mktemp("ranges")
    torch.manual_seed(0)
    args = tuple(torch.from_numpy(array) for array in SAMPLES[0].values())
    with quiet():
        hieronnx.export(Image().eval(), args, folder / "plain.onnx")
        hieronnx.quantize(folder / "plain.onnx", output=folder / "int8.onnx", tool="static", calibration=SAMPLES)
    return folder / "plain.onnx", folder / "int8.onnx"


def rescale(path: Path, tensor: str, factor: float, output: Path, *, reader_alone: bool) -> Path:
    """Multiply the scale of a tensor: for the quantizer and its reader, or for the reader alone."""
    model = onnx.load(path)
    quantizer = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor)
    (scale,) = [t for t in model.graph.initializer if t.name == quantizer.input[1]]
    altered = (numpy_helper.to_array(scale) * factor).astype(np.float32)
    if reader_alone:
        model.graph.initializer.append(numpy_helper.from_array(altered, "other"))
        reader = next(n for n in model.graph.node if quantizer.output[0] in n.input)
        reader.input[1] = "other"
    else:
        scale.CopyFrom(numpy_helper.from_array(altered, scale.name))
    onnx.save(model, output)
    return output


def test_nobody_is_blamed_for_made_up_numbers_outside_of_ranges(files: tuple[Path, Path]) -> None:
    plain, quantized = files
    result = hieronnx.verify(quantized, plain)
    assert result.passed
    assert {"", "first"} <= {call.module for call in result.calls if call.cause == "range"}
    (note,) = [note for note in result.notes if "outside of the ranges" in note]
    assert "--inputs" in note


def test_numbers_inside_of_ranges_have_no_such_cause(files: tuple[Path, Path]) -> None:
    plain, quantized = files
    result = hieronnx.verify(quantized, plain, inputs=SAMPLES[0])
    assert result.passed
    assert not any(call.cause == "range" for call in result.calls)


@pytest.mark.parametrize(("tensor", "blamed"), [("image", "first"), ("relu", "first"), ("relu_1", "second")])
@pytest.mark.parametrize(
    ("factor", "reader_alone", "cause"), [(0.25, False, "range"), (0.25, True, ""), (4.0, True, "")]
)
def test_a_wrong_scale_is_blamed(
    tensor: str, blamed: str, factor: float, reader_alone: bool, cause: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, quantized = files
    wrong = rescale(quantized, tensor, factor, tmp_path / "wrong.onnx", reader_alone=reader_alone)
    found: Any = hieronnx.verify(wrong, plain, inputs=SAMPLES[0]).culprits
    assert [(culprit.module, culprit.cause) for culprit in found] == [(blamed, cause)]
